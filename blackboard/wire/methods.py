"""The table of methods: everything that the service can be asked over a WebSocket or by POST.

A method is declared once, by the record of its params and the row above it: its name, its result,
the right that it needs, whether a success is audited, and how it is charged. The rest follows:
parsing (`wire/requests.py`), dispatch (`server/http/dispatch.py`), checks of rights on whole boards
(`server/requests.py`), the audit, admission under load, the published schema and docs/protocol.md.

The service decodes requests into these records, and the client builds them. Unknown members are
refused, nothing is converted, and bounds and checks belong to the types of the fields
(`core/fields.py`). The members of a record are in the order in which a client writes them, `agent`
last.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar

from msgspec import Meta, Struct

from blackboard import limits
from blackboard.core import commit as core
from blackboard.core.access import AccessGrant, Checked, Principal
from blackboard.core.checkpoints import (
    Activity,
    BranchRequest,
    Checkpoint,
    CheckpointInfo,
    Differences,
    DiffRequest,
    ExportPage,
    Instant,
    LostBoard,
    Pruned,
    Recovered,
    RecoverRequest,
    Redaction,
    RedactRequest,
    RefusedCommit,
    Restored,
    RestoreRequest,
    Verified,
    Version,
    check_request,
)
from blackboard.core.fields import (
    Check,
    InstantMs,
    KeyText,
    Name,
    Note,
    PatternText,
    PrefixText,
    RevisionNumber,
    ShortText,
    Text,
)
from blackboard.core.freeze import Freeze
from blackboard.core.watch import Position
from blackboard.errors import InvalidRequest, LocalProtocolError
from blackboard.wire import answers
from blackboard.wire.frames import Encoding, exported_in, exported_out

TOKEN_BYTES_MAX: Final = 8192
"""A bearer token: it also travels as a header, whose lines web servers bound at about that."""
WATCH_NUMBER_MAX: Final = 2**31 - 1
"""The number that a client gives to a watch of its connection."""

# --- the table ------------------------------------------------------------------------------------


class Charge(StrEnum):
    """How a request is admitted, and charged to its account."""

    FREE = "always answered, even by a service that is late: it costs nothing, or ends something"
    COMMIT = "a fixed price: what the engine does for it is shared by a whole batch"
    READ = "by processor time; waits its turn, and for room for its answer"
    WORK = "by processor time; begins at once, since it changes something or takes long"


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the protocol.

    `result` is the shape of its result, None for null. `right` is None for what concerns only the
    connection itself. An `audited` method is recorded whenever it succeeds; refusals always are.
    """

    request: type["Params[Any]"]
    result: Any
    right: Checked | None
    charge: Charge = Charge.READ
    audited: bool = False

    @property
    def name(self) -> str:
        """The method's name on the wire."""
        return self.request.method


P = TypeVar("P", bound="Params[Any]")
R = TypeVar("R")
METHODS: Final[dict[str, Method]] = {}
"""Every method by its name."""


def _method(
    result: Any, right: Checked | None, charge: Charge = Charge.READ, *, audited: bool = False
) -> Callable[[type[P]], type[P]]:
    """Enter a record of params into the table, under the name that it says."""

    def enter(request: type[P]) -> type[P]:
        assert request.method not in METHODS, "a method is declared once"
        METHODS[request.method] = Method(request, result, right, charge, audited)
        return request

    return enter


# --- fields ---------------------------------------------------------------------------------------

_HEX: Final = re.compile("([0-9a-f]{2}){0,128}")


def _check_hex(text: str) -> None:
    if not _HEX.fullmatch(text):
        raise InvalidRequest(field="signature", reason="is not up to 128 bytes in hexadecimal")


