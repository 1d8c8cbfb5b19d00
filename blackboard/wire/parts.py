"""The parts of requests: validated fields, operations, conditions.

Each operation and condition is a model that turns into its noun of `core/commit.py` by `to_core`.
Used by `wire/messages.py` only, whose invariants hold here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from blackboard import limits
from blackboard.core import commit as core
from blackboard.core.path import check_holder, check_key, check_name, check_prefix, parse_pattern
from blackboard.errors import InvalidRequest, LimitExceeded, Rejected
from blackboard.wire.frames import exported_in

TOKEN_BYTES_MAX: Final = 8192
"""A bearer token: it also travels as a header, whose lines web servers bound at about that."""

# --- fields ---------------------------------------------------------------------------------------


def _refuse(error: Rejected) -> PydanticCustomError:
    reason = error.reason if isinstance(error, InvalidRequest) else str(error)
    text = reason.replace("{", "(").replace("}", ")")
    return PydanticCustomError("refused", text, {"error": error})


def checked_by(check: Callable[[str], Any]) -> AfterValidator:
    """A validator that says what `check` says, with the path of the field."""

    def validate(text: str) -> str:
        try:
            check(text)
        except Rejected as error:
            raise _refuse(error) from error
        return text

    return AfterValidator(validate)


def _value(value: Any, info: ValidationInfo) -> bytes:
    encoding: Any = info.context
    try:
        encoded: bytes = encoding.value_in(value)
        return encoded
    except Rejected as error:
        raise _refuse(error) from error


def _exported(value: Any, info: ValidationInfo) -> bytes:
    encoding: Any = info.context
    try:
        return exported_in(value, encoding)
    except Rejected as error:
        raise _refuse(error) from error


def checked_note(text: str) -> str:
    """The note of a commit, if it is short enough."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise _refuse(InvalidRequest(field="note", reason="is not Unicode text")) from error
    if size > limits.NOTE_BYTES_MAX:
        raise _refuse(LimitExceeded("NOTE_BYTES_MAX", size, limits.NOTE_BYTES_MAX))
    return text


def up_to(maximum: int) -> Any:
    """A list that may be left out, of at most `maximum` items."""
    return Field(default_factory=list, max_length=maximum)  # copying a default list costs 1 us


@dataclass(frozen=True)
class _Described:
    """Puts a description into the published schema.

    A shared `Field(description=...)` would do too, but pydantic before 2.12 writes the default of
    one member that uses it into all others.
    """

    text: str

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "description": self.text}


SHORT = StringConstraints(max_length=limits.SEGMENT_BYTES_MAX)
Name = Annotated[str, SHORT, checked_by(check_name), _Described("a name: one segment of a key")]
Holder = Annotated[
    str,
    SHORT,
    checked_by(check_holder),
    _Described("`<name>~<anything>`, in a name with dots an @ where its account ends"),
]
KeyText = Annotated[str, checked_by(check_key), _Described("a key: docs/keys.md")]
PrefixText = Annotated[str, checked_by(check_prefix), _Described("a key path, no trailing slash")]
PatternText = Annotated[
    str, checked_by(parse_pattern), _Described("a key path; * is one segment, ** the rest")
]
RevisionNumber = Annotated[int, Ge(0), Le(limits.REVISION_MAX)]
Fence = Annotated[int, Ge(1), Le(limits.REVISION_MAX)]
FenceOrTicket = Annotated[int, Ge(0), Le(limits.REVISION_MAX)]
Integer = Annotated[int, Ge(-limits.INTEGER_MAX), Le(limits.INTEGER_MAX)]
EntryTtl = Annotated[int, Ge(1), Le(limits.TTL_MS_MAX)]
LeaseTtl = Annotated[int, Ge(limits.LEASE_TTL_MS_MIN), Le(limits.TTL_MS_MAX)]
Token = Annotated[str, StringConstraints(max_length=TOKEN_BYTES_MAX)]
Value = Annotated[
    bytes,
    PlainValidator(_value),
    WithJsonSchema(
        {
            "description": "JSON: any JSON value, bytes as {'$bytes': base64}; msgpack: `bin` that "
            f"holds the msgpack of the value. At most {limits.VALUE_BYTES_MAX} bytes of msgpack "
            f"and {limits.VALUE_DEPTH_MAX} levels of nesting."
        }
    ),
]


ExportedValue = Annotated[
    bytes,
    PlainValidator(_exported),
    WithJsonSchema(
        {
            "description": "A value; or one that is sealed, as it was exported: "
            "JSON {'$sealed': base64}; msgpack: `bin`."
        }
    ),
]


