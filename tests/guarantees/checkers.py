"""Does a history keep what is promised? One pure function for each guarantee.

Each returns what it found against it, as sentences; an empty list is good. The names are those of
docs/guarantees.md. The six of a watch are etcd's (tests/robustness/validate/watch.go checks the
same ones). Linearizability needs no search here, because every commit has its place in the log: it
is enough that the order of revisions agrees with real time and that reads show a prefix (the
version-order idea of Elle, Kingsbury and Alvaro, VLDB 2020).
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise

from tests.guarantees.history import Entry, History, Mark, Read, Value, Watched

Checker = Callable[[History], list[str]]

# --- watches --------------------------------------------------------------------------------------


def watch_ordered(history: History) -> list[str]:
    """Revisions arrive in increasing order."""
    return [
        f"revision {later.revision} came after {earlier.revision}"
        for watched in _all(history)
        for earlier, later in pairwise(watched.entries)
        if later.revision < earlier.revision
    ]


def watch_unique(history: History) -> list[str]:
    """No revision arrives twice, not even across watches that continue each other."""
    found = []
    for watches in history.watches:
        counts = Counter(entry.revision for watched in watches for entry in watched.entries)
        found += [f"revision {number} came {n} times" for number, n in counts.items() if n > 1]
    return found


def watch_atomic(history: History) -> list[str]:
    """A delivery of a revision has all of its changes that match, and nothing else."""
    log = {entry.revision: entry for entry in history.log}
    found = []
    for watched in _all(history):
        for told in watched.entries:
            entry = log.get(told.revision)
            if entry is None:
                found.append(f"revision {told.revision} is not in the log")
            elif dict(told.changes) != dict(_matching(entry, watched)):
                found.append(f"revision {told.revision} was delivered with other changes")
    return found


def watch_reliable(history: History) -> list[str]:
    """Nothing that matches is left out between where a watch began and where it is."""
    found = []
    for watched in _all(history):
        told = {entry.revision for entry in watched.entries}
        wanted = _between(history.log, watched.after, watched.position)
        missing = [e.revision for e in wanted if _matching(e, watched) and e.revision not in told]
        found += [f"revision {revision} was left out" for revision in missing]
    return found


def watch_resumable(history: History) -> list[str]:
    """A watch begins exactly where the one before had come to, and tells nothing from before."""
    found = []
    for watches in history.watches:
        for earlier, later in pairwise(watches):
            if later.after != earlier.position:
                found.append(f"went on after {later.after} instead of {earlier.position}")
        for watched in watches:
            early = [e.revision for e in watched.entries if e.revision <= watched.after]
            found += [f"a watch after {watched.after} received {r}" for r in early]
    return found


def watch_bookmarkable(history: History) -> list[str]:
    """After the mark of revision r nothing up to r comes any more, and marks never go back."""
    found = []
    for watched in _all(history):
        highest = watched.after
        for told in watched.told:
            if isinstance(told, Mark):
                if told.revision < highest:
                    found.append(f"mark {told.revision} came after {highest}")
                highest = max(highest, told.revision)
            elif told.revision <= highest:
                found.append(f"revision {told.revision} came after mark {highest}")
    return found


# --- commits and reads ----------------------------------------------------------------------------


def revisions_never_repeat(history: History) -> list[str]:
    """The log has each revision once, without gaps but where an epoch begins; so have answers."""
    found = []
    for earlier, later in pairwise(history.log):
        if later.from_revision is None and later.revision != earlier.revision + 1:
            found.append(f"revision {later.revision} follows {earlier.revision} in the log")
        if later.from_revision is not None and later.revision <= earlier.revision:
            found.append(f"the epoch at {later.revision} begins before {earlier.revision}")
    answered = Counter(write.revision for write in history.writes if write.outcome == "done")
    found += [f"{n} commits were answered with revision {r}" for r, n in answered.items() if n > 1]
    return found


def exactly_once(history: History) -> list[str]:
    """A commit that was done is in the log once, where it was said to be; one that was refused is
    not there; one whose outcome is unknown is there at most once; nobody else's is there."""
    places: dict[Value, list[int]] = defaultdict(list)
    for entry in history.log:
        for value in {value for _, value in entry.changes if value is not None}:
            places[value].append(entry.revision)
    found = []
    for write in history.writes:
        at = places.pop(write.value, [])
        match write.outcome:
            case "done":
                is_right = at == [write.revision]
            case "refused":
                is_right = at == []
            case _:
                is_right = len(at) <= 1
        if not is_right:
            found.append(
                f"{write.value} was {write.outcome} ({write.revision}), log has it at {at}"
            )
    return found + [f"nobody asked for {value}, it is at {at}" for value, at in places.items()]