Token = Annotated[Text, Meta(max_length=TOKEN_BYTES_MAX)]
RequestName = Annotated[
    str, Meta(min_length=1, max_length=limits.REQUEST_CHARACTERS_MAX), Check(check_request)
]
"""A text that names this request and no other, so that a retry of it is recognised."""
Hex = Annotated[str, Meta(pattern="^([0-9a-f]{2}){0,128}$"), Check(_check_hex)]
Moment = RevisionNumber | Name | Instant
"""A revision, the name of a checkpoint, "now", or a point in time."""
WatchNumber = Annotated[int, Meta(ge=0, le=WATCH_NUMBER_MAX)]
ResumeToken = Annotated[str, Meta(max_length=200), Check(Position.parse)]
Ground = tuple[KeyText, RevisionNumber]
"""A key that was read, and the revision that it was last written at then."""
Counter = tuple[PrefixText, RevisionNumber]
"""A list, and the index that its next item gets."""
PageLimit = Annotated[int, Meta(ge=1, le=limits.LIST_ENTRIES_MAX)]
CheckpointCount = Annotated[int, Meta(ge=0, le=limits.CHECKPOINTS_MAX)]
HistoryBytes = Annotated[int, Meta(ge=0, le=limits.INTEGER_MAX)]


class _Values(Struct, frozen=True):
    """Which member of the params holds records with a `value`, and how the values are encoded."""

    member: str
    count_max: int
    read: Callable[[Any, Encoding], bytes]
    write: Callable[[bytes, Encoding], Any]


def _value_in(value: Any, encoding: Encoding) -> bytes:
    return encoding.value_in(value)


def _value_out(value: bytes, encoding: Encoding) -> Any:
    return encoding.value_out(value)


# --- the connection -------------------------------------------------------------------------------


class Params(
    Struct,
    Generic[R],
    kw_only=True,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    gc=False,
):
    """What every request may carry: the `agent` that it acts for, if not the connection's own.

    `R` is what the client makes of the result.
    """

    method: ClassVar[str]
    noun: ClassVar[type | None] = None
    """The record of `core/` that the request is made of, with members of the same names."""
    values: ClassVar[_Values | None] = None
    agent: Name | None = None

    @classmethod
    def of(cls, board: str, spec: Any) -> Self:
        """The request for what `spec` says, a `noun`."""
        members = {name: getattr(spec, name) for name in _members(cls)}
        return cls(**{"board": board, **members})

    def spec(self) -> Any:
        """The `noun` that is asked for."""
        assert self.noun is not None, "only such a request is made of one"
        return self.noun(**{name: getattr(self, name) for name in _members(type(self))})


def _members(kind: type[Params[Any]]) -> list[str]:
    return [name for name in kind.__struct_fields__ if name not in ("agent", "board")]


@_method(answers.WelcomeMessage, None, Charge.WORK)
class HelloParams(Params[answers.WelcomeMessage], frozen=True):
    """The first request of a connection. `token` is needed unless a header carried it."""

    method = "hello"
    token: Token | None = None
    client: ShortText = ""

    def __repr__(self) -> str:
        return f"HelloParams(agent={self.agent!r}, client={self.client!r})"  # without the token


@_method(answers.IdentityMessage, Checked.NOTHING, Charge.FREE)
class WhoAmIParams(Params[Principal], frozen=True):
    """Who you are to the service."""

    method = "whoami"


@_method(answers.IdentityMessage, Checked.NOTHING, Charge.FREE)
class RefreshParams(Params[Principal], frozen=True):
    """Continue with a new token of the same principal, before the one in use runs out."""

    method = "refresh"
    token: Token

    def __repr__(self) -> str:
        return "RefreshParams()"  # without the token


@_method(answers.WatchMessage, Checked.FILTERED, Charge.WORK)
class WatchParams(Params[Position], frozen=True):
    """Begin watch number `watch`: changes of keys that match, after a resume token (null = now)."""

    method = "watch"
    board: Name
    watch: WatchNumber
    patterns: Annotated[tuple[PatternText, ...], Meta(min_length=1, max_length=limits.PATTERNS_MAX)]
    after: ResumeToken | None = None
    coalesce: bool = False


@_method(None, None, Charge.FREE)
class UnwatchParams(Params[None], frozen=True):
    """End a watch."""

    method = "unwatch"
    watch: WatchNumber


@_method(None, None, Charge.FREE)
class ProgressParams(Params[None], frozen=True):
    """Ask a watch for a progress mark."""

    method = "progress"
    watch: WatchNumber


# --- commits --------------------------------------------------------------------------------------


