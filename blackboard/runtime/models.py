"""Models: prompts, replies, and a scripted model for tests.

    reply = await model.complete(Prompt.of("How much?", temperature=0.0, seed=7))
    print(reply.text, reply.version, reply.usage.tokens)

`ProviderModel` (runtime/providers.py) asks a service; `ScriptedModel` answers from a function,
without a network and without a key.

Invariant: a reply records the model, its version, temperature and seed, and the cost, so that its
origin can be traced later.
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from anyio.lowlevel import checkpoint
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from blackboard.errors import InvalidRequest, ModelFailed
from blackboard.limits import MODEL_ATTEMPTS_MAX, MODEL_TIMEOUT_MS
from blackboard.units import Milliseconds

T = TypeVar("T")
OPENAI: Final = "https://api.openai.com/v1"
Role = Literal["system", "user", "assistant", "tool"]


class Plain(BaseModel):
    """Plain data: frozen, and read leniently, because services add fields of their own."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# --- prompts --------------------------------------------------------------------------------------


class ToolCall(Plain):
    """A tool that the model wants called. `arguments` is JSON text, written by the model."""

    id: str
    name: str
    arguments: str

    def parsed(self) -> dict[str, Any]:
        """The arguments. Errors: ModelFailed when they are not a JSON object."""
        try:
            found = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ModelFailed(self.name, f"arguments that are no JSON object: {self.arguments!r}")
        return found


class Tool(Plain):
    """A tool that the model may ask for. `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})


class ChatMessage(Plain):
    """One turn of a conversation. A tool's result says which call it `answers`, by id."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    answers: str | None = None


class Prompt(Plain):
    """A request to a model. Fields that are None are not sent, so the service's defaults apply.

    With `output`, a JSON Schema of an object, the text of the reply is to be such an object: see
    `asking_for` and `Reply.parsed`.
    """

    messages: tuple[ChatMessage, ...] = Field(min_length=1)
    tools: tuple[Tool, ...] = ()
    temperature: float | None = Field(default=None, ge=0, le=2)
    seed: int | None = None
    tokens_max: int | None = Field(default=None, ge=1)
    output: dict[str, Any] | None = None

    def asking_for(self, kind: type[Any]) -> "Prompt":
        """The same request, for an answer as a `kind`: a dataclass, a pydantic model, a TypedDict.
        Errors: InvalidRequest when it has no JSON Schema."""
        try:
            schema = TypeAdapter(kind).json_schema()
        except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
            raise InvalidRequest(field="kind", reason=str(error)) from error
        return self.model_copy(update={"output": schema})

    def plain(self) -> dict[str, Any]:
        """What identifies the request in a journal. `output` stands in it only if there is one, as
        journals from before there was any have it."""
        return self.model_dump(mode="json", exclude=None if self.output else {"output"})

    @staticmethod
    def of(
        text: str,
        *,
        system: str = "",
        temperature: float | None = None,
        seed: int | None = None,
        tokens_max: int | None = None,
    ) -> "Prompt":
        """One question, below instructions if there are any."""
        messages = [ChatMessage(role="system", content=system)] if system else []
        messages.append(ChatMessage(role="user", content=text))
        return Prompt(
            messages=tuple(messages), temperature=temperature, seed=seed, tokens_max=tokens_max
        )


# --- replies --------------------------------------------------------------------------------------


class ModelUsage(Plain):
    """The usage of a call. `cost_microusd` (millionths of a US dollar) is None without prices."""

    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    cost_microusd: int | None = None

    @property
    def tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


class Reply(Plain):
    """A model's answer and where it came from.

    `model` is the requested model, `version` the one that answered according to the service;
    `finish` says why it stopped ("stop", "length", "tool_calls"); `attempts` counts the requests.
    `model_dump(mode="json")` is plain data, and `Reply.model_validate` reads it again.
    """

    text: str
    model: str
    version: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"
    temperature: float | None = None
    seed: int | None = None
    usage: ModelUsage = ModelUsage()
    attempts: int = 1

    @property
    def message(self) -> ChatMessage:
        """The answer as a turn of the conversation."""
        return ChatMessage(role="assistant", content=self.text, tool_calls=self.tool_calls)

    def parsed(self, kind: type[T]) -> T:
        """The text as a `kind`, which the prompt asked for. Errors: ModelFailed with the path of
        what does not fit, and the text: ask again, and say so."""
        try:
            return TypeAdapter(kind).validate_json(_without_fence(self.text))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            reason = f"not what was asked for: {where}: {first['msg']}: {self.text[:500]!r}"
            raise ModelFailed(self.model, reason) from error