def atomic(history: History) -> list[str]:
    """A commit changes all of its keys in one revision, or none."""
    log = {entry.revision: dict(entry.changes) for entry in history.log}
    found = []
    for write in history.writes:
        if write.outcome == "done":
            changes = log.get(write.revision, {})
            if any(changes.get(key) != write.value for key in write.keys):
                found.append(f"{write.value} at {write.revision} is not whole: {changes}")
    by_value = {write.value: write for write in history.writes}
    for entry in history.log:
        for _, value in entry.changes:
            asked = by_value.get(str(value))
            if asked and {key for key, v in entry.changes if v == value} != set(asked.keys):
                found.append(f"{value} at {entry.revision} is not whole")
    return found


def no_lost_update(history: History) -> list[str]:
    """Between what a commit expected of a key and the commit itself nobody changed the key."""
    changed: dict[str, list[int]] = defaultdict(list)
    removed: set[tuple[str, int]] = set()
    for entry in history.log:
        for key, value in entry.changes:
            changed[key].append(entry.revision)
            if value is None:
                removed.add((key, entry.revision))
    found = []
    for write in history.writes:
        if write.outcome == "done" and write.expected is not None:
            revisions = changed[write.keys[0]]
            before = revisions[: bisect_left(revisions, write.revision)]
            last = before[-1] if before else 0
            if (write.keys[0], last) in removed:
                last = 0  # what is not there is expected as if it never was
            if last != write.expected:
                found.append(f"{write.value} expected {write.expected}, but {last} was there")
    return found


def linearizable(history: History) -> list[str]:
    """The order of revisions agrees with real time, and a read shows exactly a prefix of the log.

    Whatever was answered before something began comes before it; what began after something was
    answered comes after it.
    """
    done = [write for write in history.writes if write.outcome == "done"]
    by_end = sorted(done, key=lambda write: write.ended)
    ends = [write.ended for write in by_end]
    highest = list(accumulate((write.revision for write in by_end), max, initial=0))
    found = []
    for write in done:
        least = highest[bisect_left(ends, write.started)]
        if write.revision <= least:
            found.append(f"{write.value} is {write.revision}, but {least} was answered before")
    return found + _reads_are_prefixes(history, ends, highest)


def _reads_are_prefixes(history: History, ends: list[float], highest: list[int]) -> list[str]:
    found = []
    reads = sorted(history.reads, key=lambda read: read.ended)
    read_ends = [read.ended for read in reads]
    read_highest = list(accumulate((read.revision for read in reads), max, initial=0))
    for read in reads:
        seen = read_highest[bisect_left(read_ends, read.started)]
        least = max(highest[bisect_left(ends, read.started)], seen)
        if read.revision < least:
            found.append(f"a read at {read.revision} began after {least} was answered")
    for write in history.writes:
        if write.outcome == "done":
            seen = read_highest[bisect_left(read_ends, write.started)]
            if write.revision <= seen:
                found.append(f"{write.value} is {write.revision}, but {seen} was read before")
    return found + _contents(history.log, history.reads)


def _contents(log: list[Entry], reads: Iterable[Read]) -> list[str]:
    """Reads that show something else than the log replayed to their revision."""
    found, state, position = [], dict[str, Value](), 0
    revisions = [entry.revision for entry in log]
    for read in sorted(reads, key=lambda read: read.revision):
        until = bisect_right(revisions, read.revision)
        for entry in log[position:until]:
            for key, value in entry.changes:
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        position = until
        expected = {key: state[key] for key in read.keys if key in state}
        if dict(read.values) != expected:
            found.append(f"a read at {read.revision} showed {read.values}, not {expected}")
    return found


WATCH_GUARANTEES: dict[str, Checker] = {
    "Watch: Ordered": watch_ordered,
    "Watch: Unique": watch_unique,
    "Watch: Atomic": watch_atomic,
    "Watch: Reliable": watch_reliable,
    "Watch: Resumable": watch_resumable,
    "Watch: Bookmarkable": watch_bookmarkable,
}
BOARD_GUARANTEES: dict[str, Checker] = {
    "Atomic": atomic,
    "Ordered": revisions_never_repeat,
    "Linearizable": linearizable,
    "No lost update": no_lost_update,
    "Exactly once": exactly_once,
}
GUARANTEES = BOARD_GUARANTEES | WATCH_GUARANTEES


def check(history: History) -> dict[str, list[str]]:
    """What was found against each guarantee; guarantees that hold are left out."""
    found = {name: checker(history) for name, checker in GUARANTEES.items()}
    return {name: sentences for name, sentences in found.items() if sentences}


def _all(history: History) -> Iterable[Watched]:
    return (watched for watches in history.watches for watched in watches)


def _matching(entry: Entry, watched: Watched) -> tuple[tuple[str, Value | None], ...]:
    return tuple(change for change in entry.changes if watched.sees(change[0]))


def _between(log: list[Entry], after: int, until: int) -> list[Entry]:
    revisions = [entry.revision for entry in log]
    return log[bisect_right(revisions, after) : bisect_right(revisions, until)]