class WireModel(BaseModel):
    """What all models share: nothing is converted, and unknown members are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


# --- operations and conditions --------------------------------------------------------------------


class Put(WireModel):
    """Set `key` to `value`; with `ttl_ms` the entry expires that long after the commit."""

    kind: Literal["put"]
    key: KeyText
    value: Value
    ttl_ms: EntryTtl | None = None

    def to_core(self) -> core.Op:
        """The same in the words of the core."""
        return core.Put(self.key, self.value, self.ttl_ms)


class Delete(WireModel):
    """Remove `key`; an absent key is no error."""

    kind: Literal["delete"]
    key: KeyText

    def to_core(self) -> core.Op:
        """The same in the words of the core."""
        return core.Delete(self.key)


class DeletePrefix(WireModel):
    """Remove every key below `prefix`."""

    kind: Literal["delete_prefix"]
    prefix: PrefixText

    def to_core(self) -> core.Op:
        """The same in the words of the core."""
        return core.DeletePrefix(self.prefix)


class Append(WireModel):
    """Add `value` as the next item below `prefix`."""

    kind: Literal["append"]
    prefix: PrefixText
    value: Value
    ttl_ms: EntryTtl | None = None

    def to_core(self) -> core.Op:
        """The same in the words of the core."""
        return core.Append(self.prefix, self.value, self.ttl_ms)


class Increment(WireModel):
    """Add `by` to the integer at `key` (absent = 0)."""

    kind: Literal["increment"]
    key: KeyText
    by: Integer

    def to_core(self) -> core.Op:
        """The same in the words of the core."""
        return core.Increment(self.key, self.by)


class Grant(WireModel):
    """Grant lease `key` to `holder`; its fence is the revision of the commit.

    With `wait`, join its queue while somebody has it.
    """

    kind: Literal["grant"]
    key: KeyText
    holder: Holder
    ttl_ms: LeaseTtl
    wait: bool = False

    def to_core(self) -> core.Op:
        """The same in the words of the core."""
        return core.Grant(self.key, self.holder, self.ttl_ms, self.wait)


class Renew(WireModel):
    """Prolong lease `key` to `ttl_ms` from now; with fence 0, the ticket of a waiting holder."""

    kind: Literal["renew"]
    key: KeyText
    holder: Holder
    fence: FenceOrTicket
    ttl_ms: LeaseTtl

    def to_core(self) -> core.Op:
        """The same in the words of the core."""
        return core.Renew(self.key, self.holder, self.fence, self.ttl_ms)


class Release(WireModel):
    """End lease `key`, and grant it to who waits next; with fence 0, leave its queue."""

    kind: Literal["release"]
    key: KeyText
    holder: Holder
    fence: FenceOrTicket

    def to_core(self) -> core.Op:
        """The same in the words of the core."""
        return core.Release(self.key, self.holder, self.fence)


class Expire(WireModel):
    """As release, by anybody, of a lease that has run out."""

    kind: Literal["expire"]
    key: KeyText
    holder: Holder
    fence: Fence

    def to_core(self) -> core.Op:
        """The same in the words of the core."""
        return core.Expire(self.key, self.holder, self.fence)


Operation = Annotated[
    Put | Delete | DeletePrefix | Append | Increment | Grant | Renew | Release | Expire,
    Field(discriminator="kind"),
]


class KeyAt(WireModel):
    """`key` was last written at `revision`; 0 = it does not exist, -1 = it exists."""

    kind: Literal["key_at"]
    key: KeyText
    revision: Annotated[int, Field(ge=core.PRESENT, le=limits.REVISION_MAX)]

    def to_core(self) -> core.Condition:
        """The same in the words of the core."""
        return core.KeyAt(self.key, self.revision)


class PrefixUnchanged(WireModel):
    """No key below `prefix` was written or removed after revision `since`."""

    kind: Literal["prefix_unchanged"]
    prefix: PrefixText
    since: RevisionNumber

    def to_core(self) -> core.Condition:
        """The same in the words of the core."""
        return core.PrefixUnchanged(self.prefix, self.since)


Condition = Annotated[KeyAt | PrefixUnchanged, Field(discriminator="kind")]


class HeldFence(WireModel):
    """The commit relies on lease `key` as granted to `holder` at revision `fence`."""

    key: KeyText
    holder: Holder
    fence: Fence


class CommitName(WireModel):
    """Names a commit of the agent, so that a retry is recognised."""

    lane: Annotated[int, Field(ge=0, lt=limits.LANES_MAX)]
    incarnation: Name
    step: Annotated[int, Field(ge=0, le=limits.INTEGER_MAX)]


Ground = Annotated[tuple[KeyText, RevisionNumber], Field(strict=False)]
"""A key that was read, and the revision that it was last written at then."""