class Model(Protocol):
    """A model, which answers prompts."""

    @property
    def name(self) -> str:
        """The name under which its calls are recorded."""

    async def complete(self, prompt: Prompt) -> Reply:
        """Answer `prompt`.

        Errors: ModelFailed, after all attempts. Cancellation: the request is abandoned; it may
        still have been answered and charged.
        """


class TextSink(Protocol):
    """Where the text of an answer goes while it comes."""

    def restart(self) -> None:
        """Forget what came so far: an attempt begins."""

    def append(self, text: str) -> None:
        """Some more of it."""


class StreamingModel(Model, Protocol):
    """A model whose text can be seen while it comes."""

    async def stream(self, prompt: Prompt, into: TextSink) -> Reply:
        """As `complete`; `into` gets the text of the reply piece by piece."""


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens."""

    prompt_usd: float
    completion_usd: float

    @staticmethod
    def parse(text: str) -> "Prices":
        """From `2.5,10`: prompt, completion. Errors: InvalidRequest."""
        try:
            prompt, completion = (float(part) for part in text.split(","))
        except ValueError:
            prompt = completion = math.nan
        if not (0 <= prompt < math.inf and 0 <= completion < math.inf):
            reason = f"{text!r} is not two prices in USD per million tokens, such as 2.5,10"
            raise InvalidRequest(field="BB_MODEL_PRICES", reason=reason)
        return Prices(prompt, completion)

    def cost_microusd(self, usage: ModelUsage) -> int:
        """What `usage` costs, rounded up."""
        # Dollars per million tokens are millionths of a dollar per token.
        spent = usage.prompt_tokens * self.prompt_usd
        return math.ceil(spent + usage.completion_tokens * self.completion_usd)


_FENCE: Final = "```"


def _without_fence(text: str) -> str:
    """The JSON in `text`: some models put it into a block of Markdown."""
    # Not a regular expression: on white space alone, which models produce, it takes cubic time.
    inner = text.strip()
    if len(inner) < 2 * len(_FENCE) or not (inner.startswith(_FENCE) and inner.endswith(_FENCE)):
        return text
    return inner[len(_FENCE) : -len(_FENCE)].removeprefix("json").strip()


# --- without a network ----------------------------------------------------------------------------

Said = str | ToolCall | Sequence[ToolCall]
"""The answer of a script: a text, or tools to call."""


class ScriptedModel:
    """A model that answers from a function of the prompt, or from a list, in its order.

    Prefer a function for tests with crashes: it has no position to lose. Tokens are counted as
    words, so that accounts and costs can be tested.
    """

    def __init__(
        self,
        script: Callable[[Prompt], Said] | Sequence[Said],
        *,
        name: str = "scripted",
        prices: Prices | None = None,
    ) -> None:
        self.name = name
        self.prompts: list[Prompt] = []
        """The prompts, in order."""
        self._script = script
        self._prices = prices

    async def stream(self, prompt: Prompt, into: TextSink) -> Reply:
        """As `complete`; the text comes word by word."""
        into.restart()
        reply = await self.complete(prompt)
        for word in re.findall(r"\S+\s*|\s+", reply.text):
            # Other tasks run between two words, as they do while a service is waited for.
            into.append(word)
            await checkpoint()
        return reply

    async def complete(self, prompt: Prompt) -> Reply:
        """Answer `prompt`. Errors: ModelFailed at the end of a list; what the function raises."""
        self.prompts.append(prompt)
        said = self._next(prompt)
        calls = (said,) if isinstance(said, ToolCall) else () if isinstance(said, str) else said
        text = said if isinstance(said, str) else ""
        usage = ModelUsage(
            prompt_tokens=sum(len(message.content.split()) for message in prompt.messages),
            completion_tokens=len(text.split()) + sum(len(c.arguments.split()) for c in calls),
        )
        if self._prices is not None:
            usage = usage.model_copy(update={"cost_microusd": self._prices.cost_microusd(usage)})
        return Reply(
            text=text,
            tool_calls=tuple(calls),
            model=self.name,
            version=self.name,
            finish="tool_calls" if calls else "stop",
            temperature=prompt.temperature,
            seed=prompt.seed,
            usage=usage,
        )

    def _next(self, prompt: Prompt) -> Said:
        if callable(self._script):
            return self._script(prompt)
        if len(self.prompts) > len(self._script):
            raise ModelFailed(self.name, f"its script has {len(self._script)} answers only")
        return self._script[len(self.prompts) - 1]


# --- the text of a document that grows while a model talks ----------------------------------------


if TYPE_CHECKING:
    from blackboard.client.documents.shared_types import SharedText


class DocumentText:
    """The text of a document, as a TextSink. The text belongs to the call that writes it."""

    def __init__(self, text: "SharedText") -> None:
        self._text = text

    def restart(self) -> None:
        """Remove what an earlier attempt has left, perhaps in a process that died."""
        self._text.delete(0, len(self._text))

    def append(self, text: str) -> None:
        """Add to its end; it is sent in the background."""
        self._text.append(text)

    def complete(self, whole: str) -> None:
        """Add what is missing of an answer that is known: after a restore, for example, which took
        back the text but kept the call. A text that people have edited stays theirs."""
        written = str(self._text)
        if len(written) < len(whole) and whole.startswith(written):
            self._text.append(whole[len(written) :])


async def streamed(model: Model, prompt: Prompt, into: TextSink) -> Reply:
    """Ask `model`; its text goes to `into`, all at once if the model cannot stream."""
    stream = getattr(model, "stream", None)
    if stream is not None:
        reply: Reply = await stream(prompt, into)
        return reply
    reply = await model.complete(prompt)
    into.restart()
    into.append(reply.text)
    return reply


# --- which service to ask, and how patiently ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model of a service that speaks OpenAI's protocol: `url` ends before `/chat/completions` or
    `/embeddings`. The key is not shown."""

    url: str
    model: str
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise InvalidRequest(field="OPENAI_BASE_URL", reason=f"{self.url!r} is not an address")
        if not self.model:
            raise InvalidRequest(field="BB_MODEL", reason="the name of a model is needed")
        # RFC 9110, section 5.5: a field value has no control characters, and only ASCII is safe.
        if not (self.key.isascii() and self.key.isprintable()):
            raise InvalidRequest(field="OPENAI_API_KEY", reason="it cannot stand in a header")

    @staticmethod
    def for_embeddings(environment: Mapping[str, str] | None = None) -> "Endpoint | None":
        """The model that BB_EMBED_MODEL names, at OPENAI_BASE_URL (or at OpenAI) with
        OPENAI_API_KEY; None without BB_EMBED_MODEL. Errors: InvalidRequest, naming the variable."""
        found = os.environ if environment is None else environment
        model = found.get("BB_EMBED_MODEL", "")
        if not model:
            return None
        return Endpoint(
            found.get("OPENAI_BASE_URL") or OPENAI, model, found.get("OPENAI_API_KEY", "")
        )

    def embed(self, texts: Sequence[str]) -> list[Any]:
        """One vector for each text, for `board.memory(embed=endpoint.embed,
        model=endpoint.model)`. Blocks; asks once. Errors: ModelFailed."""
        from blackboard.client.memory.endpoint import embeddings  # few programs ask for them

        return embeddings(self.url, self.model, self.key, texts)


def _is_address(url: str) -> bool:
    """Whether `url` has a host, and a port if it names one."""
    try:
        address = urlsplit(url)
        return address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # a bracket without its other one, or a port that is no number
        return False


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often to try. Errors: InvalidRequest for less than one attempt."""

    timeout_ms: Milliseconds = MODEL_TIMEOUT_MS
    attempts: int = MODEL_ATTEMPTS_MAX
    first_pause_s: float = 0.5

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidRequest(field="attempts", reason=f"{self.attempts} is below 1")
        if self.timeout_ms < 1:
            raise InvalidRequest(field="timeout_ms", reason=f"{self.timeout_ms} is below 1")
        if not 0 <= self.first_pause_s < math.inf:
            raise InvalidRequest(field="first_pause_s", reason=f"{self.first_pause_s} is no pause")
