"""External calls of an agent: their identity, their options, and their records.

Invariants
- two calls have the same digest if and only if name, arguments and version are the same; their
  place in the code does not matter.
- A call returns the same plain data the first time and whenever it is answered from the journal.
"""

import hashlib
import inspect
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    TypeAdapter,
    ValidationInfo,
)
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from blackboard.errors import InvalidRequest, line_of
from blackboard.limits import (
    CALL_ATTEMPTS_MAX,
    CALL_PAUSE_MS_MAX,
    CALL_REASON_BYTES_MAX,
    TTL_MS_MAX,
)
from blackboard.units import Milliseconds
from blackboard.wire.codec import BYTES_KEY, encode_large

Kind = Literal["tool", "model", "decision", "timer"]
_ID_DIGITS = 32
_ADAPTERS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a call is tried: `attempts` in all, if it raises one of `on`.

    Pauses begin with `first_pause_ms`, double up to `pause_ms_max`, and are shortened at random.
    Each failure is recorded before the pause, so that a crash does not reset the count.
    """

    attempts: int = 1
    first_pause_ms: Milliseconds = 200
    pause_ms_max: Milliseconds = 10_000
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= CALL_ATTEMPTS_MAX:
            raise InvalidRequest(field="attempts", reason=f"not in 1..{CALL_ATTEMPTS_MAX}")
        if not 0 <= self.first_pause_ms <= self.pause_ms_max <= CALL_PAUSE_MS_MAX:
            raise InvalidRequest(field="pause_ms_max", reason=f"not in 0..{CALL_PAUSE_MS_MAX}")


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of a call.

    `name` and `version` identify the code: a changed one makes it a different call. By default the
    name is the function's, and the version is "". `at_most_once`: the start of the call is
    recorded; if the process dies during the call, the step gets CallInterrupted instead of a second
    call. `shared_ms`: the team shares the result for that long, and an agent that makes the same
    call gets it without making the call. Every agent that may write below `public/~cache` can then
    provide results. A result that this agent may not share is recorded for itself alone.

    Errors: InvalidRequest for a time that no entry can have.
    """

    name: str = ""
    version: str = ""
    retry: Retry = field(default_factory=Retry)
    at_most_once: bool = False
    shared_ms: Milliseconds | None = None

    def __post_init__(self) -> None:
        if self.shared_ms is not None and not 1 <= self.shared_ms <= TTL_MS_MAX:
            raise InvalidRequest(field="shared_ms", reason=f"not in 1..{TTL_MS_MAX}")


