"""Models of any provider, asked through the models of Pydantic AI.

    async with ProviderModel("anthropic:claude-sonnet-4-5") as model:
        reply = await model.complete(Prompt.of("How much?"))

    ProviderModel(Endpoint("http://127.0.0.1:11434/v1", "llama3.2"))     # vLLM, Ollama ...

The library speaks the dialects of the providers. What stands here is what a journal needs from it:
one reply per call, whole and checked, that says how it came about.

Invariants
- An answer is never read beyond MODEL_ANSWER_BYTES_MAX.
- Attempts and pauses are bounded; no pause is longer than MODEL_PAUSE_MS_MAX.
- The API key is only in the header of the request: in no error, repr or reply.
"""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import anyio

from blackboard._lazy import need
from blackboard.errors import InvalidRequest, ModelFailed
from blackboard.limits import DEFAULT, Limits
from blackboard.runtime.models import (
    Endpoint,
    ModelUsage,
    Patience,
    Prices,
    Prompt,
    Reply,
    TextSink,
    ToolCall,
)

try:
    import httpx2
    from pydantic_ai import direct, messages as parts
    from pydantic_ai.exceptions import (
        ModelAPIError,
        ModelConnectionError,
        ModelHTTPError,
        UnexpectedModelBehavior,
        UserError,
    )
    from pydantic_ai.models import Model as LibraryModel, ModelRequestParameters, infer_model
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.providers import Provider, infer_provider_class
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import ToolDefinition
except ModuleNotFoundError:
    for _module in ("pydantic_ai", "openai"):
        need(_module, "asking a provider's model needs Pydantic AI", "agent-blackboard[models]")
    raise

_TOLD_CHARACTERS_MAX = 500
"""Characters of a service's error message: enough to understand it, but not a page of HTML."""
_PASSING = {408, 409, 425, 429}
"""Status codes to retry, in addition to every 5xx."""
_LAST_EVENT = b"[DONE]"
_END_BYTES = 64
"""Of a body that are kept, to find that in."""
_FINISH = {"tool_call": "tool_calls", None: "stop"}
"""Reasons to stop, where the library's word differs from ours."""


