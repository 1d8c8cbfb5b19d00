"""Does a history keep what is promised of leases? One pure function for each of L1 to L6.

Each returns what it found against it, as sentences; an empty list is good. The promises stand in
blackboard/core/lease.py.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

from msgspec.structs import replace

from blackboard.core.commit import ChangeKind, Lease, Waiter
from blackboard.limits import DEFAULT
from blackboard.units import Key, Milliseconds
from tests.guarantees.lease_history import LeaseHistory, Moment

Checker = Callable[[LeaseHistory], list[str]]
Step = tuple[Moment, ChangeKind | None, Lease, Lease | None]
"""One change of one lease: when, what (None: a restore voided it), as the log has it, and the lease
as it was before."""

LATE_MS = 15_000
"""What a loaded machine may need, beyond a sweep, to notice that a lease ran out. It tells a lease
that is ended late from one that is forgotten; how soon it is, is measured elsewhere."""
_ENDS = (ChangeKind.RELEASE, ChangeKind.EXPIRE, None)


def steps(history: LeaseHistory) -> Iterator[Step]:
    """Every change of every lease, with the lease as it was before it."""
    current: dict[Key, Lease] = {}
    ttls: dict[Key, Milliseconds] = {}
    for moment in history.log:
        if moment.dates:
            for key, lease in current.items():
                current[key] = replace(lease, until_ms=moment.time_ms + ttls[key])
        if moment.voids:
            yield from ((moment, None, lease, lease) for lease in current.values())
            current.clear()
        for kind, lease in moment.leases:
            yield moment, kind, lease, current.get(lease.key)
            if kind in _ENDS:
                current.pop(lease.key, None)
            else:
                current[lease.key] = lease
                if kind is not ChangeKind.WAIT or lease.key not in ttls:
                    ttls[lease.key] = lease.until_ms - moment.time_ms


def one_holder(history: LeaseHistory) -> list[str]:
    """L1: at most one (fence, holder) is current; only its holder can end it before its time."""
    found = []
    for moment, kind, lease, before in steps(history):
        where = f"{lease.key} at {moment.revision}"
        if kind is None:
            continue
        if kind is ChangeKind.GRANT:
            if before and _has_time(history, before, moment) and not _is_of(moment, before):
                found.append(f"{where} was granted to {lease.holder} while {before.holder} had it")
        elif before is None or (before.fence, before.holder) != (lease.fence, lease.holder):
            found.append(f"{where}: {kind} of a lease that {lease.holder} did not have")
        elif kind is ChangeKind.EXPIRE and _has_time(history, before, moment):
            found.append(f"{where} was taken from {lease.holder} before its time")
    return found


def _has_time(history: LeaseHistory, held: Lease | Waiter, moment: Moment) -> bool:
    """Whether a lease or a ticket had time left for certain."""
    return held.until_ms - history.set_back_ms > moment.time_ms


def fences_grow(history: LeaseHistory) -> list[str]:
    """L2: the fence of a grant is its revision, and later grants have higher ones."""
    found, last = [], dict[Key, int]()
    for moment, kind, lease, _ in steps(history):
        if kind is ChangeKind.GRANT:
            if lease.fence != moment.revision or lease.fence <= last.get(lease.key, 0):
                found.append(f"{lease.key} at {moment.revision} was granted under {lease.fence}")
            last[lease.key] = lease.fence
    return found


def log_names_grants(history: LeaseHistory) -> list[str]:
    """L3: each lease that a worker was granted is a grant in the log, to it, under that fence."""
    granted = {
        (lease.key, lease.holder, lease.fence)
        for _, kind, lease, _ in steps(history)
        if kind is ChangeKind.GRANT
    }
    told = ((one.key, one.holder, one.fence) for one in history.acquired)
    return [f"{one} is not in the log" for one in told if one not in granted]


def stale_fences_change_nothing(history: LeaseHistory) -> list[str]:
    """L4: a commit is in the log only if its fence was current there, and not if it was refused."""
    places: dict[bytes, list[int]] = {}
    for moment in history.log:
        for value in moment.values:
            places.setdefault(value, []).append(moment.revision)
    tenures = list(_tenures(history))
    found = []
    for relied in history.relied:
        at = places.get(relied.value, [])
        if relied.outcome == "done" and at != [relied.revision]:
            found.append(f"{relied.value!r} was done at {relied.revision}, the log has it at {at}")
        if relied.outcome == "refused" and at:
            found.append(f"{relied.value!r} was refused, the log has it at {at}")
        name = (relied.key, relied.holder, relied.fence)
        for revision in at:
            if not any(name == held and a < revision <= b for held, a, b in tenures):
                found.append(f"{relied.value!r} is at {revision}, where {name} was not current")
    return found


def ended_leases_go_on(history: LeaseHistory) -> list[str]:
    """L5: a lease that ran out is ended or granted within a sweep.

    Renewals are not in the log: nobody who is watched holds a lease for LATE_MS on purpose.
    """
    found, current = [], dict[Key, Lease]()
    for moment, kind, lease, before in steps(history):
        if before is not None:
            found += _overdue(history, before, moment.time_ms)
        current[lease.key] = lease
        if kind in _ENDS:
            del current[lease.key]
    for lease in current.values():
        found += _overdue(history, lease, history.ended_ms)
    return found


def served_in_order(history: LeaseHistory) -> list[str]:
    """L6: a lease goes to the first waiter whose ticket is good; its queue keeps its order."""
    found = []
    for moment, kind, lease, before in steps(history):
        waiters = before.waiters if before else ()
        if kind is ChangeKind.GRANT:
            names = [waiter.holder for waiter in waiters]
            place = names.index(lease.holder) if lease.holder in names else len(names)
            for passed in waiters[:place]:
                if _has_time(history, passed, moment):
                    text = f"{lease.key} at {moment.revision}: {passed.holder} was before"
                    found.append(f"{text} {lease.holder}")
            waiters = waiters[place + 1 :]
        if kind not in _ENDS and not _keeps_order(waiters, lease.waiters):
            found.append(f"{lease.key} at {moment.revision}: its queue changed its order")
    return found


LEASE_GUARANTEES: dict[str, Checker] = {
    "L1": one_holder,
    "L2": fences_grow,
    "L3": log_names_grants,
    "L4": stale_fences_change_nothing,
    "L5": ended_leases_go_on,
    "L6": served_in_order,
}


def check(history: LeaseHistory) -> dict[str, list[str]]:
    """What was found against each guarantee; guarantees that hold are left out."""
    found = {name: checker(history) for name, checker in LEASE_GUARANTEES.items()}
    return {name: sentences for name, sentences in found.items() if sentences}


def _is_of(moment: Moment, lease: Lease) -> bool:
    """Whether the holder's own agent committed it: a release that passed the lease on."""
    return lease.holder.rpartition("~")[0] == moment.author or lease.holder == moment.author


