"""Every check that a commit passes between its request and the engine's decision, in order.

`GATES` is the whole list. A gate that is off for a service, a principal or a transport is not in
the list of its commits (`CommitGates.names`), and costs them nothing.

A gate with a `check_board` is called here, once for commits that come together; one with a `check`,
and `log rate`, for each. The others are implemented where they apply: around the request (audit,
share), at its board (votes), in the queue and where a batch leaves it (room, token again, access
number, encryption), and in the engine, which decides.

Invariants
- A commit that a gate refuses does not reach any later gate, and changes nothing.
- Embedded and served commits pass the same gates in the same order, with two exceptions: commits
  that the wire format has validated are not validated again, and embedded commits do not queue for
  a share of the processor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from blackboard.core import access, commit as core
from blackboard.core.access import Principal
from blackboard.core.commit import Commit
from blackboard.core.fields import check_note
from blackboard.core.path import check_holder, check_key, check_prefix
from blackboard.encryption.store import SealedStore
from blackboard.errors import InvalidRequest
from blackboard.limits import (
    INTEGER_MAX,
    LANES_MAX,
    LEASE_TTL_MS_MIN,
    REVISION_MAX,
    TTL_MS_MAX,
)
from blackboard.server.host import Host
from blackboard.server.overload.rate_limits import clock_ms
from blackboard.server.security.revocations import shared_of
from blackboard.wire.codec import Prepared, prepare

Check = Callable[[Principal, Commit], None]
BoardCheck = Callable[[Host, Principal, str], None]


@dataclass(frozen=True, slots=True)
class When:
    """When a gate is in the list: in words, and as a function of the host, the principal, and
    whether its commits are `served` (come over a connection)."""

    text: str
    holds: Callable[[Host, Principal, bool], bool]


ALWAYS: Final = When("always", lambda host, principal, served: True)
SERVED: Final = When("over a connection", lambda host, principal, served: served)
IN_PROCESS: Final = When("in its own process", lambda host, principal, served: not served)
TOKEN: Final = When("under a token", lambda host, principal, served: bool(principal.credential))
METERED: Final = When(
    "with a rate", lambda host, principal, served: host.meters.meter(principal) is not None
)
METERED_PEER: Final = When(
    "with a rate, over a connection",
    lambda host, principal, served: served and METERED.holds(host, principal, served),
)
SHARED: Final = When(
    "under a token, on Redis",
    lambda host, principal, served: (
        bool(principal.credential) and shared_of(host.store) is not None
    ),
)
VOTED: Final = When(
    "with lock masters", lambda host, principal, served: host.lock_masters is not None
)
SEALED: Final = When(
    "with a master key", lambda host, principal, served: isinstance(host.store, SealedStore)
)


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate."""

    name: str
    refuses: str
    """The commits that it refuses, and the error."""
    why: str
    """Why it is at this place in the order."""
    when: When = ALWAYS
    check_board: BoardCheck | None = None
    """Set if it looks at no commit."""
    check: Check | None = None
    """Without both, it is implemented further on, or around the request."""