class ProviderModel:
    """A model behind a service. A block, or closed by `aclose`.

    `model` is `provider:name` (as Pydantic AI has it, with the provider's own variables for keys),
    an Endpoint, or a model of Pydantic AI that you have configured. Errors: InvalidRequest for a
    provider that is not known, not installed, or has no key.
    """

    def __init__(
        self,
        model: "str | Endpoint | LibraryModel[Any]",
        *,
        prices: Prices | None = None,
        patience: Patience | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._limits = limits.agents
        self._prices = prices
        self._patience = patience or Patience()
        self._has_key = not isinstance(model, Endpoint) or bool(model.key)
        self._http = httpx2.AsyncClient(
            timeout=self._patience.timeout_ms / 1000,
            follow_redirects=False,  # a redirect would send the conversation to another service
            event_hooks={"request": [self._without_key], "response": [self._bound]},
        )
        self._model = self._library_model(model)

    @property
    def name(self) -> str:
        """The model's name at its service."""
        return self._model.model_name

    @property
    def provider(self) -> str:
        """The name of the service, as Pydantic AI has it; "endpoint" for an Endpoint."""
        return self._model.system

    async def complete(self, prompt: Prompt) -> Reply:
        """Answer `prompt`. Errors, cancellation: see `Model.complete`."""

        async def ask() -> parts.ModelResponse:
            return await direct.model_request(*self._request(prompt), **self._options(prompt))

        return await self._answered(prompt, ask)

    async def stream(self, prompt: Prompt, into: TextSink) -> Reply:
        """As `complete`; the text goes to `into` while it comes. An attempt that breaks off is
        followed by another one, which restarts the text."""

        async def ask() -> parts.ModelResponse:
            into.restart()
            request, options = self._request(prompt), self._options(prompt)
            async with direct.model_request_stream(*request, **options) as stream:
                async for event in stream:
                    if text := _text_of(event):
                        into.append(text)
                answer = stream.get()
            if self._broke_off(answer):
                raise _BrokenOffError
            return answer

        return await self._answered(prompt, ask)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    # --- the library's model ----------------------------------------------------------------------

    def _library_model(self, model: "str | Endpoint | LibraryModel[Any]") -> "LibraryModel[Any]":
        if isinstance(model, Endpoint):
            provider = OpenAICompatibleProvider(
                "endpoint",
                base_url=model.url.rstrip("/"),
                api_key=model.key or "none",  # removed from the request: see _without_key
                http_client=self._http,
            )
            return _EndpointModel(model.model, provider=provider)
        try:
            return infer_model(model, self._provider)
        except (UserError, ImportError, ValueError) as error:
            raise InvalidRequest(field="model", reason=str(error)) from error

    def _provider(self, name: str) -> "Provider[Any]":
        """The provider of that name, with our client, which bounds what is read."""
        kind: Callable[..., Provider[Any]] = infer_provider_class(name)
        return kind(http_client=self._http)

    async def _without_key(self, request: httpx2.Request) -> None:
        if not self._has_key:
            request.headers.pop("authorization", None)

    async def _bound(self, response: httpx2.Response) -> None:
        # In a hook of the HTTP client, and so for the SDK of every provider.
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        bytes_max = self._limits.model_answer_bytes_max
        response.stream = _Bounded(response.stream, bytes_max, response.status_code)
        _body.set(response.stream)

    # --- one call ---------------------------------------------------------------------------------

    async def _answered(
        self, prompt: Prompt, ask: Callable[[], Awaitable[parts.ModelResponse]]
    ) -> Reply:
        patience = self._patience
        for attempt in range(1, patience.attempts + 1):
            try:
                # The HTTP client's timeout is for each read: it never ends an answer that trickles.
                with anyio.fail_after(patience.timeout_ms / 1000):
                    return self._reply(prompt, await ask(), attempt)
            except TimeoutError as error:
                failed = ModelFailed(self.name, f"no answer within {patience.timeout_ms:,} ms")
                failed.__cause__, asked_s = error, 0.0
            except _FAILURES as error:
                failed = self._failed(error)
                failed.__cause__, asked_s = error, getattr(error, "retry_after", None) or 0.0
                if not self._may_pass(error, asked_s):
                    raise failed from error
            if attempt == patience.attempts:
                raise failed
            await anyio.sleep(max(asked_s, _pause_s(patience, attempt, self._longest_pause_s)))
        raise AssertionError("the last attempt returns or raises")

    @property
    def _longest_pause_s(self) -> float:
        return self._limits.model_pause_ms_max / 1000

    def _may_pass(self, error: Exception, asked_s: float) -> bool:
        """Whether a retry may succeed, soon enough."""
        # An attempt before the time that Retry-After names would only be refused again.
        if _too_long(error) or asked_s > self._longest_pause_s:
            return False
        if isinstance(error, ModelHTTPError):
            return error.status_code in _PASSING or error.status_code >= 500
        return isinstance(error, ModelConnectionError | _BrokenOffError)

    def _broke_off(self, answer: parts.ModelResponse) -> bool:
        """Whether a stream ended before the answer did: its connection was closed in good order, by
        a proxy for example. No error says so, and half an answer must not be recorded as whole."""
        details = answer.provider_details or {}
        if "finish_reason" in details or "refusal" in details:
            return False
        if answer.state == "incomplete":
            return True
        body = _body.get()
        # Some services that speak OpenAI's protocol give no reason, but all of them say [DONE].
        return isinstance(self._model, OpenAIChatModel) and body is not None and not body.is_done

    def _failed(self, error: Exception) -> ModelFailed:
        if too_long := _too_long(error):
            return ModelFailed(self.name, str(too_long), too_long.status)
        refusal = error if isinstance(error, ModelHTTPError) else error.__cause__
        if (status := getattr(refusal, "status_code", None)) is not None:  # also 3xx of the SDKs
            return ModelFailed(self.name, _told(getattr(refusal, "body", None)), status)
        if isinstance(error, ModelConnectionError):
            cause = error.__cause__ and (error.__cause__.__cause__ or error.__cause__)
            return ModelFailed(self.name, f"{type(cause or error).__name__}: {error}"[:500])
        return ModelFailed(self.name, f"not a usable answer: {error}"[:_TOLD_CHARACTERS_MAX], 200)

    def _request(self, prompt: Prompt) -> "tuple[LibraryModel[Any], list[parts.ModelMessage]]":
        return self._model, _messages(prompt)

    def _options(self, prompt: Prompt) -> dict[str, Any]:
        # Attempts and pauses are those of `_answered`: an SDK's own would be
        # neither seen nor bounded.
        settings = ModelSettings(max_retries=0)
        for name, value in (
            ("temperature", prompt.temperature),
            ("seed", prompt.seed),
            ("max_tokens", prompt.tokens_max),
        ):
            if value is not None:
                settings[name] = value  # type: ignore[literal-required]
        tools = [
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=tool.parameters,
            )
            for tool in prompt.tools
        ]
        asked = ModelRequestParameters(function_tools=tools)
        if prompt.output is not None:
            asked.output_object = OutputObjectDefinition(prompt.output, name="answer")
            is_native = self._model.profile.get("supports_json_schema_output", False)
            asked.output_mode = "native" if is_native else "prompted"
        return {"model_settings": settings, "model_request_parameters": asked}

    def _reply(self, prompt: Prompt, answer: parts.ModelResponse, attempts: int) -> Reply:
        usage = ModelUsage(
            prompt_tokens=answer.usage.input_tokens, completion_tokens=answer.usage.output_tokens
        )
        if self._prices is not None:
            usage = usage.model_copy(update={"cost_microusd": self._prices.cost_microusd(usage)})
        details = answer.provider_details or {}
        version = "/".join(filter(None, (answer.model_name, details.get("system_fingerprint"))))
        return Reply(
            text="".join(p.content for p in answer.parts if isinstance(p, parts.TextPart)),
            tool_calls=tuple(
                ToolCall(id=p.tool_call_id, name=p.tool_name, arguments=p.args_as_json_str())
                for p in answer.parts
                if isinstance(p, parts.ToolCallPart)
            ),
            model=self.name,
            version=version or self.name,
            finish=_FINISH.get(answer.finish_reason, answer.finish_reason or "stop"),
            temperature=prompt.temperature,
            seed=prompt.seed,
            usage=usage,
            attempts=attempts,
        )


