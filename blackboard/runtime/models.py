"""Models: prompts, replies, and a scripted model for tests.

    reply = await model.complete(Prompt.of("How much?", temperature=0.0, seed=7))
    print(reply.text, reply.version, reply.usage.tokens)

`ChatModel` (runtime/chat.py) asks a service; `ScriptedModel` answers from a function, without a
network and without a key.

Invariant: a reply records the model, its version, temperature and seed, and the cost, so that its
origin can be traced later.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from blackboard.errors import InvalidRequest, ModelFailed

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
    """A request to a model. Fields that are None are not sent, so the service's defaults apply."""

    messages: tuple[ChatMessage, ...] = Field(min_length=1)
    tools: tuple[Tool, ...] = ()
    temperature: float | None = Field(default=None, ge=0, le=2)
    seed: int | None = None
    tokens_max: int | None = Field(default=None, ge=1)

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
        spent = usage.prompt_tokens * self.prompt_usd
        return math.ceil(spent + usage.completion_tokens * self.completion_usd)


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