@dataclass(frozen=True, slots=True)
class Call:
    """The identity of a call. `arguments` are plain data."""

    kind: Kind
    name: str
    arguments: Any
    version: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 over name, arguments and version, in hexadecimal."""
        text = canonical([self.kind, self.name, self.version, self.arguments])
        return hashlib.sha256(text.encode()).hexdigest()

    def slot(self, occurrence: int) -> str:
        """The name of the `occurrence`-th call like this one in a step, from 0."""
        return f"{self.digest[:_ID_DIGITS]}-{occurrence}"


def _with_texts(value: Any) -> Any:
    """`value` for JSON: bytes as the wire has them there."""
    if isinstance(value, bytes):
        return {BYTES_KEY: b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _with_texts(item) for key, item in value.items()}
    return [_with_texts(item) for item in value] if isinstance(value, list | tuple) else value


def _with_bytes(value: Any, info: ValidationInfo) -> Any:
    """The argument of `_with_texts`, if this comes from JSON."""
    if info.mode != "json":
        return value
    if isinstance(value, dict):
        if value.keys() == {BYTES_KEY}:
            return b64decode(value[BYTES_KEY], validate=True)
        return {key: _with_bytes(item, info) for key, item in value.items()}
    return [_with_bytes(item, info) for item in value] if isinstance(value, list) else value


Value = Annotated[Any, PlainSerializer(_with_texts, when_used="json"), BeforeValidator(_with_bytes)]
"""A value of the board: JSON types and bytes, in a model that is written as JSON."""


class Failure(BaseModel):
    """One attempt that failed."""

    model_config = ConfigDict(frozen=True)

    reason: str
    duration_ms: int = 0


class CallRecord(BaseModel):
    """The journal's record of a call.

    `number` counts the calls of the step, from 0; `step` is that step's number (0: of a version
    that did not record it). `outcome` is "begun" between attempts (and, of a call that is made at
    most once, during the last one that is in `begun`). A large `result` is stored beside the
    record, in one entry or in parts: then `apart` is set. `shared`: another agent had made the
    call, or this one in revisions that a restore abandoned. A model's result is its Reply: model,
    version, temperature, seed, usage.
    """

    model_config = ConfigDict(frozen=True)

    number: int = Field(ge=0)
    kind: Kind
    name: str
    digest: str
    version: str = ""
    arguments: Any = None
    outcome: Literal["begun", "done", "failed"]
    result: Value = None
    apart: bool = False
    result_digest: str = ""
    result_bytes: int = 0
    failures: tuple[Failure, ...] = ()
    begun: int = 0
    duration_ms: int = 0
    shared: bool = False
    step: int = 0

    def plain(self) -> dict[str, Any]:
        """The stored form."""
        failures = [failure.model_dump() for failure in self.failures]
        return self.model_dump(exclude={"failures"}) | {"failures": failures}


def canonical(value: Any) -> str:
    """A canonical text of arguments: keys and elements of sets sorted, models and dataclasses as
    their fields.

    Errors: InvalidRequest when `value` cannot be serialized.
    """
    try:
        plain = to_jsonable_python(value, bytes_mode="base64")
        return _text(in_order(value, plain))
    except (PydanticSerializationError, TypeError, ValueError) as error:
        raise InvalidRequest(field="arguments", reason=str(error)) from error


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def in_order(value: Any, plain: Any) -> Any:
    """`plain`, the plain data of `value`, with the elements of sets in the same order in every
    process: they come in that of their hashes."""
    if isinstance(value, RootModel):
        value = value.root
    if isinstance(plain, dict):
        found = {name: in_order(one, plain[name]) for one, name in _fields(value, plain)}
        return plain | found
    if not isinstance(plain, list) or not isinstance(value, list | tuple | set | frozenset):
        return plain
    if len(value) == len(plain):
        plain = [in_order(*pair) for pair in zip(value, plain, strict=True)]
    return sorted(plain, key=_text) if isinstance(value, set | frozenset) else plain


def _fields(value: Any, plain: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """The values of a dict, a model or a dataclass, with their names in its plain data."""
    if isinstance(value, dict) and len(value) == len(plain):
        yield from zip(value.values(), plain, strict=True)
    elif isinstance(value, BaseModel):
        for name, described in type(value).model_fields.items():
            for written in (described.serialization_alias, described.alias, name):
                if written in plain:
                    yield getattr(value, name), written
    elif is_dataclass(value):
        for each in fields(value):
            if each.name in plain:
                yield getattr(value, each.name), each.name


def name_of(function: Callable[..., Any], terms: CallOptions) -> str:
    """The name under which calls of `function` are recorded.

    Errors: InvalidRequest for a function without a name, such as a lambda.
    """
    name = terms.name or getattr(function, "__qualname__", "<")
    if name.rpartition(".")[2].startswith("<"):
        raise InvalidRequest(field="name", reason="it has none; give it one: Terms(name=...)")
    return str(name)


def takes_key(function: Callable[..., Any]) -> bool:
    """Whether `function` asks for its idempotency key: a keyword-only parameter of that name."""
    try:
        parameter = inspect.signature(function).parameters.get("idempotency_key")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY


@lru_cache(maxsize=_ADAPTERS_MAX)
def _adapter(function: Callable[..., Any]) -> "TypeAdapter[Any] | None":
    try:
        returned = get_type_hints(function).get("return", Any)
        return None if returned is Any else TypeAdapter(returned)
    except (NameError, TypeError, PydanticSchemaGenerationError, PydanticUserError):
        # An annotation that pydantic does not know is no error of the call: most tools return plain
        # data, which needs no adapter.
        return None


def adapter_of(function: Callable[..., Any]) -> "TypeAdapter[Any] | None":
    """The adapter between results of `function` and plain data, by its annotation."""
    try:
        # A bound method would keep its object alive in the cache.
        return _adapter(getattr(function, "__func__", function))
    except TypeError:  # an object that can be called and has no hash, and no annotation either
        return None


def plain_result(value: Any, adapter: "TypeAdapter[Any] | None") -> bytes:
    """A result as an encoded value. Errors: InvalidRequest, LimitExceeded (LARGE_BYTES_MAX)."""
    # First as it is: the JSON form of an adapter makes text of bytes, or fails.
    try:
        return encode_large(value)
    except InvalidRequest:
        if adapter is None:
            raise
    try:
        return encode_large(adapter.dump_python(value, mode="json"))
    except (TypeError, ValueError) as error:  # such as bytes that are no text, beside a time
        raise InvalidRequest(field="result", reason=str(error)) from error


def reason_of(error: Exception) -> str:
    """An error as text for the record."""
    text = line_of(error).encode(errors="replace")
    # The cut may fall inside of a character.
    return text[:CALL_REASON_BYTES_MAX].decode(errors="ignore")