class CommitName(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Names a commit of the agent, so that a retry is recognised."""

    lane: Annotated[int, Meta(ge=0, lt=limits.LANES_MAX)]
    incarnation: Name
    step: Annotated[int, Meta(ge=0, le=limits.INTEGER_MAX)]


@_method(answers.ReceiptMessage, Checked.EACH_PART, Charge.COMMIT)
class CommitParams(Params[core.Receipt], frozen=True):
    """One attempt of an atomic commit."""

    method = "commit"
    values = _Values("ops", limits.OPERATIONS_MAX, _value_in, _value_out)
    board: Name
    id: CommitName
    epoch: ShortText
    ops: Annotated[tuple[core.AskedOp, ...], Meta(max_length=limits.OPERATIONS_MAX)]
    conditions: Annotated[tuple[core.Condition, ...], Meta(max_length=limits.OPERATIONS_MAX)] = ()
    fences: Annotated[tuple[core.HeldFence, ...], Meta(max_length=limits.FENCES_MAX)] = ()
    based_on: Annotated[tuple[Ground, ...], Meta(max_length=limits.BASED_ON_MAX)] = ()
    note: Note = ""
    known: RevisionNumber | None = None
    retry_since: RevisionNumber | None = None

    @classmethod
    def of(cls, board: str, commit: core.Commit) -> Self:
        """The request that makes `commit`. Errors: LocalProtocolError for part of a restore."""
        if any(isinstance(op, core.PutBack) for op in commit.ops):
            raise LocalProtocolError(reason="a restore is requested by its own method")
        name = commit.id
        return cls(
            board=board,
            id=CommitName(name.lane, name.incarnation, name.step),
            epoch=commit.epoch,
            ops=commit.ops,  # type: ignore[arg-type]
            conditions=commit.conditions,
            fences=commit.fences,
            based_on=commit.based_on,
            note=commit.note,
            known=commit.known,
            retry_since=commit.retry_since,
        )

    def to_core(self, agent: str, account: str = "", salt: bytes = b"") -> core.Commit:
        """The commit that is asked for, by `agent`; `account` and `salt` are the service's."""
        name = self.id
        return core.Commit(
            core.CommitId(agent, name.lane, name.incarnation, name.step),
            self.epoch,
            self.ops,
            self.conditions,
            self.fences,
            self.based_on,
            self.note,
            self.retry_since,
            None,
            self.known,
            salt,
            account,
        )


# --- reads ----------------------------------------------------------------------------------------


@_method(core.Head, Checked.BOARD)
class HeadParams(Params[core.Head], frozen=True):
    """Where the board stands."""

    method = "head"
    board: Name


@_method(answers.ReadingMessage, Checked.EACH_KEY)
class ReadParams(Params[core.Reading], frozen=True):
    """Entries of some keys as of one revision; with `at`, as they were then."""

    method = "read"
    board: Name
    keys: Annotated[tuple[KeyText, ...], Meta(max_length=limits.READ_KEYS_MAX)]
    at: Moment | None = None


@_method(answers.ReadingMessage, Checked.FILTERED)
class ListParams(Params[core.Reading], frozen=True):
    """A page of the entries that match `pattern`, in key order, after key `after`; with `at`, as
    they were then.

    With `reverse` in descending order: keys before `after`. With `keys_only` each value is empty.
    With `delimiter` "/", `pattern` being PREFIX/** or **, only what lies directly below; what lies
    deeper is counted by directory, and `limit` counts both. If `after` lies in a directory, the
    whole of it is skipped.
    """

    method = "list"
    board: Name
    pattern: PatternText
    after: KeyText | None = None
    limit: PageLimit = limits.LIST_ENTRIES_MAX
    at: Moment | None = None
    reverse: bool = False
    keys_only: bool = False
    delimiter: Annotated[str, Meta(pattern="^/$")] | None = None


@_method(answers.LeasesMessage, Checked.FILTERED)
class LeasesParams(Params[core.Reading], frozen=True):
    """A page of the leases whose keys match `pattern`, with their queues, after key `after`."""

    method = "leases"
    board: Name
    pattern: PatternText
    after: KeyText | None = None
    limit: PageLimit = limits.LIST_ENTRIES_MAX


@_method(answers.LogMessage, Checked.FILTERED)
class LogParams(Params[core.LogPage], frozen=True):
    """A page of the log after revision `after`: `limit` revisions are looked through, those that
    match are shown; with `proofs`, one proof for each of them."""

    method = "log"
    board: Name
    after: RevisionNumber = 0
    limit: Annotated[int, Meta(ge=1, le=limits.LOG_ENTRIES_MAX)] = limits.LOG_ENTRIES_MAX
    pattern: PatternText | None = None
    author: Name | None = None
    proofs: bool = False


@_method(Activity, Checked.FILTERED)
class ActivityParams(Params[Activity], frozen=True):
    """How many commits each agent made after revision `after`, up to `until` (null = now), counted
    in `parts` of that span."""

    method = "activity"
    board: Name
    after: RevisionNumber = 0
    until: RevisionNumber | None = None
    parts: Annotated[int, Meta(ge=1, le=limits.ACTIVITY_PARTS_MAX)] = 128


@_method(list[RefusedCommit], Checked.FILTERED)
class RefusalsParams(Params[list[RefusedCommit]], frozen=True):
    """The newest refused commits above number `after`, as far as this process remembers them."""

    method = "refusals"
    board: Name
    after: RevisionNumber = 0


@_method(list[answers.CauseMessage], Checked.FILTERED)
class WhyParams(Params[list[core.Cause]], frozen=True):
    """The commits that led to `key`."""

    method = "why"
    board: Name
    key: KeyText


@_method(list[str], Checked.FILTERED)
class BoardsParams(Params[list[str]], frozen=True):
    """Names of the boards that you may use."""

    method = "boards"


# --- history --------------------------------------------------------------------------------------


@_method(Checkpoint, Checked.WHOLE_CHECKPOINT, Charge.WORK, audited=True)
class CheckpointParams(Params[Checkpoint], frozen=True):
    """Name the present revision; with `barrier_ms`, once every agent has delivered its state."""

    method = "checkpoint"
    board: Name
    name: Name
    request: RequestName
    note: Note = ""
    barrier_ms: Annotated[int, Meta(ge=1, le=limits.BARRIER_MS_MAX)] | None = None
    stale_ok: bool = False
    automatic: bool = False


@_method(list[Checkpoint], Checked.FILTERED)
class CheckpointsParams(Params[list[Checkpoint]], frozen=True):
    """A page of the checkpoints above revision `after`, the oldest first."""

    method = "checkpoints"
    board: Name
    after: RevisionNumber = 0
    limit: Annotated[int, Meta(ge=1, le=limits.CHECKPOINTS_PAGE_MAX)] = limits.CHECKPOINTS_PAGE_MAX


@_method(answers.ManifestMessage, Checked.EACH_KEY)
class ManifestParams(Params[CheckpointInfo], frozen=True):
    """A checkpoint with the content of its signed manifest."""

    method = "manifest"
    board: Name
    name: Name


@_method(None, Checked.WHOLE_CHECKPOINT, Charge.WORK, audited=True)
class PinParams(Params[None], frozen=True):
    """Keep a checkpoint from being pruned, or no longer."""

    method = "pin"
    board: Name
    name: Name
    pinned: bool


@_method(Pruned, Checked.WHOLE_ADMIN, Charge.WORK, audited=True)
class PruneParams(Params[Pruned], frozen=True):
    """Remove the checkpoints, and the history, that a policy does not keep."""

    method = "prune"
    board: Name
    last: CheckpointCount
    days: CheckpointCount
    named: bool = True
    history_ms: InstantMs | None = None
    history_bytes: HistoryBytes | None = None
    dry_run: bool = False


@_method(Restored, Checked.WHOLE_RESTORE, Charge.WORK, audited=True)
class RestoreParams(Params[Restored], frozen=True):
    """Bring back the content of a moment, as one revision that begins an epoch."""

    method = "restore"
    noun = RestoreRequest
    board: Name
    to: Moment
    request: RequestName
    note: Note = ""
    keep_calls: bool = False


@_method(Recovered, Checked.WHOLE_ADMIN, Charge.WORK, audited=True)
class RecoverParams(Params[Recovered], frozen=True):
    """Let a board that its engine lost begin again with the content of its archive: the newest
    revision that was lost, or the moment `at`. Repeat the request until it is done."""

    method = "recover"
    noun = RecoverRequest
    board: Name
    at: Moment | None = None
    note: Note = ""


@_method(Redaction, Checked.WHOLE_ADMIN, Charge.WORK, audited=True)
class RedactParams(Params[Redaction], frozen=True):
    """Remove every value that `key` ever had from the board and from all that shares its history.
    Repeat with the same `request` until it is done. With `known`, the revision at which the request
    is made, a copy that comes after a later redaction of the key removes nothing."""

    method = "redact"
    noun = RedactRequest
    board: Name
    key: KeyText
    request: RequestName
    why: Note = ""
    known: RevisionNumber | None = None


@_method(Freeze, Checked.WHOLE_ADMIN, Charge.WORK, audited=True)
class FreezeParams(Params[Freeze], frozen=True):
    """Refuse commits until the board is thawed; a frozen board stays as it is. With `known`, the
    revision at which the request is made, a copy that comes after a later freeze is refused."""

    method = "freeze"
    board: Name
    note: Note = ""
    known: RevisionNumber | None = None


@_method(Freeze | None, Checked.WHOLE_ADMIN, Charge.WORK, audited=True)
class ThawParams(Params[Freeze | None], frozen=True):
    """Take commits again; `known` as in `freeze`: a later freeze is not ended."""

    method = "thaw"
    board: Name
    note: Note = ""
    known: RevisionNumber | None = None


@_method(None, Checked.WHOLE_ADMIN, Charge.WORK, audited=True)
class RemoveParams(Params[None], frozen=True):
    """Remove a board for good, with its log and its archived history; what branches share stays.
    With `epoch`, only if the board is still in that epoch, "" = if there is none."""

    method = "remove"
    board: Name
    epoch: ShortText | None = None


@_method(core.Head, Checked.WHOLE_CHECKPOINT, Charge.WORK, audited=True)
class BranchParams(Params[core.Head], frozen=True):
    """Make board `new`, which begins with the content of this one at a moment."""

    method = "branch"
    noun = BranchRequest
    board: Name
    new: Name
    at: Moment
    request: RequestName
    note: Note = ""


@_method(answers.DifferencesMessage, Checked.FILTERED)
class DifferencesParams(Params[Differences], frozen=True):
    """A page of what differs between two moments; `b` may be one of board `other`."""

    method = "differences"
    noun = DiffRequest
    board: Name
    a: Moment
    b: Moment
    other: Name | None = None
    pattern: PatternText = "**"
    after: KeyText | None = None
    limit: PageLimit = limits.LIST_ENTRIES_MAX


@_method(list[answers.VersionMessage], Checked.EACH_KEY)
class HistoryParams(Params[list[Version]], frozen=True):
    """Versions of `key`, the newest first; `before` continues. Only those above `after`, and of
    `author`, if given."""

    method = "history"
    board: Name
    key: KeyText
    before: RevisionNumber | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.HISTORY_VERSIONS_MAX)] = limits.HISTORY_VERSIONS_MAX
    after: RevisionNumber | None = None
    author: Name | None = None


