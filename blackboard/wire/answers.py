"""What the service sends, written and read: results, and what a watch is sent.

A result is declared once, and the table of methods (`wire/methods.py`) names it. The service writes
results by the table, the client reads them by it, and the published schema and the tables of
docs/protocol.md are made from it. Most results are records of `core/`, whose members the message
has. One that looks different on the wire is declared here, as a `Message`: `of` makes it of what
the service has, and `to_core` gives that back.

A member that a message may lack is UNSET here. In msgpack a value travels as the bytes that it is
stored as, in JSON as natural JSON.

Invariants
- `read(kind, write(kind, found, encoding), encoding) == found`, in either encoding.
- A reader returns the right types or raises RemoteProtocolError, with the path of what is wrong and
  the reason, for any input. Members that it does not know are ignored.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from blackboard.core.access import AccessGrant, Principal, Right
from blackboard.core.checkpoints import (
    Checkpoint,
    CheckpointInfo,
    Difference,
    Differences,
    ExportPage,
    Version,
)
from blackboard.core.commit import (
    Cause,
    Change,
    ChangeKind,
    CommitId,
    Directory,
    Entry,
    Epoch,
    Head,
    Lease,
    LogEntry,
    LogPage,
    Proof,
    Reading,
    Receipt,
    Result,
    Waiter,
    name_of,
    narrowed_from,
    signature,
)
from blackboard.core.watch import Position
from blackboard.wire.errors import ErrorMessage, from_peer
from blackboard.wire.frames import (
    JSON,
    MSGPACK,
    Encoding,
    exported_in,
    exported_out,
)

# --- writing and reading --------------------------------------------------------------------------


class _InJson(NamedTuple):
    """How the members named `value` are written in JSON, and read."""

    out: Callable[[bytes], Any]
    back: Callable[[Any], bytes]


_PLAIN: Final = _InJson(JSON.value_out, JSON.value_from_service)
_EXPORTED: Final = _InJson(
    lambda value: exported_out(value, JSON), lambda value: exported_in(value, JSON)
)


class Message(Struct, frozen=True, gc=False):
    """A message that differs from what it is about."""

    noun: ClassVar[type | None] = None
    """The record that it is about. A member has the name of the record's (or of that in `renamed`),
    and the form that its type says (`_form_of`); one that may be UNSET is left out if the record
    has the default."""
    renamed: ClassVar[Mapping[str, str]] = {}
    values: ClassVar[_InJson | None] = None
    """Set if its parts have members named `value`."""

    @classmethod
    def of(cls, found: Any, /) -> Self:
        """The message about `found`; one without a `noun` has it as its only member."""
        made: Self = cls(found) if cls.noun is None else _form(cls).out(found)
        return made

    def to_core(self) -> Any:
        """What the message is about. Errors: ValueError, Rejected."""
        if self.noun is None:
            return getattr(self, self.__struct_fields__[0])
        return _form(type(self)).back(self)


@dataclass(frozen=True, slots=True)
class _Form:
    """In the annotation of a member: how it is made of the record's, and what that was."""

    out: Callable[[Any], Any]
    back: Callable[[Any], Any]


def _same(member: Any) -> Any:
    return member


def _bytes(value: bytes) -> bytes:
    return value if type(value) is bytes else bytes(value)  # a decrypted value is a subclass


Hex = Annotated[str, _Form(bytes.hex, bytes.fromhex)]
Value = Annotated[bytes, _Form(_bytes, _same)]