GATES: Final = (
    Gate(
        "audit",
        "nothing; it records what the gates behind it refuse",
        "around all others: no refusal gets past it",
        TOKEN,
    ),
    Gate(
        "rates",
        "RateLimited: more requests or bytes than the account may send",
        "costs least, and keeps what a flood costs small",
        METERED_PEER,
    ),
    Gate(
        "load",
        "Overloaded: the event loop is late; admins are let through",
        "before any work is done that would make it later",
        SERVED,
    ),
    Gate(
        "share",
        "nothing; it waits until the account has its share of the processor",
        "before the message is read, which is the first thing that costs time",
        SERVED,
    ),
    Gate(
        "serving",
        "Unavailable while the service stops; EngineRefused while the engine would lose data",
        "of no use to anybody if it is not served",
        check_board=lambda host, principal, board: host.check_serving(),
    ),
    Gate(
        "token",
        "Unauthenticated: expired or revoked; Unavailable: revocations are not known",
        "before anything is said about boards and keys",
        TOKEN,
        lambda host, principal, board: host.revocations.check(principal),
    ),
    Gate(
        "board",
        "AccessDenied: not a board of this principal; InvalidRequest: not a name",
        "one comparison, before one for each operation",
        check_board=lambda host, principal, board: access.require_board(principal, board),
    ),
    Gate(
        "form",
        "InvalidRequest, LimitExceeded: a malformed key, number, value or note",
        "what follows relies on it; the wire format has validated what is served",
        IN_PROCESS,
        check=lambda principal, commit: check_commit(commit),
    ),
    Gate(
        "rights",
        "AccessDenied: no right to a key of an operation, condition, fence or read",
        "before the commit is counted or anybody waits for it",
        check=access.require_commit,
    ),
    Gate(
        "log rate",
        "RateLimited: the logs would grow faster than the account may let them",
        "needs the encoded size; what is refused before is not counted",
        METERED,
    ),
    Gate(
        "votes",
        "Unavailable: no majority of the lock masters votes for a lease",
        "before the queue: a commit that waits for votes holds up no other one",
        VOTED,
    ),
    Gate(
        "room",
        "Overloaded: too many commits, or bytes of them, are waiting",
        "the last moment at which nothing was promised",
    ),
    Gate(
        "token again",
        "Unauthenticated, Unavailable: as `token`, of what happened while it was queued",
        "as the batch leaves: a commit may have waited for seconds",
        TOKEN,
    ),
    Gate(
        "access number",
        "Unauthenticated: another process revoked the token, and this one had not read that",
        "with the batch, in the engine: nothing comes between it and the decision",
        SHARED,
    ),
    Gate(
        "encryption",
        "Corrupt, LimitExceeded: a private value that cannot be encrypted or added to",
        "next to the engine: nothing behind it sees a plain value",
        SEALED,
    ),
    Gate(
        "identity",
        "StepSuperseded, AttemptTooOld, OutcomeUnknown; a retry gets its first answer",
        "first in the engine: a retry is never decided twice",
    ),
    Gate(
        "epoch",
        "StaleEpoch: the commit is from before a restore or a loss",
        "what it knows of the board is of another history",
    ),
    Gate(
        "size",
        "LimitExceeded, InvalidRequest: too many operations, conditions or fences, or nothing",
        "bounds what the checks behind it cost",
    ),
    Gate(
        "freeze",
        "BoardFrozen: an admin froze the board",
        "an incident overrides whatever the commit is about",
    ),
    Gate(
        "barrier",
        "SnapshotFirst: a checkpoint waits for this agent's state",
        "before its fences: an agent that is asked answers first",
    ),
    Gate(
        "fences",
        "Fenced: a lease that the commit relies on is gone",
        "before its conditions: its holder learns that it is not the holder",
    ),
    Gate(
        "conditions",
        "Conflict, FutureRevision, Compacted: a key or a prefix is not as it was read",
        "before its operations, which are then certain of what they change",
    ),
    Gate(
        "operations",
        "Conflict, TypeMismatch, LimitExceeded: an operation cannot be applied, or a quota",
        "last: the quotas count what would be there afterwards",
    ),
)
"""All gates; `core/model.py::decide` has the order in the engine, from `identity` on."""


class CommitGates:
    """The gates of one principal's commits."""

    def __init__(self, host: Host, principal: Principal, *, served: bool) -> None:
        self._host = host
        # Looked up once: an account keeps the same meter for as long as anything refers to it.
        self._meter = host.meters.meter(principal)
        on = tuple(gate for gate in GATES if gate.when.holds(host, principal, served))
        self.names = tuple(gate.name for gate in on)
        """The names of the gates that are on, in order."""
        self._board_checks = tuple(gate.check_board for gate in on if gate.check_board is not None)
        self._checks = tuple(gate.check for gate in on if gate.check is not None)

    def check_board(self, principal: Principal, board: str) -> None:
        """Pass the first gates, once for commits that come together. Errors: those of the
        gates."""
        for check in self._board_checks:
            check(self._host, principal, board)

    def passed(self, principal: Principal, commit: Commit) -> Prepared:
        """Pass the other gates before the board, and encode the commit. Errors: those of the
        gates."""
        for check in self._checks:
            check(principal, commit)
        # After the checks: a commit that is refused is neither encoded nor counted.
        prepared = prepare(commit)
        if self._meter is not None:
            refusal = self._meter.take_log(prepared.size, clock_ms())
            if refusal is not None:
                raise refusal
        return prepared


# --- form -------------------------------------------------------------------------------------
# `wire/methods.py` has already validated requests from connections, but not those of programs that
# use the embedded engine. Without this gate, a malformed key or a float in an increment would stay
# in their log for ever.