@_method(Verified, Checked.WHOLE_ADMIN, Charge.WORK, audited=True)
class VerifyParams(Params[Verified], frozen=True):
    """Check everything that is stored up to a moment."""

    method = "verify"
    board: Name
    at: Moment


@_method(answers.ExportMessage, Checked.WHOLE_ADMIN, audited=True)
class ExportParams(Params[ExportPage], frozen=True):
    """A page of a checkpoint, every namespace of it."""

    method = "export"
    board: Name
    name: Name
    after: KeyText | None = None


@_method(None, Checked.WHOLE_ADMIN, Charge.WORK, audited=True)
class ImportBeginParams(Params[None], frozen=True):
    """Begin to make a board from an export; `signature` is in hexadecimal."""

    method = "import_begin"
    board: Name
    request: RequestName
    manifest: Annotated[Text, Meta(max_length=limits.MANIFEST_BYTES_MAX)]
    signature: Hex
    items: Annotated[tuple[Counter, ...], Meta(max_length=limits.EXPORT_ITEMS_MAX)] = ()
    note: Note = ""


class ImportedEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An entry as it was exported."""

    key: KeyText
    value: bytes
    mod_revision: RevisionNumber
    create_revision: RevisionNumber
    author: ShortText
    time_ms: InstantMs
    expires_at_ms: InstantMs | None = None
    created_ms: InstantMs | None = None

    @classmethod
    def of(cls, entry: core.Entry) -> Self:
        """An entry to be imported."""
        return cls(
            entry.key,
            entry.value,
            entry.mod_revision,
            entry.create_revision,
            entry.author,
            entry.time_ms,
            entry.expires_at_ms,
            entry.first_ms,
        )

    def to_core(self) -> core.Entry:
        """The entry that arrived."""
        return core.Entry(
            self.key,
            self.value,
            self.mod_revision,
            self.create_revision,
            self.author,
            self.time_ms,
            self.expires_at_ms,
            self.created_ms,
        )


@_method(None, Checked.WHOLE_ADMIN, Charge.WORK)
class ImportPageParams(Params[None], frozen=True):
    """The next page of an import, counted from 0."""

    method = "import_page"
    values = _Values("entries", limits.LIST_ENTRIES_MAX, exported_in, exported_out)
    board: Name
    request: RequestName
    number: RevisionNumber
    entries: Annotated[tuple[ImportedEntry, ...], Meta(max_length=limits.LIST_ENTRIES_MAX)]


@_method(core.Head, Checked.WHOLE_ADMIN, Charge.WORK, audited=True)
class ImportEndParams(Params[core.Head], frozen=True):
    """After the last page: the board exists, if the digests match the manifest."""

    method = "import_end"
    board: Name
    request: RequestName


# --- the service ----------------------------------------------------------------------------------


@_method(list[LostBoard], Checked.ADMIN)
class LostBoardsParams(Params[list[LostBoard]], frozen=True):
    """Boards of which the archive has what their engine lost, for admins of everything."""

    method = "lost_boards"


@_method(list[answers.AuditMessage], Checked.ADMIN, audited=True)
class AuditParams(Params[list[answers.AuditMessage]], frozen=True):
    """A page of the audit, after the record with key `after`."""

    method = "audit"
    after: KeyText | None = None
    limit: PageLimit = limits.LIST_ENTRIES_MAX


@_method(answers.KeysMessage, Checked.ADMIN, audited=True)
class EraseParams(Params[int], frozen=True):
    """Destroy the data keys of an agent's namespaces, on one board or on all, for good. With
    `request`, a copy of it that comes late destroys no newer key."""

    method = "erase"
    name: Name
    board: Name | None = None
    request: RequestName | None = None


@_method(answers.KeysMessage, Checked.ADMIN, audited=True)
class RewrapParams(Params[int], frozen=True):
    """Wrap every data key with the first master key."""

    method = "rewrap"


@_method(answers.RevokedMessage, Checked.ADMIN, audited=True)
class RevokeParams(Params[int], frozen=True):
    """End tokens by their ids, and every token issued to `principal` until now."""

    method = "revoke"
    tokens: Annotated[tuple[Name, ...], Meta(max_length=limits.READ_KEYS_MAX)] = ()
    principal: Name | None = None
    until_ms: InstantMs | None = None


@_method(answers.TokenMessage, Checked.ADMIN, audited=True)
class IssueParams(Params[str], frozen=True):
    """A token for the agent `name`, valid for `ttl_ms` or as long as the token in use; `grants`
    null = an agent's default ones."""

    method = "issue"
    name: Name
    grants: Annotated[tuple[AccessGrant, ...], Meta(max_length=limits.PATTERNS_MAX)] | None = None
    boards: Annotated[tuple[Name, ...], Meta(max_length=limits.PATTERNS_MAX)] = ()
    ttl_ms: Annotated[int, Meta(ge=1, le=limits.TOKEN_TTL_MS_MAX)] = limits.TOKEN_TTL_MS


# --- what follows from the table ------------------------------------------------------------------

RIGHTS: Final[dict[str, Checked]] = {
    **{name: method.right for name, method in METHODS.items() if method.right is not None},
    "document": Checked.EACH_KEY,  # on a WebSocket of its own, which speaks Yjs
}
"""How the rights of each method are checked. tests/unit/core/test_access.py tries each of them as a
principal without rights."""
AUDITED: Final = frozenset(name for name, method in METHODS.items() if method.audited)
"""Methods that are recorded whenever they succeed."""
FREE: Final = frozenset(name for name, m in METHODS.items() if m.charge is Charge.FREE)
"""Methods that are always answered."""