@cache
def _form(kind: type[Message]) -> _Form:
    """How a message is made of its record. Both functions are generated, as those of dataclasses
    are: a page has a thousand entries, and a loop over the members takes several times as long."""
    known: dict[str, Any] = {"message": kind, "noun": kind.noun, "UNSET": UNSET}
    defaults = _defaults(kind.noun)
    out, back = [], []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name not in kind.__struct_fields__:
            continue
        its = kind.renamed.get(name, name)
        form, default = _form_of(hint), defaults.get(its)
        known |= {f"default_{name}": default}
        known |= {} if form is None else {f"out_{name}": form.out, f"back_{name}": form.back}
        written = f"found.{its}" if form is None else f"out_{name}(found.{its})"
        read = f"found.{name}" if form is None else f"back_{name}(found.{name})"
        if UnsetType in get_args(hint):
            is_default = f"found.{its} is None" if default is None else f"not found.{its}"
            written = f"UNSET if {is_default} else {written}"
            read = f"default_{name} if found.{name} is UNSET else {read}"
        out.append(f"{name}={written}")
        back.append(f"{its}={read}")
    exec(f"def out(found): return message({', '.join(out)})", known)  # noqa: S102
    exec(f"def back(found): return noun({', '.join(back)})", known)  # noqa: S102
    return _Form(known["out"], known["back"])


def _defaults(noun: Any) -> dict[str, Any]:
    """The defaults of a record; the factories that there are make empty maps."""
    if issubclass(noun, Struct):
        return {f.name: f.default for f in msgspec.structs.fields(noun) if not f.required}
    made: dict[str, Any] = {
        f.name: {} for f in dataclasses.fields(noun) if f.default_factory is not MISSING
    }
    given = {f.name: f.default for f in dataclasses.fields(noun) if f.default is not MISSING}
    return made | given


def _form_of(hint: Any) -> _Form | None:
    """The form of a member; None if it is that of the record."""
    parts = [part for part in get_args(hint) if part is not UnsetType]
    if get_origin(hint) is Annotated:
        return next((part for part in parts if isinstance(part, _Form)), _form_of(parts[0]))
    if get_origin(hint) in (Union, UnionType):
        forms = [_form_of(part) for part in parts if part is not NoneType]
        form = forms[0] if len(forms) == 1 else None
        return form if form is None or NoneType not in parts else _or_none(form)
    if get_origin(hint) is tuple and parts[1:] == [...]:
        item = _form_of(parts[0])
        return None if item is None else _each(item)
    if not (isinstance(hint, type) and issubclass(hint, Message)):
        return None
    is_made = hint.noun is not None and hint.__dict__.keys().isdisjoint({"of", "to_core"})
    return _form(hint) if is_made else _Form(hint.of, hint.to_core)


def _or_none(form: _Form) -> _Form:
    out, back = form.out, form.back
    return _Form(
        lambda found: None if found is None else out(found),
        lambda found: None if found is None else back(found),
    )


def _each(form: _Form) -> _Form:
    out, back = form.out, form.back
    return _Form(
        lambda found: tuple([out(each) for each in found]),
        lambda found: tuple([back(each) for each in found]),
    )


class _Result(NamedTuple):
    """How results of a kind are written and read."""

    name: str
    out: Callable[[Any], Any]
    back: Callable[[Any], Any]
    values: _InJson | None


@cache
def _result(kind: Any) -> _Result:
    is_list = get_origin(kind) is list
    item = get_args(kind)[0] if is_list else kind
    name = getattr(item, "__name__", "result").removesuffix("Message").lower()
    if not (isinstance(item, type) and issubclass(item, Message)):
        return _Result(name, write_noun, _same, None)
    form = _form_of(item)
    assert form is not None, "every message has one"
    out, back = form.out, form.back
    if is_list:
        return _Result(name, partial(_map, out), partial(_map, back), item.values)
    return _Result(name, out, back, item.values)


def _map(turn: Callable[[Any], Any], items: Any) -> list[Any]:
    return [turn(item) for item in items]


def write(kind: Any, found: Any, encoding: Encoding) -> Any:
    """A result as `encoding.pack` takes it; `kind` is what the table of methods says about it."""
    result = _result(kind)
    return _plain(result.out(found), result.values, encoding)


def _plain(written: Any, values: _InJson | None, encoding: Encoding) -> Any:
    """A message, or a list of them, as `encoding.pack` takes it."""
    if encoding.binary or values is None:
        return written
    return _with_values(msgspec.to_builtins(written, builtin_types=(bytes,)), values.out)


