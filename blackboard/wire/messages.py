"""What a request may look like: the only place where data from outside is validated.

Each method has one model of its `params`; `METHODS` names them all, and the JSON Schema that the
service publishes is made from them. A model turns into the nouns of `core/commit.py`; everything
above this module works on those. The client's half, and a faster reader of the request that comes
most often, are in `wire/commits.py`, which loads without pydantic.

Invariants
- `parse` returns a model or raises InvalidRequest or LimitExceeded, whatever it is given.
- An error text names the path of the field and the reason, and never holds more than
  `_ECHO_CHARACTERS_MAX` characters of what came.
"""

from typing import Annotated, ClassVar, Final

from annotated_types import Ge, Le
from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationError,
)
from pydantic_core import ErrorDetails

from blackboard import limits
from blackboard.core import commit as core
from blackboard.core.watch import Position
from blackboard.errors import InvalidRequest, LimitExceeded, Rejected
from blackboard.wire.frames import Encoding
from blackboard.wire.parts import (
    SHORT,
    CommitName,
    Condition,
    ExportedValue,
    Ground,
    HeldFence,
    KeyText,
    Name,
    Operation,
    PatternText,
    PrefixText,
    RevisionNumber,
    Token,
    WireModel,
    checked_by,
    checked_note,
    up_to,
)

_ECHO_CHARACTERS_MAX: Final = 200
WATCH_NUMBER_MAX: Final = 2**31 - 1
"""The number that a client gives to a watch of its connection."""

# --- requests -------------------------------------------------------------------------------------


class Params(WireModel):
    """What every request may carry: the `agent` that it acts for, if not the connection's own."""

    method: ClassVar[str]
    agent: Name | None = None


class Hello(Params):
    """The first request of a connection. `token` is needed unless a header carried it."""

    method = "hello"
    token: Token | None = Field(default=None, repr=False)
    client: Annotated[str, SHORT] = ""


class _BoardParams(Params):
    board: Name


class HeadParams(_BoardParams):
    """Where the board stands."""

    method = "head"


class CommitModel(_BoardParams):
    """One attempt of an atomic commit."""

    method = "commit"
    id: CommitName
    epoch: Annotated[str, SHORT]
    ops: Annotated[list[Operation], Field(max_length=limits.OPERATIONS_MAX)]
    conditions: Annotated[list[Condition], up_to(limits.OPERATIONS_MAX)]
    fences: Annotated[list[HeldFence], up_to(limits.FENCES_MAX)]
    based_on: Annotated[list[Ground], up_to(limits.BASED_ON_MAX)]
    note: Annotated[str, AfterValidator(checked_note)] = ""
    retry_since: RevisionNumber | None = None
    known: RevisionNumber | None = None

    def to_core(self, agent: str) -> core.Commit:
        """The commit as the core knows it, by `agent`."""
        name = self.id
        return core.Commit(
            core.CommitId(agent, name.lane, name.incarnation, name.step),
            self.epoch,
            tuple([op.to_core() for op in self.ops]),
            tuple([condition.to_core() for condition in self.conditions]),
            tuple([core.HeldFence(f.key, f.holder, f.fence) for f in self.fences]),
            tuple(self.based_on),
            self.note,
            self.retry_since,
            known=self.known,
        )


class InstantPart(WireModel):
    """A point in time: as a moment, the newest revision that was committed then or before."""

    time_ms: Annotated[int, Ge(0), Le(limits.INTEGER_MAX)]


Moment = RevisionNumber | Name | InstantPart
"""A revision, the name of a checkpoint, "now", or a point in time."""
RequestName = Annotated[str, StringConstraints(pattern="^[0-9a-f]{16,64}$")]
"""Random hex digits that name a request, so that a retry of it is recognised."""
Note = Annotated[str, AfterValidator(checked_note)]


class ReadParams(_BoardParams):
    """Entries of some keys as of one revision; with `at`, as they were then."""

    method = "read"
    keys: Annotated[list[KeyText], Field(max_length=limits.READ_KEYS_MAX)]
    at: Moment | None = None