def check_commit(commit: core.Commit) -> None:
    """Check names, keys, numbers and the note of `commit`; the engine checks counts.

    Errors: InvalidRequest, LimitExceeded; each names the field.
    """
    _check_number("lane", commit.id.lane, 0, LANES_MAX - 1)
    _check_number("step", commit.id.step, 0, INTEGER_MAX)
    for op in commit.ops:
        _check_op(op)
    for condition in commit.conditions:
        _check_condition(condition)
    for fence in commit.fences:
        _check_type("fences", fence, core.HeldFence)
        _check_lease(fence.key, fence.holder)
        _check_number("fence", fence.fence, 1, REVISION_MAX)
    for ground in commit.based_on:
        _check_pair("based_on", ground)
        key, revision = ground
        check_key(key)
        _check_number("based_on", revision, 0, REVISION_MAX)
    check_note(commit.note)


def _check_condition(condition: core.Condition) -> None:
    if isinstance(condition, core.KeyAt):
        check_key(condition.key)
        _check_number("revision", condition.revision, core.PRESENT, REVISION_MAX)
    else:
        _check_type("conditions", condition, core.PrefixUnchanged)
        check_prefix(condition.prefix)
        _check_number("since", condition.since, 0, REVISION_MAX)


def _check_op(op: core.Op) -> None:
    match op:
        case core.Put():
            check_key(op.key)
            _check_value(op.value)
            _check_ttl(op.ttl_ms)
        case core.Append():
            check_prefix(op.prefix)
            _check_value(op.value)
            _check_ttl(op.ttl_ms)
        case core.Delete():
            check_key(op.key)
        case core.DeletePrefix():
            check_prefix(op.prefix)
        case core.Increment():
            check_key(op.key)
            _check_number("by", op.by, -INTEGER_MAX, INTEGER_MAX)
        case core.Grant():
            _check_lease(op.key, op.holder)
            _check_number("ttl_ms", op.ttl_ms, LEASE_TTL_MS_MIN, TTL_MS_MAX)
            _check_flag("wait", op.wait)
        case core.Renew():
            _check_lease(op.key, op.holder)
            # A waiter has no fence yet: 0 names its ticket in the queue.
            _check_number("fence", op.fence, 0, REVISION_MAX)
            _check_number("ttl_ms", op.ttl_ms, LEASE_TTL_MS_MIN, TTL_MS_MAX)
        case core.Release():
            _check_lease(op.key, op.holder)
            _check_number("fence", op.fence, 0, REVISION_MAX)
        case core.Expire():
            _check_lease(op.key, op.holder)
            _check_number("fence", op.fence, 1, REVISION_MAX)
        case _:
            # Typed programs cannot get here. Without this, an untyped one would break the engine
            # for all.
            raise InvalidRequest(field="ops", reason=f"{op!r:.100} is no operation")


def _check_type(field: str, given: object, wanted: type) -> None:
    if not isinstance(given, wanted):
        raise InvalidRequest(field=field, reason=f"{given!r:.100} is no {wanted.__name__}")


def _check_pair(field: str, given: object) -> None:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InvalidRequest(field=field, reason=f"{given!r:.100} is no (key, revision)")


def _check_value(value: bytes) -> None:
    """Exactly `bytes`: a mutable value could change after it was committed."""
    if type(value) is not bytes:
        reason = f"a {type(value).__name__} is no encoded value"
        raise InvalidRequest(field="value", reason=reason)


def _check_ttl(ttl_ms: int | None) -> None:
    if ttl_ms is not None:
        _check_number("ttl_ms", ttl_ms, 1, TTL_MS_MAX)


def _check_lease(key: str, holder: str) -> None:
    check_key(key)
    check_holder(holder)


def _check_flag(field: str, flag: bool) -> None:
    if type(flag) is not bool:
        raise InvalidRequest(field=field, reason=f"{flag!r} is neither true nor false")


def _check_number(field: str, number: int, minimum: int, maximum: int) -> None:
    """Exactly `int`: a bool or a float is encoded as such, and cannot be read back as an
    integer."""
    if type(number) is not int or not minimum <= number <= maximum:
        reason = f"{number!r} is not an integer in {minimum}..{maximum}"
        raise InvalidRequest(field=field, reason=reason)