def _pause_s(patience: Patience, attempt: int, longest_s: float) -> float:
    """Growing and random, so that agents that failed together do not retry together."""
    # 30 doublings are beyond any pause, and a thousand of them beyond any number.
    return random.uniform(0, min(patience.first_pause_s * 2.0 ** min(attempt, 30), longest_s))


# --- between the library and ourselves ------------------------------------------------------------


def _messages(prompt: Prompt) -> "list[parts.ModelMessage]":
    """The conversation as the library has it: the parts between two answers are one request."""
    found: list[parts.ModelMessage] = []
    # A result says only which call it answers; some providers want the tool's name as well.
    names = {call.id: call.name for turn in prompt.messages for call in turn.tool_calls}
    for turn in prompt.messages:
        if turn.role == "assistant":
            said: list[Any] = [parts.TextPart(turn.content)] if turn.content else []
            said += [parts.ToolCallPart(c.name, c.arguments, c.id) for c in turn.tool_calls]
            found.append(parts.ModelResponse(parts=said))
            continue
        if not found or isinstance(found[-1], parts.ModelResponse):
            found.append(parts.ModelRequest(parts=[]))
        part: Any
        if turn.role == "tool":
            id_ = turn.answers or ""
            part = parts.ToolReturnPart(names.get(id_, "tool"), turn.content, id_)
        else:
            kind = parts.SystemPromptPart if turn.role == "system" else parts.UserPromptPart
            part = kind(turn.content)
        found[-1].parts = [*found[-1].parts, part]
    return found


def _text_of(event: Any) -> str:
    """The text that an event of a stream adds."""
    if isinstance(event, parts.PartStartEvent) and isinstance(event.part, parts.TextPart):
        return event.part.content
    if isinstance(event, parts.PartDeltaEvent) and isinstance(event.delta, parts.TextPartDelta):
        return event.delta.content_delta
    return ""


class _EndpointModel(OpenAIChatModel):
    """With the fingerprint of the service's configuration: a seed promises nothing without it."""

    def _process_provider_details(self, response: Any) -> dict[str, Any] | None:
        found = super()._process_provider_details(response) or {}
        return found | {"system_fingerprint": response.system_fingerprint}


class _TooLong(Exception):
    """An answer that goes on beyond what is read."""

    def __init__(self, bytes_max: int, status: int) -> None:
        super().__init__(f"an answer of more than {bytes_max:,} bytes")
        self.status = status


class _BrokenOffError(Exception):
    """A stream that ended before its answer."""

    def __init__(self) -> None:
        super().__init__("the stream broke off")


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to `bytes_max`. Errors: _TooLong."""

    def __init__(self, stream: httpx2.AsyncByteStream, bytes_max: int, status: int) -> None:
        self._stream = stream
        self._bytes_max = bytes_max
        self._status = status
        self._end = b""

    @property
    def is_done(self) -> bool:
        """Whether what was read ends with the last event of OpenAI's protocol."""
        return _LAST_EVENT in self._end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read_bytes = 0
        async for chunk in self._stream:
            read_bytes += len(chunk)
            if read_bytes > self._bytes_max:
                raise _TooLong(self._bytes_max, self._status)
            # The last event may be spread over two chunks.
            self._end = (self._end + chunk)[-_END_BYTES:]
            yield chunk

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()


_FAILURES = (ModelAPIError, UnexpectedModelBehavior, UserError, _TooLong, _BrokenOffError)
_body: ContextVar[_Bounded | None] = ContextVar("body of the last answer", default=None)
"""Of the task that asks: its calls run one after the other."""


def _too_long(error: BaseException | None) -> _TooLong | None:
    """The _TooLong that `error` is, or was raised from."""
    while error is not None and not isinstance(error, _TooLong):
        error = error.__cause__ or error.__context__
    return error


def _told(body: object) -> str:
    """The service's own words in the body of a refusal."""
    found = body
    for name in ("error", "message"):
        found = found.get(name, found) if isinstance(found, dict) else found
    text = found if isinstance(found, str) else json.dumps(found, default=str)
    return text.strip()[:_TOLD_CHARACTERS_MAX]