def _with_values(part: Any, turn: Callable[[Any], Any]) -> Any:
    if type(part) is dict:
        return {n: turn(m) if n == "value" else _with_values(m, turn) for n, m in part.items()}
    if type(part) in (list, tuple):
        return [_with_values(item, turn) for item in part]
    return part


def write_noun(noun: Any) -> Any:
    """A result whose message has the members of its record; members that are None are left out."""
    if isinstance(noun, list | tuple):
        return [write_noun(each) for each in noun]
    message = msgspec.to_builtins(noun)
    if not isinstance(message, dict):
        return message
    return {name: member for name, member in message.items() if member is not None}


def read(kind: Any, message: Any, encoding: Encoding = MSGPACK) -> Any:
    """The result that `write` wrote. Errors: RemoteProtocolError."""
    if kind is None:
        return None
    name, _, back, values = _result(kind)
    with from_peer(name):
        if values is not None and not encoding.binary:
            message = _with_values(message, values.back)
        return back(msgspec.convert(message, kind, builtin_types=(bytes,)))


def _author(name: str, account: str | UnsetType) -> str:
    """The signature of an author. Older services send no account. Errors: ValueError."""
    return name if account is UNSET else signature(name, _account(name, account))


def _account(name: str, account: str | UnsetType) -> str:
    """The account from which `name` was narrowed, "" if it was not. Errors: ValueError."""
    if account is UNSET:
        return ""
    if account and not name.startswith(account + "."):
        raise ValueError(f"{name!r} is not narrowed from {account!r}")
    return account


# --- the connection -------------------------------------------------------------------------------


class WelcomeMessage(Struct, frozen=True):
    """Result of `hello`: who you are, the service that answers, and its limits.

    `account` is the account for which `agent` acts: for a narrowed token, the one to which the
    original token was issued.
    """

    principal: str
    agent: str
    account: str
    engine: str
    level: str
    server_time_ms: int
    version: str
    limits: dict[str, int]
    traces: bool = False
    """Whether requests may have a `traceparent`; older services refuse one."""


class Greeted(Struct, frozen=True):
    """What a client needs of a WelcomeMessage; older services send no account."""

    agent: str
    account: str | None = None
    traces: bool = False


class GrantMessage(Struct, frozen=True):
    """Rights on every key that a pattern matches."""

    pattern: str
    rights: tuple[str, ...]


class IdentityMessage(Message, frozen=True):
    """Result of `whoami`: the principal of the token, and the agent that the connection acts as.

    `grants` are the principal's; an empty list of boards means all of them.
    """

    principal: str
    agent: str
    grants: tuple[GrantMessage, ...]
    boards: tuple[str, ...]
    expires_at_ms: int | UnsetType = UNSET

    @classmethod
    def of(cls, found: tuple[Principal, str], /) -> Self:
        """Of the principal, and the agent."""
        principal, agent = found
        return cls(
            principal.name,
            agent,
            tuple([GrantMessage(g.pattern, tuple(sorted(g.rights))) for g in principal.grants]),
            tuple(sorted(principal.boards)),
            UNSET if principal.expires_at_ms is None else principal.expires_at_ms,
        )

    def to_core(self) -> Principal:
        """The principal. Errors: ValueError."""
        return Principal(
            self.principal,
            tuple([AccessGrant(g.pattern, frozenset(map(Right, g.rights))) for g in self.grants]),
            frozenset(self.boards),
            None if self.expires_at_ms is UNSET else self.expires_at_ms,
        )


class WatchMessage(Message, frozen=True):
    """Result of `watch`: the resume token at which it begins."""

    position: str

    @classmethod
    def of(cls, found: Position, /) -> Self:
        """Of the position."""
        return cls(str(found))

    def to_core(self) -> Position:
        """The position. Errors: InvalidRequest."""
        return Position.parse(self.position)


# --- entries and leases ---------------------------------------------------------------------------