class ListParams(_BoardParams):
    """A page of the entries that match `pattern`, in key order, after key `after`; with `at`, as
    they were then."""

    method = "list"
    pattern: PatternText
    after: KeyText | None = None
    limit: Annotated[int, Field(ge=1, le=limits.LIST_ENTRIES_MAX)] = limits.LIST_ENTRIES_MAX
    at: Moment | None = None


class LeasesParams(_BoardParams):
    """A page of the leases whose keys match `pattern`, with their queues, after key `after`."""

    method = "leases"
    pattern: PatternText
    after: KeyText | None = None
    limit: Annotated[int, Field(ge=1, le=limits.LIST_ENTRIES_MAX)] = limits.LIST_ENTRIES_MAX


class LogParams(_BoardParams):
    """A page of the log after revision `after`: of `limit` revisions, those that are asked for;
    with `proofs`, one for each of them."""

    method = "log"
    after: RevisionNumber = 0
    limit: Annotated[int, Field(ge=1, le=limits.LOG_ENTRIES_MAX)] = limits.LOG_ENTRIES_MAX
    pattern: PatternText | None = None
    author: Name | None = None
    proofs: bool = False


class WhyParams(_BoardParams):
    """The commits that led to `key`."""

    method = "why"
    key: KeyText


class BoardsParams(Params):
    """Names of the boards that you may use."""

    method = "boards"


class LostBoardsParams(Params):
    """Boards of which the archive has what their engine lost, for admins of everything."""

    method = "lost_boards"


class WhoAmIParams(Params):
    """Who you are to the service."""

    method = "whoami"


class RefreshParams(Params):
    """Go on with a new token of the same principal, before the one in use runs out."""

    method = "refresh"
    token: Token = Field(repr=False)


class AuditParams(Params):
    """A page of the audit, after the record with key `after`."""

    method = "audit"
    after: KeyText | None = None
    limit: Annotated[int, Field(ge=1, le=limits.LIST_ENTRIES_MAX)] = limits.LIST_ENTRIES_MAX


class EraseParams(Params):
    """Destroy the data keys of an agent's namespaces, on one board or on all, for good."""

    method = "erase"
    name: Name
    board: Name | None = None


class RewrapParams(Params):
    """Wrap every data key with the first master key."""

    method = "rewrap"


class RevokeParams(Params):
    """End tokens by their ids, and all that `principal` was issued until now."""

    method = "revoke"
    tokens: Annotated[list[Name], up_to(limits.READ_KEYS_MAX)]
    principal: Name | None = None
    until_ms: Annotated[int, Field(ge=0, le=limits.INTEGER_MAX)] | None = None


# --- the past -------------------------------------------------------------------------------------


class CheckpointParams(_BoardParams):
    """Name the present revision; with `barrier_ms`, once every agent has brought its state."""

    method = "checkpoint"
    name: Name
    request: RequestName
    note: Note = ""
    barrier_ms: Annotated[int, Ge(1), Le(limits.BARRIER_MS_MAX)] | None = None
    stale_ok: bool = False
    automatic: bool = False


class CheckpointsParams(_BoardParams):
    """A page of the checkpoints above revision `after`, the oldest first."""

    method = "checkpoints"
    after: RevisionNumber = 0
    limit: Annotated[int, Ge(1), Le(limits.CHECKPOINTS_PAGE_MAX)] = limits.CHECKPOINTS_PAGE_MAX


class ManifestParams(_BoardParams):
    """A checkpoint with what its sealed manifest says."""

    method = "manifest"
    name: Name


class PinParams(_BoardParams):
    """Keep a checkpoint from being pruned, or no longer."""

    method = "pin"
    name: Name
    pinned: bool


