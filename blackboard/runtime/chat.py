"""A model behind a service that speaks the chat completions of OpenAI.

    async with ChatModel(Endpoint("http://127.0.0.1:11434/v1", "llama3.2")) as model:
        reply = await model.complete(Prompt.of("How much?"))

vLLM, Ollama, llama.cpp, LM Studio and LiteLLM speak them too.

Invariants
- An answer is read completely and checked before it is returned, and never read beyond
  MODEL_ANSWER_BYTES_MAX.
- attempts and pauses are bounded; no pause is longer than MODEL_PAUSE_MS_MAX.
- The API key is only in the header of the request: in no error, repr or reply.

Source: the chat completions part of OpenAI's published API description.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self

import anyio
import httpx
from pydantic import Field, ValidationError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_random_exponential

from blackboard.errors import InvalidRequest, ModelFailed
from blackboard.limits import DEFAULT, MODEL_ATTEMPTS_MAX, MODEL_TIMEOUT_MS, Limits
from blackboard.runtime.models import (
    ChatMessage,
    ModelUsage,
    Plain,
    Prices,
    Prompt,
    Reply,
    ToolCall,
)
from blackboard.units import Milliseconds

_FIRST_PAUSE_S = 0.5
_TOLD_CHARACTERS_MAX = 500
"""Characters of a service's error message: enough to understand it, but not a page of HTML."""
_PASSING = {408, 409, 425, 429}
"""Status codes to retry, in addition to every 5xx."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is: `url` ends before `/chat/completions`. The key is not shown."""

    url: str
    model: str
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        parts = httpx.URL(self.url) if self.url.startswith(("http://", "https://")) else None
        if parts is None or not parts.host:
            raise InvalidRequest(field="OPENAI_BASE_URL", reason=f"{self.url!r} is not an address")
        if not self.model:
            raise InvalidRequest(field="BB_MODEL", reason="the name of a model is needed")
        if not (self.key.isascii() and self.key.isprintable()):
            raise InvalidRequest(field="OPENAI_API_KEY", reason="it cannot stand in a header")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often to try."""

    timeout_ms: Milliseconds = MODEL_TIMEOUT_MS
    attempts: int = MODEL_ATTEMPTS_MAX
    first_pause_s: float = _FIRST_PAUSE_S


class ChatModel:
    """A model behind an OpenAI-compatible service. A block, or closed by `aclose`."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        prices: Prices | None = None,
        patience: Patience | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._endpoint = endpoint
        self._limits = limits.agents
        self._prices = prices
        self._patience = patience or Patience()
        key = endpoint.key
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=self._patience.timeout_ms / 1000,
            follow_redirects=False,  # a redirect would send the conversation to another service
        )

    @property
    def name(self) -> str:
        """The model's name at its service."""
        return self._endpoint.model

    async def complete(self, prompt: Prompt) -> Reply:
        """Answer `prompt`. Errors, cancellation: see `Model.complete`."""
        patience = self._patience
        retrying = AsyncRetrying(
            stop=stop_after_attempt(patience.attempts),
            wait=_Pause(patience.first_pause_s, self._limits.model_pause_ms_max),
            retry=retry_if_exception_type(_TryAgain),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    answer = await self._post(_body(self.name, prompt))
                    return self._reply(prompt, answer, attempt.retry_state.attempt_number)
        except _TryAgain as error:
            raise ModelFailed(self.name, error.reason, error.status) from error
        raise AssertionError("the last attempt returns or raises")

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

    async def _post(self, body: Mapping[str, Any]) -> bytes:
        """The body of a good answer."""
        url = self._endpoint.url.rstrip("/") + "/chat/completions"
        timeout_ms = self._patience.timeout_ms
        try:
            # httpx bounds each read; this bounds a service that sends a byte now and then, too.
            with anyio.fail_after(timeout_ms / 1000):
                async with self._http.stream("POST", url, json=body) as response:
                    content = await self._read(response)
        except TimeoutError as error:
            raise _TryAgain(f"no answer within {timeout_ms:,} ms") from error
        except httpx.TransportError as error:
            raise _TryAgain(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        except httpx.HTTPError as error:
            raise ModelFailed(self.name, f"{type(error).__name__}: {error}") from error
        if response.status_code == 200:
            return content
        self._refuse(response, content)
        raise AssertionError("a refusal raises")

    async def _read(self, response: httpx.Response) -> bytes:
        """The whole body. Errors: ModelFailed when it is too long."""
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > self._limits.model_answer_bytes_max:
                reason = f"an answer of more than {self._limits.model_answer_bytes_max:,} bytes"
                raise ModelFailed(self.name, reason, response.status_code)
        return bytes(content)

    def _refuse(self, response: httpx.Response, content: bytes) -> None:
        """Errors: _TryAgain if a retry may succeed; ModelFailed if not, or only after too long."""
        status = response.status_code
        reason = _error_message(content) or response.reason_phrase
        pause_s = _asked_pause_s(response.headers.get("retry-after", ""))
        passing = status in _PASSING or status >= 500
        if not passing or pause_s * 1000 > self._limits.model_pause_ms_max:
            raise ModelFailed(self.name, reason, status)
        raise _TryAgain(reason, status, pause_s)

    def _reply(self, prompt: Prompt, content: bytes, attempts: int) -> Reply:
        try:
            answer = _Answer.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            reason = f"not a chat completion: {where}: {first['msg']}"
            raise ModelFailed(self.name, reason, 200) from error
        usage = answer.usage or ModelUsage()
        if self._prices is not None:
            usage = usage.model_copy(update={"cost_microusd": self._prices.cost_microusd(usage)})
        choice = answer.choices[0]
        version = "/".join(filter(None, (answer.model, answer.system_fingerprint)))
        return Reply(
            text=choice.message.content or "",
            tool_calls=tuple(call.plain() for call in choice.message.tool_calls or ()),
            model=self.name,
            version=version or self.name,
            finish=choice.finish_reason or "stop",
            temperature=prompt.temperature,
            seed=prompt.seed,
            usage=usage,
            attempts=attempts,
        )


@dataclass(eq=False)
class _TryAgain(Exception):
    """An attempt failed, and a retry may succeed; `pause_s` is the pause that the service
    requested."""

    reason: str
    status: int | None = None
    pause_s: float = 0.0


class _Pause(wait_random_exponential):
    """Random and growing, so that agents that failed together do not retry together."""

    def __init__(self, first_s: float, longest_ms: Milliseconds) -> None:
        super().__init__(multiplier=first_s, max=longest_ms / 1000)

    def __call__(self, retry_state: RetryCallState) -> float:
        outcome = retry_state.outcome
        error = outcome.exception() if outcome else None
        asked_s = error.pause_s if isinstance(error, _TryAgain) else 0.0
        return max(asked_s, super().__call__(retry_state))


def _asked_pause_s(header: str) -> float:
    """The seconds in `Retry-After`, in either of its forms; 0 without one."""
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def _error_message(content: bytes) -> str:
    """The service's own error message."""
    try:
        found = json.loads(content)["error"]
        text = str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError, RecursionError):
        text = content.decode(errors="replace").strip()
    return text[:_TOLD_CHARACTERS_MAX]


def model_from_environment(environment: Mapping[str, str] | None = None) -> ChatModel | None:
    """The model that BB_MODEL names, at OPENAI_BASE_URL with OPENAI_API_KEY; None without BB_MODEL.

    BB_MODEL_PRICES (`2.5,10`: USD per million tokens, prompt and completion) lets costs be
    computed. A service without a key (Ollama, llama.cpp) needs none. Errors: InvalidRequest, naming
    the variable, when one of them is invalid.
    """
    found = os.environ if environment is None else environment
    model = found.get("BB_MODEL", "")
    if not model:
        return None
    url = found.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    prices = Prices.parse(found["BB_MODEL_PRICES"]) if found.get("BB_MODEL_PRICES") else None
    return ChatModel(Endpoint(url, model, found.get("OPENAI_API_KEY", "")), prices=prices)


# --- the shapes of the wire -----------------------------------------------------------------------


def _body(model: str, prompt: Prompt) -> dict[str, Any]:
    """The request; what is None is left out, for some services refuse what they do not know."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in prompt.messages],
        "temperature": prompt.temperature,
        "seed": prompt.seed,
        "max_tokens": prompt.tokens_max,
    }
    if prompt.tools:
        body["tools"] = [{"type": "function", "function": t.model_dump()} for t in prompt.tools]
    return {name: value for name, value in body.items() if value is not None}


def _message(message: ChatMessage) -> dict[str, Any]:
    shaped: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.answers is not None:
        shaped["tool_call_id"] = message.answers
    if message.tool_calls:
        shaped["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return shaped


class _Function(Plain):
    name: str
    arguments: str = "{}"


class _Call(Plain):
    id: str = ""
    function: _Function

    def plain(self) -> ToolCall:
        """The call as an agent sees it."""
        return ToolCall(id=self.id, name=self.function.name, arguments=self.function.arguments)


class _Said(Plain):
    content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None


class _Choice(Plain):
    message: _Said
    finish_reason: str | None = None


class _Answer(Plain):
    model: str = ""
    system_fingerprint: str | None = None
    choices: tuple[_Choice, ...] = Field(min_length=1)
    usage: ModelUsage | None = None