class EntryMessage(Message, frozen=True):
    """What a key holds. `account` is present if the author's name was narrowed from it,
    `created_ms` if the key was written again since and the time of `create_revision` is known."""

    values = _PLAIN
    key: str
    value: bytes
    mod_revision: int
    create_revision: int
    author: str
    time_ms: int
    expires_at_ms: int | UnsetType = UNSET
    account: str | UnsetType = UNSET
    created_ms: int | UnsetType = UNSET

    @classmethod
    def of(cls, found: Entry, /) -> Self:
        """Of an entry."""
        return cls(
            found.key,
            _bytes(found.value),
            found.mod_revision,
            found.create_revision,
            name_of(found.author),
            found.time_ms,
            UNSET if found.expires_at_ms is None else found.expires_at_ms,
            narrowed_from(found.author) or UNSET,
            UNSET if found.first_ms is None else found.first_ms,
        )

    def to_core(self) -> Entry:
        """The entry. Errors: ValueError."""
        return Entry(
            self.key,
            self.value,
            self.mod_revision,
            self.create_revision,
            _author(self.author, self.account),
            self.time_ms,
            None if self.expires_at_ms is UNSET else self.expires_at_ms,
            None if self.created_ms is UNSET else self.created_ms,
        )


class ReadingMessage(Message, frozen=True):
    """Result of `read` and `list`; `next_key` continues a listing that was cut short, `directories`
    belong to one with `delimiter`."""

    noun = Reading
    values = _PLAIN
    revision: int
    epoch: str
    entries: tuple[EntryMessage, ...]
    next_key: str | UnsetType = UNSET
    directories: tuple[Directory, ...] | UnsetType = UNSET


class WaiterMessage(Message, frozen=True):
    """A waiter in the queue of a lease."""

    noun = Waiter
    holder: str
    ttl_ms: int
    until_ms: int


class LeaseMessage(Message, frozen=True):
    """A granted lease, with its waiters in order."""

    noun = Lease
    key: str
    holder: str
    fence: int
    until_ms: int
    waiters: tuple[WaiterMessage, ...] | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET


class LeasesMessage(Message, frozen=True):
    """Result of `leases`; `next_key` continues a listing that was cut short."""

    noun = Reading
    revision: int
    epoch: str
    leases: tuple[LeaseMessage, ...]
    next_key: str | UnsetType = UNSET


# --- commits and the log --------------------------------------------------------------------------


class ReceiptMessage(Message, frozen=True):
    """Result of `commit`. `results` are what the operations computed; `level` says what the commit
    survives."""

    noun = Receipt
    revision: int
    time_ms: int
    results: tuple[Result, ...]
    level: str
    duplicate: bool | UnsetType = UNSET


class ChangeMessage(Message, frozen=True):
    """One absolute effect on a key (`value`) or a lease (`lease`)."""

    values = _PLAIN
    noun = Change
    kind: Annotated[str, _Form(_same, ChangeKind)]
    key: str
    value: Value | UnsetType = UNSET
    expires_at_ms: int | UnsetType = UNSET
    item: int | UnsetType = UNSET
    lease: LeaseMessage | UnsetType = UNSET


class RevisionMessage(Message, frozen=True):
    """The part of a revision that you may read. `digest` is the SHA-256 of the whole, in
    hexadecimal.

    `epoch` is set on a revision that begins one, `account` if the author's name was narrowed from
    it.
    """

    values = _PLAIN
    revision: int
    time_ms: int
    author: str
    changes: tuple[ChangeMessage, ...]
    digest: str
    based_on: tuple[tuple[str, int], ...] | UnsetType = UNSET
    note: str | UnsetType = UNSET
    epoch: Epoch | UnsetType = UNSET
    account: str | UnsetType = UNSET

    @classmethod
    def of(cls, found: LogEntry, /) -> Self:
        """Of a log entry."""
        return cls(
            found.revision,
            found.time_ms,
            found.author,
            tuple([ChangeMessage.of(change) for change in found.changes]),
            found.digest.hex(),
            found.based_on or UNSET,
            found.note or UNSET,
            UNSET if found.epoch is None else found.epoch,
            found.account or UNSET,
        )

    def to_core(self) -> LogEntry:
        """The log entry, with the changes that the reader may see. Errors: ValueError."""
        return self._entry(tuple([change.to_core() for change in self.changes]))

    def _entry(self, changes: tuple[Change, ...]) -> LogEntry:
        return LogEntry(
            self.revision,
            self.time_ms,
            CommitId(self.author, 0, "", 0),
            changes,
            bytes.fromhex(self.digest),
            () if self.based_on is UNSET else self.based_on,
            "" if self.note is UNSET else self.note,
            None if self.epoch is UNSET else self.epoch,
            account="" if self.account is UNSET else _account(self.author, self.account),
        )