def _tenures(history: LeaseHistory) -> Iterator[tuple[tuple[Key, str, int], int, int]]:
    """(key, holder, fence), the revision of the grant, and that at which it ended."""
    begun: dict[Key, Lease] = {}
    for moment, kind, lease, _ in steps(history):
        old = begun.get(lease.key)
        if old is not None and (kind is ChangeKind.GRANT or kind in _ENDS):
            yield (old.key, old.holder, old.fence), old.fence, moment.revision
            del begun[lease.key]
        if kind is ChangeKind.GRANT:
            begun[lease.key] = lease
    for lease in begun.values():
        yield (lease.key, lease.holder, lease.fence), lease.fence, 2**53


def _overdue(history: LeaseHistory, lease: Lease, now_ms: Milliseconds) -> list[str]:
    lost_ms = sum(
        max(0, min(until_ms, now_ms) - max(from_ms, lease.until_ms))
        for from_ms, until_ms in history.outages
    )
    late_ms = now_ms - lease.until_ms - lost_ms
    if late_ms <= DEFAULT.boards.sweep_interval_ms + LATE_MS:
        return []
    return [f"{lease.key} of {lease.holder} ran out, and {late_ms} ms later it still had it"]


def _keeps_order(before: tuple[Waiter, ...], after: tuple[Waiter, ...]) -> bool:
    """Whether waiters only left, and joined at the end."""
    place = {waiter.holder: index for index, waiter in enumerate(before)}
    order = [place.get(waiter.holder, len(before)) for waiter in after]
    return all(a <= b for a, b in pairwise(order))