class PruneParams(_BoardParams):
    """Remove the checkpoints, and the history, that a policy does not keep."""

    method = "prune"
    last: Annotated[int, Ge(0), Le(limits.CHECKPOINTS_MAX)]
    days: Annotated[int, Ge(0), Le(limits.CHECKPOINTS_MAX)]
    named: bool = True
    history_ms: Annotated[int, Ge(0), Le(limits.INTEGER_MAX)] | None = None
    dry_run: bool = False


class RestoreParams(_BoardParams):
    """Bring back the content of a moment, as one revision that begins an epoch."""

    method = "restore"
    to: Moment
    request: RequestName
    note: Note = ""
    keep_calls: bool = False


class RecoverParams(_BoardParams):
    """Let a board whose engine lost it begin again as what its archive has, of the newest revision
    that was lost or of the moment `at`; ask again until it is done."""

    method = "recover"
    at: Moment | None = None
    note: Note = ""


class RedactParams(_BoardParams):
    """Take every value that `key` ever had out of the board, and out of all that shares its
    history; ask again, with the same `request`, until it is done."""

    method = "redact"
    key: KeyText
    request: RequestName
    why: Note = ""


class FreezeParams(_BoardParams):
    """Refuse commits until the board is thawed; a board that is frozen stays as it is."""

    method = "freeze"
    note: Note = ""


class ThawParams(_BoardParams):
    """Take commits again."""

    method = "thaw"
    note: Note = ""


class RemoveParams(_BoardParams):
    """Remove a board for good, with its log, its archived past and what is left of it anywhere;
    what branches share stays."""

    method = "remove"


class BranchParams(_BoardParams):
    """Make board `new`, which begins as this one was."""

    method = "branch"
    new: Name
    at: Moment
    request: RequestName
    note: Note = ""


class DifferencesParams(_BoardParams):
    """A page of what differs between two moments; `b` may be one of board `other`."""

    method = "differences"
    a: Moment
    b: Moment
    other: Name | None = None
    pattern: PatternText = "**"
    after: KeyText | None = None
    limit: Annotated[int, Ge(1), Le(limits.LIST_ENTRIES_MAX)] = limits.LIST_ENTRIES_MAX


class HistoryParams(_BoardParams):
    """Versions of `key`, the newest first; `before` continues."""

    method = "history"
    key: KeyText
    before: RevisionNumber | None = None
    limit: Annotated[int, Ge(1), Le(limits.HISTORY_VERSIONS_MAX)] = limits.HISTORY_VERSIONS_MAX


class VerifyParams(_BoardParams):
    """Check everything that is kept up to a moment."""

    method = "verify"
    at: Moment


class ExportParams(_BoardParams):
    """A page of a checkpoint, every namespace of it."""

    method = "export"
    name: Name
    after: KeyText | None = None


Counter = Annotated[tuple[PrefixText, RevisionNumber], Field(strict=False)]
"""A list, and the index that its next item gets."""


class ImportBeginParams(_BoardParams):
    """Begin to make a board of what was exported; `signature` is in hexadecimal."""

    method = "import_begin"
    request: RequestName
    manifest: Annotated[str, Field(max_length=limits.MANIFEST_BYTES_MAX)]
    signature: Annotated[str, StringConstraints(pattern="^([0-9a-f]{2}){0,128}$")]
    items: Annotated[list[Counter], up_to(limits.EXPORT_ITEMS_MAX)]
    note: Note = ""


class ImportedEntry(WireModel):
    """An entry as it was exported."""

    key: KeyText
    value: ExportedValue
    mod_revision: RevisionNumber
    create_revision: RevisionNumber
    author: Annotated[str, SHORT]
    time_ms: Annotated[int, Ge(0), Le(limits.INTEGER_MAX)]
    expires_at_ms: Annotated[int, Ge(0), Le(limits.INTEGER_MAX)] | None = None


class ImportPageParams(_BoardParams):
    """The next page of an import, counted from 0."""

    method = "import_page"
    request: RequestName
    number: RevisionNumber
    entries: Annotated[list[ImportedEntry], Field(max_length=limits.LIST_ENTRIES_MAX)]


