"""What a board refuses: nothing changed, and the answer is final for this request."""

from dataclasses import dataclass
from typing import Any, ClassVar

from blackboard.errors.root import BlackboardError


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
