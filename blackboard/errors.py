"""The one error tree. Fields, not prose: `code` and `fields()` are stable, the message is derived.

    BlackboardError
    |-- Rejected              nothing changed; the answer is final for this request
    |   |-- Conflict          a condition on a key or a prefix did not hold
    |   |-- Fenced            a lease that the commit relies on was granted again, ended or voided
    |   |-- LeaseHeld         another holder has the lease
    |   |-- NothingToClaim    no entry that could be claimed was free in time
    |   |-- StaleEpoch        the board was restored, or its engine came back, since you looked
    |   |-- HeadMoved         somebody committed since a restore was prepared
    |   |-- SnapshotFirst     a checkpoint waits for this agent to bring in what it knows
    |   |-- BoardFrozen       an admin froze the board; commits wait for the thaw
    |   |-- NoSuchBoard       there is no such board, and you cannot begin it
    |   |-- NoSuchCheckpoint  no checkpoint has that name
    |   |-- BarrierMissed     agents did not bring in their state in time
    |   |-- AttemptTooOld     not applied, and perhaps a late copy: send it with a newer `known`
    |   |-- StepSuperseded    this step number was already followed by a later one
    |   |-- DocumentRefused   an edit of a document cannot be taken; start from a fresh copy
    |   |-- FileRefused       a file cannot be part of a workspace's snapshot, or be written
    |   |-- UnsavedFiles      files of a workspace have changes that no snapshot has
    |   |-- WorkspaceHeld     another process works on the directory of a workspace
    |   |-- TypeMismatch      the operation does not fit the value that is there
    |   |-- LimitExceeded     a named limit of blackboard/limits.py
    |   |-- AccessDenied      the principal has no such right on this key
    |   |-- InvalidRequest    not a request that could ever be accepted
    |   |-- Unauthenticated   no token, or one that is not valid (any more)
    |   |-- Compacted         the log no longer reaches back to that revision
    |   |-- FutureRevision    that revision does not exist yet
    |   |-- RolledBack        what you saw was lost or abandoned; start from the new head
    |   `-- Resync              a restore changed too much for a delivery; read the state again
    |-- LeaseLost             a lease was lost while a block relied on it; its commits are Fenced
    |-- Unavailable           not done, the engine or the service cannot be reached; try again
    |   `-- Overloaded        not done, the service has too much to do; try again later
    |       `-- RateLimited   not done, the principal asked for more than its rate
    |-- OutcomeUnknown        sent, no answer: retry under the same name to find out
    |-- LocalProtocolError    this side was used wrongly
    |-- RemoteProtocolError   the peer sent something that is not the protocol
    |-- ModelFailed           a model did not answer, or not usably
    |-- CallFailed            a tool of an agent failed, as often as it may be tried
    |-- CommandStopped        a command of a step was stopped with its whole process group
    |-- CallInterrupted       a call that may be made once only was begun, and its end is unknown
    |-- Diverged              an agent that was replayed did something else than is recorded
    |-- AgentInterrupted      an agent was cancelled though nobody had asked for that
    |-- SchemaTooNew          the state of an agent was written by newer code
    |-- MigrationFailed       the state of an agent cannot be brought to the version of the code
    |-- InvalidState          the state of an agent is not one that its code accepts
    |-- Corrupt               stored bytes are not what was written; never retried
    |-- NewerFormat           stored bytes are of a newer version; unchanged, never half read
    |-- OlderFormat           stored bytes are of a version that is read no more; unchanged
    |-- EngineRefused         the engine's settings would lose data
    `-- DataDirectoryInUse    another process owns the data directory

Errors hold primitives only, so this module imports nothing from the package, and every error can
cross a process boundary: `fields` on one side, `from_fields` on the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(eq=False)
class BlackboardError(Exception):
    """Root of the tree. Never raised itself."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def fields(self) -> dict[str, Any]:
        """The error's fields by name, all plain values (JSON types and bytes)."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.fields().items() if value is not None)
        return f"{self.code}: {' '.join(shown)}"

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception keeps positional arguments only, and most of these are made by keyword.
        return type(self), tuple(self.fields().values())


# --- agents ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class ModelFailed(BlackboardError):
    """`model` did not answer, or not usably: `reason`. `status` is the HTTP status, if any.

    Temporary failures have already been retried.
    """

    code: ClassVar[str] = "model_failed"
    model: str
    reason: str
    status: int | None = None


@dataclass(eq=False)
class CallFailed(BlackboardError):
    """Call `name` of an agent failed `attempts` times, at last because of `reason`; recorded."""

    code: ClassVar[str] = "call_failed"
    name: str
    attempts: int
    reason: str


@dataclass(eq=False)
class CommandStopped(BlackboardError):
    """`command` was stopped with all that it had started. `cause`: it ran for longer than `maximum`
    milliseconds ("timeout"), printed more than `maximum` bytes ("output"), its caller was cancelled
    ("cancelled"), or the process above it was killed ("killed"). The files of the step are not
    committed, unless it takes them back with `reset`."""

    code: ClassVar[str] = "command_stopped"
    command: str
    cause: str
    maximum: int


@dataclass(eq=False)
class CallInterrupted(BlackboardError):
    """Call `name`, made at most once, was begun; ask where it went, by `idempotency_key`."""

    code: ClassVar[str] = "call_interrupted"
    name: str
    idempotency_key: str


@dataclass(eq=False)
class Diverged(BlackboardError):
    """In a replay, call `number` of a step of `agent` was `found`; recorded is `expected`."""

    code: ClassVar[str] = "diverged"
    agent: str
    number: int
    expected: str
    found: str


@dataclass(eq=False)
class AgentInterrupted(BlackboardError):
    """Something cancelled the work of `agent` though nobody asked for that: `reason`.

    It counts as a crash: what the step had not committed did not happen.
    """

    code: ClassVar[str] = "agent_interrupted"
    agent: str
    reason: str


@dataclass(eq=False)
class SchemaTooNew(BlackboardError):
    """The state of `agent` has schema version `stored`; this code knows versions up to `known`."""

    code: ClassVar[str] = "schema_too_new"
    agent: str
    stored: int
    known: int


@dataclass(eq=False)
class MigrationFailed(BlackboardError):
    """The state of `agent` cannot leave schema version `version`: `reason`. It stays as it is."""

    code: ClassVar[str] = "migration_failed"
    agent: str
    version: int
    reason: str


@dataclass(eq=False)
class InvalidState(BlackboardError):
    """A state of `agent` is not acceptable: `reason`. It was not written, or not taken in."""

    code: ClassVar[str] = "invalid_state"
    agent: str
    reason: str


# --- on the way: the link, the engine, stored bytes, a lease --------------------------------------


@dataclass(eq=False)
class LeaseLost(BlackboardError):
    """Lease `key`, held under `fence`, was lost in the middle of a block, because of `reason`.

    The block was cancelled. Its earlier commits stand; none after another holder took the lease
    takes effect. `holder` has it now, if that is known.
    """

    code: ClassVar[str] = "lease_lost"
    key: str
    fence: int
    reason: str
    holder: str | None = None


@dataclass(eq=False)
class Unavailable(BlackboardError):
    """Not done: `what` cannot be reached or cannot answer now. Trying again is safe."""

    code: ClassVar[str] = "unavailable"
    retryable: ClassVar[bool] = True
    what: str
    reason: str


@dataclass(eq=False)
class Overloaded(Unavailable):
    """Not done: `what` has too much to do. Trying again is safe, after `retry_after_ms`."""

    code: ClassVar[str] = "overloaded"
    retry_after_ms: int


@dataclass(eq=False)
class RateLimited(Overloaded):
    """Not done: the principal asked for more than its rate allows; `what` names the rate."""

    code: ClassVar[str] = "rate_limited"


@dataclass(eq=False)
class OutcomeUnknown(BlackboardError):
    """What changes something was sent, and its answer did not come: it may have been done or not.

    A commit is named by `agent`, `lane`, `incarnation` and `step`; sending the same one again gets
    its outcome, unless it is `final`: later answers have displaced it, and only the board's log can
    show it. Another request of `agent` is identified by `method` ("restore"), and by `request` if
    it has one; sending the same request again gets its outcome.
    """

    code: ClassVar[str] = "outcome_unknown"
    retryable: ClassVar[bool] = True
    agent: str
    lane: int | None
    incarnation: str | None
    step: int | None
    reason: str
    final: bool = False
    method: str = "commit"
    request: str | None = None

    @classmethod
    def of(
        cls, method: str, agent: str, reason: str, *, request: str | None = None
    ) -> "OutcomeUnknown":
        """The error for a request that is not a commit."""
        return cls(agent, None, None, None, reason, method=method, request=request)


@dataclass(eq=False)
class LocalProtocolError(BlackboardError):
    """This side tried what the connection's state does not allow. A bug of the caller."""

    code: ClassVar[str] = "local_protocol_error"
    reason: str