class ImportEndParams(_BoardParams):
    """After the last page: the board exists, if the digests are those of the manifest."""

    method = "import_end"
    request: RequestName


# --- watches --------------------------------------------------------------------------------------

WatchNumber = Annotated[int, Ge(0), Le(WATCH_NUMBER_MAX)]


class WatchParams(_BoardParams):
    """Begin watch number `watch`: changes of keys that match, after a resume token (null = now)."""

    method = "watch"
    watch: WatchNumber
    patterns: Annotated[list[PatternText], Field(min_length=1, max_length=limits.PATTERNS_MAX)]
    after: Annotated[str, Field(max_length=200), checked_by(Position.parse)] | None = None
    coalesce: bool = False


class UnwatchParams(Params):
    """End a watch."""

    method = "unwatch"
    watch: WatchNumber


class ProgressParams(Params):
    """Ask a watch for a progress mark."""

    method = "progress"
    watch: WatchNumber


METHODS: Final[dict[str, type[Params]]] = {
    model.method: model
    for model in (
        Hello,
        HeadParams,
        CommitModel,
        ReadParams,
        ListParams,
        LeasesParams,
        LogParams,
        WhyParams,
        BoardsParams,
        LostBoardsParams,
        WhoAmIParams,
        RefreshParams,
        RevokeParams,
        AuditParams,
        EraseParams,
        RewrapParams,
        CheckpointParams,
        CheckpointsParams,
        ManifestParams,
        PinParams,
        PruneParams,
        RestoreParams,
        RecoverParams,
        RedactParams,
        FreezeParams,
        ThawParams,
        RemoveParams,
        BranchParams,
        DifferencesParams,
        HistoryParams,
        VerifyParams,
        ExportParams,
        ImportBeginParams,
        ImportPageParams,
        ImportEndParams,
        WatchParams,
        UnwatchParams,
        ProgressParams,
    )
}
"""Every method by its name."""


def parse(method: object, params: object, encoding: Encoding) -> Params:
    """Validate the params of a request. Errors: InvalidRequest, LimitExceeded."""
    model = METHODS.get(method) if type(method) is str else None
    if model is None:
        raise InvalidRequest(field="method", reason=f"there is no method {_short(repr(method))}")
    try:
        return model.model_validate({} if params is None else params, context=encoding)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise _explain(found[0], len(found)) from None


_LIMITS: Final[dict[str, str]] = {
    "ops": "OPERATIONS_MAX",
    "conditions": "OPERATIONS_MAX",
    "fences": "FENCES_MAX",
    "based_on": "BASED_ON_MAX",
    "keys": "READ_KEYS_MAX",
    "patterns": "PATTERNS_MAX",
}


def _explain(details: ErrorDetails, count: int) -> Rejected:
    """The error that says where and why: the first one found, and how many more there are."""
    path = _path(details["loc"])
    context = details.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, LimitExceeded):
        return LimitExceeded(cause.limit, cause.value, cause.maximum, path)
    if details["type"] == "too_long" and path in _LIMITS:
        maximum: int = context["max_length"]
        length: int = context["actual_length"] or maximum + 1
        return LimitExceeded(_LIMITS[path], length, maximum, path)
    more = f" (and {count - 1} more)" if count > 1 else ""
    return InvalidRequest(path, _short(details["msg"]) + more)


def _path(parts: tuple[int | str, ...]) -> str:
    """Such as `ops.3.key`, without the tag that pydantic puts after the index."""
    tagged = len(parts) > 2 and parts[0] in ("ops", "conditions")
    kept = (*parts[:2], *parts[3:]) if tagged else parts
    return _short(".".join(str(part) for part in kept) or "params")


def _short(text: str) -> str:
    plain = text.encode(errors="backslashreplace").decode()
    if len(plain) <= _ECHO_CHARACTERS_MAX:
        return plain
    return plain[: _ECHO_CHARACTERS_MAX - 4] + " ..."