class ProofMessage(Message, frozen=True):
    """What is needed, in addition to the visible part of a revision, to compute its digest: the
    `salts` of its changes, in `contents` the SHA-256 of each value that is stored encrypted, and
    the `leaves` of everything else; in hexadecimal.
    """

    noun = Proof
    salts: tuple[Hex, ...]
    contents: tuple[Hex | None, ...]
    leaves: tuple[Hex, ...]


class LogMessage(Message, frozen=True):
    """Result of `log`: the readable part of the entries up to `through`, and the board's head.

    `proofs`, if requested, has one item per revision; null where there is none.
    """

    noun = LogPage
    renamed: ClassVar[Mapping[str, str]] = {"revisions": "entries"}
    values = _PLAIN
    head: Head
    revisions: tuple[RevisionMessage, ...]
    through: int
    proofs: tuple[ProofMessage | None, ...] | UnsetType = UNSET


class CauseMessage(Message, frozen=True):
    """One commit of the result of `why`. `account` is present if the author's name was narrowed
    from it."""

    noun = Cause
    key: str
    revision: int
    depth: int
    author: str
    time_ms: int
    note: str
    based_on: tuple[tuple[str, int], ...]
    missing: str
    account: str | UnsetType = UNSET

    def to_core(self) -> Cause:
        """The cause. Errors: ValueError."""
        _account(self.author, self.account)
        found: Cause = _form(CauseMessage).back(self)
        return found


# --- history --------------------------------------------------------------------------------------

_MAP: Final = _Form(dict, _same)


class ManifestMessage(Message, frozen=True):
    """Result of `manifest`; hashes in hexadecimal, `digests` by namespace, `steps` by agent, and
    likewise `memory`, if there was a barrier."""

    noun = CheckpointInfo
    checkpoint: Annotated[Checkpoint, _Form(write_noun, _same)]
    epoch: Epoch
    chain: str
    previous: str
    digests: Annotated[dict[str, str], _MAP]
    steps: Annotated[dict[str, int], _MAP]
    declared: Annotated[dict[str, Any], _MAP]
    signed_by: str
    memory: Annotated[dict[str, int], _MAP] | UnsetType = UNSET


class DifferenceMessage(Message, frozen=True):
    """A key that two moments do not hold alike; a side that is absent held nothing."""

    noun = Difference
    key: str
    before: EntryMessage | UnsetType = UNSET
    after: EntryMessage | UnsetType = UNSET


def _entry_message(entry: Entry | None) -> EntryMessage | UnsetType:
    return UNSET if entry is None else EntryMessage.of(entry)


def _entry(message: EntryMessage | UnsetType) -> Entry | None:
    return None if message is UNSET else message.to_core()


class DifferencesMessage(Message, frozen=True):
    """Result of `differences`: the revisions compared; `next_key` continues."""

    noun = Differences
    values = _PLAIN
    a: int
    b: int
    differences: tuple[DifferenceMessage, ...]
    next_key: str | UnsetType = UNSET


