"""The one error tree. Fields, not prose: `code` and `fields()` are stable, the message is derived.

    BlackboardError
    |-- Rejected              nothing changed; the answer is final for this request
    |   |-- Conflict          a condition on a key or a prefix did not hold
    |   |-- Fenced            a lease that the commit relies on was granted anew, ended or voided
    |   |-- LeaseHeld         another holder has the lease
    |   |-- NothingToClaim    no entry that could be claimed was free in time
    |   |-- StaleEpoch        the board was restored, or its engine came back, since you looked
    |   |-- HeadMoved         somebody committed since a restore was prepared
    |   |-- SnapshotFirst     a checkpoint waits for this agent to bring in what it knows
    |   |-- NoSuchCheckpoint  no checkpoint has that name
    |   |-- BarrierMissed     agents did not bring in their state in time
    |   |-- AttemptTooOld     not applied, and perhaps a late copy: send it with a newer `known`
    |   |-- StepSuperseded    this step number was already followed by a later one
    |   |-- DocumentRefused   an edit of a document cannot be taken; start from a fresh copy
    |   |-- TypeMismatch      the operation does not fit the value that is there
    |   |-- LimitExceeded     a named limit of blackboard/types.py
    |   |-- AccessDenied      the principal has no such right on this key
    |   |-- InvalidRequest    not a request that could ever be accepted
    |   |-- Unauthenticated   no token, or one that is not valid (any more)
    |   |-- Compacted         the log no longer reaches back to that revision
    |   |-- FutureRevision    that revision does not exist yet
    |   |-- RolledBack        what you saw was lost or abandoned; start from the new head
    |   `-- Resync              a restore changed too much to be told; read the state anew
    |-- LeaseLost             a lease was lost while a block relied on it; its commits are Fenced
    |-- Unavailable           not done, the engine or the service cannot be reached; try again
    |-- OutcomeUnknown        sent, no answer: retry with the same commit id to find out
    |-- LocalProtocolError    this side was used wrongly
    |-- RemoteProtocolError   the peer sent something that is not the protocol
    |-- ModelFailed           a model did not answer, or not usably
    |-- CallFailed            a tool of an agent failed, as often as it may be tried
    |-- CallInterrupted       a call that may be made once only was begun, and its end is unknown
    |-- Diverged              an agent that was replayed did something else than is recorded
    |-- SchemaTooNew          the state of an agent was written by newer code
    |-- MigrationFailed       the state of an agent cannot be brought to the version of the code
    |-- InvalidState          the state of an agent is not one that its code accepts
    |-- Corrupt               stored bytes are not what was written; never retried
    |-- EngineRefused         the engine's settings would lose data
    `-- DataDirectoryInUse    another process owns the data directory

Errors hold primitives only, so this module imports nothing from the package and every error can
cross a process boundary: `to_fields` on one side, `from_fields` on the other.
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
        return type(self), tuple(self.fields().values())


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

    Commit what you know, with `Delete(key)` among the operations; then go on. Everything else that
    the agent commits, but for what it does with its leases, is refused until then.
    """

    code: ClassVar[str] = "snapshot_first"
    agent: str
    key: str
    since: int


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

    Since `known`, the board's revision that its writer knew, another process of `agent` pushed an
    answer out of this lane; it may have been this commit's. Whoever never sent another attempt of
    it sends it again with `head` as what is known; for everybody else the outcome is unknown.
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
    """What was sent for document `key` cannot be taken, and the session with it has ended.

    `cause`: "malformed", "foreign" (in the name of somebody else's client), "gap" (something before
    it is missing), "too_large", "stale" (made before a restore that its author had not seen),
    "read_only", "too_slow" (it did not read) or "closed". The document and all others are unharmed.
    """

    code: ClassVar[str] = "document_refused"
    key: str
    cause: str
    reason: str


@dataclass(eq=False)
class LimitExceeded(Rejected):
    """`limit` names a row of blackboard/types.py; `value` was more than its `maximum`."""

    code: ClassVar[str] = "limit_exceeded"
    limit: str
    value: int
    maximum: int
    where: str | None = None


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
    with revision `head`: read the state there, and go on from it.
    """

    code: ClassVar[str] = "rolled_back"
    revision: int
    epoch: str
    from_revision: int
    head: int


@dataclass(eq=False)
class Resync(Rejected):
    """A restore at revision `revision` changed more than a watcher is told at once.

    The board is in `epoch`, with the content of `from_revision`: read the state, and watch on from
    the revision that it was read at.
    """

    code: ClassVar[str] = "resync"
    revision: int
    epoch: str
    from_revision: int


@dataclass(eq=False)
class LeaseLost(BlackboardError):
    """Lease `key`, held under `fence`, was lost in the middle of a block, because of `reason`.

    The block was cancelled. What it committed before stands; nothing that it commits after another
    holder took the lease takes effect. `holder` has it now, if that is known.
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
class OutcomeUnknown(BlackboardError):
    """A commit was sent and its answer did not come: it may have been applied or not.

    `agent`, `lane`, `incarnation` and `step` name it; sending the same commit again finds out,
    unless it is `final`: later answers pushed it out, and only the board's log can tell.
    """

    code: ClassVar[str] = "outcome_unknown"
    retryable: ClassVar[bool] = True
    agent: str
    lane: int
    incarnation: str
    step: int
    reason: str
    final: bool = False


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
class ModelFailed(BlackboardError):
    """`model` did not answer, or not usably: `reason`. `status` is the HTTP status, if any.

    What may pass by itself was tried again already.
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


@dataclass(eq=False)
class Corrupt(BlackboardError):
    """`what` is not what was written: `reason`. Never retried, never repaired silently."""

    code: ClassVar[str] = "corrupt"
    what: str
    reason: str


@dataclass(eq=False)
class EngineRefused(BlackboardError):
    """The engine's `setting` has `value`, with which data would be lost; `needed` would do."""

    code: ClassVar[str] = "engine_refused"
    setting: str
    value: str
    needed: str


@dataclass(eq=False)
class DataDirectoryInUse(BlackboardError):
    """Process `pid` owns the data directory `path`; connect to it at `url` instead."""

    code: ClassVar[str] = "data_directory_in_use"
    path: str
    pid: int | None
    url: str | None

    def __str__(self) -> str:
        how = f"connect to it: blackboard.connect({self.url!r})" if self.url else "stop it first"
        return f"data directory {self.path} is in use by process {self.pid}; {how}"


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
        return kind(**{name: value for name, value in values.items() if name in names})
    except TypeError:
        return RemoteProtocolError(reason=f"error {code!r} with fields {sorted(values)}")