@dataclass(eq=False)
class RemoteProtocolError(BlackboardError):
    """The peer sent something that is not the protocol. `close_code` suits the WebSocket close."""

    code: ClassVar[str] = "remote_protocol_error"
    reason: str
    close_code: int = 1002


@dataclass(eq=False)
class Corrupt(BlackboardError):
    """`what` is not what was written: `reason`. Never retried, never repaired silently."""

    code: ClassVar[str] = "corrupt"
    what: str
    reason: str


@dataclass(eq=False)
class NewerFormat(BlackboardError):
    """`what` has format `found`, and this program knows formats up to `known`; it is unchanged."""

    code: ClassVar[str] = "newer_format"
    what: str
    found: int
    known: int

    def __str__(self) -> str:
        return (
            f"{self.what} was written by a newer Blackboard: it has format {self.found}, and this"
            f" program knows formats up to {self.known}. Nothing was changed: use the newer version"
        )


@dataclass(eq=False)
class OlderFormat(BlackboardError):
    """`what` has format `found`, and this program reads formats from `oldest` on; it is unchanged.

    `lacks` names the columns that it would have to have, if it has no mark of its format.
    """

    code: ClassVar[str] = "older_format"
    what: str
    found: int
    oldest: int
    lacks: str = ""

    def __str__(self) -> str:
        lacks = f" without columns that this one reads ({self.lacks})"
        return (
            f"{self.what} was written by an older version of Blackboard: it has format {self.found}"
            f"{lacks if self.lacks else f', and this program reads formats from {self.oldest} on'}."
            " Nothing was changed: export the checkpoints with that version, and import them into"
            " a new data directory with this one"
        )