class VersionMessage(Message, frozen=True):
    """One item of the result of `history`; without `entry` the key was removed then.

    `account` is there if the author's name was narrowed from it.
    """

    values = _PLAIN
    key: str
    revision: int
    time_ms: int
    author: str
    account: str | UnsetType = UNSET
    entry: EntryMessage | UnsetType = UNSET

    @classmethod
    def of(cls, found: Version, /) -> Self:
        """Of a version of a key."""
        return cls(
            found.key,
            found.revision,
            found.time_ms,
            name_of(found.author),
            narrowed_from(found.author) or UNSET,
            _entry_message(found.entry),
        )

    def to_core(self) -> Version:
        """The version. Errors: ValueError."""
        author = _author(self.author, self.account)
        return Version(self.key, self.revision, self.time_ms, author, _entry(self.entry))


class ExportMessage(Message, frozen=True):
    """Result of `export`; the first page has the manifest, its signature and the counters."""

    values = _EXPORTED
    revision: int
    entries: tuple[EntryMessage, ...]
    next_key: str | UnsetType = UNSET
    manifest: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    items: tuple[tuple[str, int], ...] | UnsetType = UNSET

    @classmethod
    def of(cls, found: ExportPage, /) -> Self:
        """Of a page of an export."""
        is_first = bool(found.manifest)
        return cls(
            found.revision,
            tuple([EntryMessage.of(entry) for entry in found.entries]),
            UNSET if found.next_key is None else found.next_key,
            found.manifest.decode() if is_first else UNSET,
            found.signature.hex() if is_first else UNSET,
            found.items if is_first else UNSET,
        )

    def to_core(self) -> ExportPage:
        """The page. Errors: ValueError, InvalidRequest, LimitExceeded."""
        entries = [entry.to_core() for entry in self.entries]
        return ExportPage(
            self.revision,
            tuple([replace(each, value=exported_in(each.value, MSGPACK)) for each in entries]),
            None if self.next_key is UNSET else self.next_key,
            b"" if self.manifest is UNSET else self.manifest.encode(),
            b"" if self.signature is UNSET else bytes.fromhex(self.signature),
            () if self.items is UNSET else self.items,
        )


# --- the service ----------------------------------------------------------------------------------


class KeysMessage(Message, frozen=True):
    """Result of `erase` and `rewrap`: the number of data keys that were destroyed or rewrapped."""

    keys: int


class RevokedMessage(Message, frozen=True):
    """Result of `revoke`: the number of tokens and principals that are now revoked."""

    revoked: int


class TokenMessage(Message, frozen=True):
    """Result of `issue`: the token, which is stored nowhere."""

    token: str


class AuditMessage(Message, frozen=True):
    """A record of the audit. Pass its `key` to continue after it."""

    key: str
    time_ms: int
    principal: str
    token: str
    verb: str
    board: str
    what: str
    outcome: str
    writer: str = ""
    number: int = 0
    previous: str = ""
    count: int = 1
    sealed_with: str = ""
    seal: str = ""
    checked: str = ""

    @classmethod
    def of(cls, found: tuple[str, Any], /) -> Self:
        """Of a key, and the record with it."""
        key, record = found
        return cls(key, **dataclasses.asdict(record))

    def to_core(self) -> Self:
        """The message itself."""
        return self


# --- notifications --------------------------------------------------------------------------------


class ChangesMessage(Message, frozen=True):
    """A delivery of a watch. Without revisions it is a progress mark: everything up to `position`
    was delivered. With `more`, the last revision continues in the next `changes` of the watch, and
    `position` is valid only after that.
    """

    values = _PLAIN
    watch: int
    position: str
    revisions: tuple[RevisionMessage, ...]
    more: bool | UnsetType = UNSET

    def to_core(self) -> tuple[int, Position, tuple[LogEntry, ...], bool]:
        """Its members. Errors: ValueError, InvalidRequest."""
        revisions = tuple([revision.to_core() for revision in self.revisions])
        return self.watch, Position.parse(self.position), revisions, self.more is True


class CancelledMessage(Struct, frozen=True):
    """The watch has ended because of `error`."""

    watch: int
    error: ErrorMessage


class DrainingMessage(Struct, frozen=True):
    """The service stops soon. It accepts no new requests, and still answers those in flight."""
