"""What a run leaves behind about its leases: the log, and what its workers were told.

The log decides; times in it are of the engine's clock, which may jump.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from blackboard.core.commit import RESTORE, Change, ChangeKind, Lease, LogEntry
from blackboard.units import Fence, Key, Milliseconds, Revision


@dataclass(frozen=True, slots=True)
class Moment:
    """One revision: when, by whom, what became of leases, and which marked values it holds.

    A restore voids every lease, and puts back values that are not its own: it shows none. Where the
    engine came back (`dates`), each lease has its whole time to live from then on.
    """

    revision: Revision
    time_ms: Milliseconds
    author: str
    leases: tuple[tuple[ChangeKind, Lease], ...] = ()
    values: tuple[bytes, ...] = ()
    voids: bool = False
    dates: bool = False


@dataclass(frozen=True, slots=True)
class Acquired:
    """A worker was told that `holder` has lease `key` under `fence`."""

    key: Key
    holder: str
    fence: Fence


@dataclass(frozen=True, slots=True)
class Relied:
    """A commit of `value`, which no other commit has, that relied on a lease.

    `outcome` is "done" (as `revision`), "refused" or "unknown".
    """

    value: bytes
    key: Key
    holder: str
    fence: Fence
    outcome: str
    revision: Revision = 0


@dataclass(slots=True)
class LeaseHistory:
    """Everything that was recorded of one run on one board.

    `outages` are stretches (from, until) of the engine's time in which no service was there, or its
    clock jumped: nothing can happen in them. `set_back_ms` is by how much the clock was set back in
    all: what was prolonged afterwards, of which no log tells, may end so much earlier.
    """

    log: list[Moment] = field(default_factory=list)
    acquired: list[Acquired] = field(default_factory=list)
    relied: list[Relied] = field(default_factory=list)
    outages: list[tuple[Milliseconds, Milliseconds]] = field(default_factory=list)
    ended_ms: Milliseconds = 0
    set_back_ms: Milliseconds = 0


def moments(log: Iterable[LogEntry]) -> list[Moment]:
    """The log of a board as the checkers read it."""
    return [_moment(entry) for entry in log]


def _moment(entry: LogEntry) -> Moment:
    if entry.epoch is not None and entry.epoch.cause == RESTORE:
        return Moment(entry.revision, entry.time_ms, entry.author, voids=True)
    return Moment(
        entry.revision,
        entry.time_ms,
        entry.author,
        tuple((c.kind, c.lease) for c in entry.changes if c.lease is not None),
        tuple(_values(entry.changes)),
        dates=entry.epoch is not None,
    )


def _values(changes: Iterable[Change]) -> Iterable[bytes]:
    return (change.value for change in changes if change.value is not None)