@dataclass(eq=False)
class EngineRefused(BlackboardError):
    """The engine's `setting` has `value`, with which data would be lost; `needed` would do."""

    code: ClassVar[str] = "engine_refused"
    setting: str
    value: str
    needed: str


@dataclass(eq=False)
class DataDirectoryInUse(BlackboardError):
    """Process `pid` owns the data directory `path`; connect to it at `url` instead.

    With `is_this_process` the owner is a client of the caller's own: use it, or close it first.
    """

    code: ClassVar[str] = "data_directory_in_use"
    path: str
    pid: int | None
    url: str | None
    is_this_process: bool = False

    def __str__(self) -> str:
        if self.is_this_process:
            return (
                f"data directory {self.path} is open in this process already: use that client, or"
                " aclose() it first"
            )
        how = f"connect to it: blackboard.connect({self.url!r})" if self.url else "stop it first"
        return f"data directory {self.path} is in use by process {self.pid}; {how}"


# --- refusals: nothing changed, and the answer is final for this request --------------------------


@dataclass(eq=False)
class Rejected(BlackboardError):
    """The request was refused and nothing changed."""

    code: ClassVar[str] = "rejected"


@dataclass(eq=False)
class Conflict(Rejected):
    """A condition did not hold.

    `key` is the one whose condition failed; `expected` its mod_revision as the commit had it (0 =
    absent, -1 = present; for a prefix: unchanged since), `actual` the one that the board has (0 =
    absent). `by` wrote it last, at `at_revision` (the deletion's, when the key is gone). `current`
    is the value as it is now if it is small and you may read it. `head` is the board's revision.
    """

    code: ClassVar[str] = "conflict"
    key: str
    expected: int
    actual: int
    by: str | None = None
    at_revision: int = 0
    head: int = 0
    current: Any = None

    def __str__(self) -> str:
        found = f"is at revision {self.actual}" if self.actual else "is absent"
        wanted = {0: "absent", -1: "present"}.get(self.expected, f"at revision {self.expected}")
        last = f", last written by {self.by} at revision {self.at_revision}" if self.by else ""
        return f"conflict: {self.key} {found}, expected {wanted}{last}"


@dataclass(eq=False)
class Fenced(Rejected):
    """The commit relies on fence `fence` of lease `key`; the current is `current` (0 = free)."""

    code: ClassVar[str] = "fenced"
    key: str
    fence: int
    current: int
    holder: str | None = None


@dataclass(eq=False)
class LeaseHeld(Rejected):
    """Lease `key` belongs to `holder` under `fence` until `until_ms` (engine clock)."""

    code: ClassVar[str] = "lease_held"
    key: str
    holder: str
    fence: int
    until_ms: int


