"""Does what a simulated run left behind keep what is promised? By the checkers of guarantees.

What an engine lost is promised to be announced, and nothing of it to come back: whoever saw it is
told so before anything else is done for him. Each lost timeline is judged by itself, too: until its
end it was a board like any other.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from blackboard.client.views import RevisionEvent
from blackboard.core.commit import RESTORE, LogEntry
from blackboard.core.freeze import FROZEN_KEY
from blackboard.limits import DEFAULT
from tests.guarantees import checkers, lease_checkers
from tests.guarantees.history import Entry, History, Read, Watched, Write
from tests.guarantees.lease_history import LeaseHistory, moments
from tests.guarantees.traffic import entry_of
from tests.simulation.actors import COUNTED, Records, Seen
from tests.simulation.witness import Lost, Witness

Findings = dict[str, list[str]]

_BY_VALUE: Final = ("Exactly once", "Atomic")
"""Guarantees about commits of ours: what a restore puts back was committed before."""


def judge(records: Records, witness: Witness) -> Findings:
    """What was found against each guarantee; those that hold are left out."""
    found = _board(_present(records, witness), witness.log())
    for lost in witness.lost:
        for name, sentences in _board(_timeline(records, witness, lost), list(lost.log)).items():
            found.setdefault(name, []).extend(f"before the loss: {one}" for one in sentences)
    silent = _unannounced(records.seen, witness)
    if silent:
        found["Announced"] = silent
    return found


def judge_leases(
    records: Records,
    witness: Witness,
    outages: list[tuple[int, int]],
    ended_ms: int,
    set_back_ms: int,
) -> Findings:
    """L1 to L6 of the present timeline; lost revisions are not part of it.

    While the board is frozen nothing is swept. A thaw may be among what was lost: then it is frozen
    for good.
    """
    log = [entry for entry in witness.log() if witness.loss_of(entry.revision) is None]
    outages = [*outages, *_frozen(log, ended_ms)]
    kept = [one for one in records.relied if witness.loss_of(one.revision or one.fence) is None]
    got = [one for one in records.acquired if witness.loss_of(one.fence) is None]
    history = LeaseHistory(moments(log), got, kept, outages, ended_ms, set_back_ms)
    return lease_checkers.check(history)


def _frozen(log: Iterable[LogEntry], ended_ms: int) -> Iterator[tuple[int, int]]:
    """The stretches in which the board was frozen, each with the time until the next sweep."""
    began_ms: int | None = None
    for entry in log:
        for change in entry.changes:
            if change.key == FROZEN_KEY and change.value is not None:
                began_ms = entry.time_ms
            elif change.key == FROZEN_KEY and began_ms is not None:
                yield began_ms, entry.time_ms + DEFAULT.boards.sweep_interval_ms
                began_ms = None
    if began_ms is not None:
        yield began_ms, ended_ms


def _board(history: History, log: list[LogEntry]) -> Findings:
    """The eleven guarantees of checkers.py."""
    plain = replace(history, log=list(_entries(log)))
    ours = replace(history, log=[_without_restores(entry, raw) for entry, raw in _pairs(log)])
    found = {
        name: checker(ours if name in _BY_VALUE else plain)
        for name, checker in checkers.GUARANTEES.items()
    }
    return {name: sentences for name, sentences in found.items() if sentences}


def _pairs(log: Iterable[LogEntry]) -> Iterable[tuple[Entry, LogEntry]]:
    return ((_entry(entry), entry) for entry in log)


def _entries(log: Iterable[LogEntry]) -> Iterable[Entry]:
    return (_entry(entry) for entry in log)


def _entry(entry: LogEntry) -> Entry:
    found = entry_of(RevisionEvent.of(entry))
    is_restore = entry.epoch is not None and entry.epoch.cause == RESTORE
    return replace(found, from_revision=None) if is_restore else found


def _without_restores(entry: Entry, raw: LogEntry) -> Entry:
    """What our writers changed in a revision: nothing of the service's own, nor of others."""
    if raw.epoch is not None and raw.epoch.cause == RESTORE:
        return replace(entry, changes=())
    mine = tuple(change for change in entry.changes if _is_written(change[0]))
    return replace(entry, changes=mine)


def _is_written(key: str) -> bool:
    return key.startswith(("public/pair/", "public/counter/", "public/own/")) and key != COUNTED


def _present(records: Records, witness: Witness) -> History:
    """What belongs to the timeline that is there at the end."""
    history = records.history
    writes = [
        replace(write, outcome="refused") if witness.loss_of(write.revision) else write
        for write in history.writes
    ]
    reads = [read for read in history.reads if witness.loss_of(read.revision) is None]
    watches = [watches for watches in history.watches if _where(watches, witness) is None]
    return History(writes=writes, reads=reads, watches=watches)


def _timeline(records: Records, witness: Witness, lost: Lost) -> History:
    """What belongs to a timeline that was lost, up to its end."""
    history = records.history

    def belongs(revision: int) -> bool:
        return revision == 0 or revision in lost.revisions

    writes = [_as_of(write, lost, belongs(write.revision)) for write in history.writes]
    reads = [read for read in history.reads if belongs(read.revision)]
    watches = [watches for watches in history.watches if _where(watches, witness) is lost]
    return History(writes=writes, reads=_before(reads, lost), watches=watches)


def _as_of(write: Write, lost: Lost, belongs: bool) -> Write:
    """What was known of a commit when the timeline ended."""
    if write.outcome == "done" and belongs:
        return write
    if write.outcome == "refused" and write.ended <= lost.ended_s:
        return write
    return replace(write, outcome="unknown", revision=0)


def _before(reads: list[Read], lost: Lost) -> list[Read]:
    return [read for read in reads if read.started <= lost.ended_s]


def _where(watches: list[Watched], witness: Witness) -> Lost | None:
    """The lost timeline that a watcher saw something of."""
    for watched in watches:
        for told in watched.told:
            lost = witness.loss_of(told.revision)
            if lost is not None:
                return lost
    return None


def _unannounced(seen: list[Seen], witness: Witness) -> list[str]:
    """Clients that saw what was lost and had a commit done after it without having been told."""
    found = []
    for client in sorted({one.client for one in seen}):
        knows: Lost | None = None
        for one in (one for one in seen if one.client == client):
            if one.kind == "stale":
                knows = None
            elif one.kind == "done" and knows is not None and one.revision not in knows.revisions:
                found.append(f"{client} committed {one.revision} and never learned of the loss")
            knows = witness.loss_of(one.revision) or knows
    return found