@dataclass(eq=False)
class NothingToClaim(Rejected):
    """For `waited_ms` no entry that matches `pattern` was free."""

    code: ClassVar[str] = "nothing_to_claim"
    pattern: str
    waited_ms: int


@dataclass(eq=False)
class StaleEpoch(Rejected):
    """The board is in epoch `current`, not in `yours`.

    `cause` says why the epoch began ("engine": the engine came back; "restore": the board was
    restored). `from_revision` is the last revision that survived, `head` the board's revision now.
    If several epochs began since your last request, both fields belong to the last one: then
    revisions below `from_revision` that you saw may be lost too.
    """

    code: ClassVar[str] = "stale_epoch"
    yours: str
    current: str
    number: int
    cause: str
    from_revision: int
    head: int


@dataclass(eq=False)
class HeadMoved(Rejected):
    """A restore was prepared for revision `expected`, and the board's head is `head` by now."""

    code: ClassVar[str] = "head_moved"
    expected: int
    head: int


@dataclass(eq=False)
class SnapshotFirst(Rejected):
    """A checkpoint that was asked for at revision `since` waits for `agent`.

    Commit the agent's memory, with `Delete(key)` among the operations; then continue. Until then,
    all other commits of the agent are refused, except changes of its leases.
    """

    code: ClassVar[str] = "snapshot_first"
    agent: str
    key: str
    since: int


@dataclass(eq=False)
class BoardFrozen(Rejected):
    """The board takes no commits until it is thawed: `by` froze it because of `note`.

    It was frozen at `since_ms` (the engine's clock), as revision `revision`. Reads and watches go
    on; commits of a board of `Board.waiting_for_thaw` wait instead.
    """

    code: ClassVar[str] = "board_frozen"
    by: str
    note: str
    since_ms: int
    revision: int

    def __str__(self) -> str:
        why = f": {self.note}" if self.note else ""
        return f"board frozen by {self.by} at revision {self.revision}{why}"


@dataclass(eq=False)
class NoSuchBoard(Rejected):
    """There is no board `board`, and this request does not create one."""

    code: ClassVar[str] = "no_such_board"
    board: str


@dataclass(eq=False)
class NoSuchCheckpoint(Rejected):
    """Board `board` has no checkpoint `name`."""

    code: ClassVar[str] = "no_such_checkpoint"
    board: str
    name: str


@dataclass(eq=False)
class BarrierMissed(Rejected):
    """No checkpoint was taken: `agents` did not bring in their state within `timeout_ms`."""

    code: ClassVar[str] = "barrier_missed"
    agents: list[str]
    timeout_ms: int


@dataclass(eq=False)
class AttemptTooOld(Rejected):
    """This attempt was not applied: it may be a late copy of one that was applied long ago.

    Since `known`, the board's revision that its writer knew, another process of `agent` displaced
    an answer of this lane; it may have been this commit's. If this was the only attempt, send it
    again with `head`, of the epoch that it named, as `known`; otherwise the outcome is unknown.
    """

    code: ClassVar[str] = "attempt_too_old"
    agent: str
    lane: int
    incarnation: str
    step: int
    known: int
    head: int


@dataclass(eq=False)
class StepSuperseded(Rejected):
    """Step `step` of this agent's lane is older than the last one accepted, `last_step`."""

    code: ClassVar[str] = "step_superseded"
    agent: str
    step: int
    last_step: int


@dataclass(eq=False)
class TypeMismatch(Rejected):
    """The operation on `key` needs a value of type `wanted` but found `found`."""

    code: ClassVar[str] = "type_mismatch"
    key: str
    wanted: str
    found: str


@dataclass(eq=False)
class DocumentRefused(Rejected):
    """An edit of document `key` was not acceptable, and the session has ended.

    `cause`: "malformed", "foreign" (under somebody else's client id), "gap" (an earlier edit is
    missing), "too_large", "stale" (made before a restore that its author had not seen),
    "read_only", "frozen" (the board is), "too_slow" (the client did not read) or "closed". The
    document and other clients are not affected.
    """

    code: ClassVar[str] = "document_refused"
    key: str
    cause: str
    reason: str


@dataclass(eq=False)
class FileRefused(Rejected):
    """The file, or directory, at `path` cannot be read into a workspace's snapshot, or written by a
    restore, because of `reason`. Nothing changed, on the board or in the directory."""

    code: ClassVar[str] = "file_refused"
    path: str
    reason: str

    def __str__(self) -> str:
        return f"file refused: {self.path}: {self.reason}"


@dataclass(eq=False)
class UnsavedFiles(Rejected):
    """A restore would lose changes to `count` files in `directory` that no snapshot has. `paths`
    are the first of them. Take a snapshot, or restore with `discard`."""

    code: ClassVar[str] = "unsaved_files"
    directory: str
    paths: list[str]
    count: int

    def __str__(self) -> str:
        return (
            f"unsaved files: {self.count} in {self.directory} changed since the last snapshot,"
            f" such as {', '.join(self.paths)}: take one, or discard them"
        )


@dataclass(eq=False)
class WorkspaceHeld(Rejected):
    """Process `pid` of this machine works on `directory`, as `holder`: an agent or a program, and
    its board. Try again when it has ended; a process that was killed holds nothing."""

    code: ClassVar[str] = "workspace_held"
    directory: str
    holder: str
    pid: int

    def __str__(self) -> str:
        return f"workspace held: process {self.pid} works on {self.directory}, as {self.holder}"


@dataclass(eq=False)
class LimitExceeded(Rejected):
    """`limit` names a row of blackboard/limits.py; `value` was more than its `maximum`.

    `account` is set if the limit is one account's share: it is the one that has used it up.
    """

    code: ClassVar[str] = "limit_exceeded"
    limit: str
    value: int
    maximum: int
    where: str | None = None
    account: str | None = None


@dataclass(eq=False)
class AccessDenied(Rejected):
    """`principal` does not have `right` on `key` (a key, a pattern or a method)."""

    code: ClassVar[str] = "access_denied"
    principal: str
    right: str
    key: str


@dataclass(eq=False)
class InvalidRequest(Rejected):
    """`field` of the request is not acceptable because of `reason`."""

    code: ClassVar[str] = "invalid_request"
    field: str
    reason: str

    def __str__(self) -> str:
        return f"invalid request: {self.field}: {self.reason}"


@dataclass(eq=False)
class Unauthenticated(Rejected):
    """No token was given, or the one given is malformed, expired or not ours."""

    code: ClassVar[str] = "unauthenticated"
    reason: str


@dataclass(eq=False)
class Compacted(Rejected):
    """The log starts at revision `oldest` now; `revision` and what follows it are gone from it."""

    code: ClassVar[str] = "compacted"
    revision: int
    oldest: int


@dataclass(eq=False)
class FutureRevision(Rejected):
    """Revision `revision` does not exist yet; the board's head is `head`."""

    code: ClassVar[str] = "future_revision"
    revision: int
    head: int


@dataclass(eq=False)
class RolledBack(Rejected):
    """The position `revision` belongs to a history that is no longer the board's.

    Everything after `from_revision` that you saw was lost or abandoned. The board is in `epoch`
    with revision `head`: read the state there, and go on from it. If several epochs began since
    `revision`, `from_revision` is where the last one went on: what you saw below it may be gone,
    too.
    """

    code: ClassVar[str] = "rolled_back"
    revision: int
    epoch: str
    from_revision: int
    head: int


@dataclass(eq=False)
class Resync(Rejected):
    """A restore at revision `revision` changed more than one delivery can hold.

    The board is in `epoch`, with the content of `from_revision`: read the state, and watch on from
    the revision that it was read at.
    """

    code: ClassVar[str] = "resync"
    revision: int
    epoch: str
    from_revision: int


def line_of(error: BaseException) -> str:
    """Any error as text, class and message; the class alone if its message cannot be made."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001 - `__str__` may be anybody's code
        return name


def _concrete(base: type[BlackboardError]) -> dict[str, type[BlackboardError]]:
    found: dict[str, type[BlackboardError]] = {}
    for kind in base.__subclasses__():
        found[kind.code] = kind
        found.update(_concrete(kind))
    return found


BY_CODE: Mapping[str, type[BlackboardError]] = _concrete(BlackboardError)
"""Every concrete error by its stable code."""


def from_fields(code: str, values: Mapping[str, Any]) -> BlackboardError:
    """Rebuild an error that another process described; unknown codes become RemoteProtocolError."""
    kind = BY_CODE.get(code)
    names = {field.name for field in fields(kind)} if kind else set()
    try:
        if kind is None:
            raise TypeError(code)
        # Fields that a newer version added are left out.
        return kind(**{name: value for name, value in values.items() if name in names})
    except TypeError:
        return RemoteProtocolError(reason=f"error {code!r} with fields {sorted(values)}")


__all__ = sorted(
    ["BY_CODE", "BlackboardError", "from_fields", *(kind.__name__ for kind in BY_CODE.values())]
)
