"""Why is this so? Walk back from an entry through the commits that it was based on.

A commit is based on the reads that its writer named; nothing is inferred. An entry that a restore
put back is based on the version at the restored revision. The walk is breadth first, visits each
(key, revision) once, and is bounded by WHY_DEPTH_MAX and WHY_COMMITS_MAX.
"""

from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from blackboard.client.views import Cause
from blackboard.core.commit import RESTORE, Entry, LogEntry
from blackboard.engines.payer import turn
from blackboard.errors import Compacted, FutureRevision
from blackboard.server.checkpoints.reader import HistoryReader
from blackboard.units import Key, Revision

Ground = tuple[Key, Revision]


async def causes(
    past: HistoryReader, entries: Sequence[Entry], readable: Callable[[Key], bool]
) -> list[Cause]:
    """The commits behind `entries` as they are now, nearest first."""
    waiting = deque(((entry.key, entry.mod_revision), 0) for entry in entries)
    met = {ground for ground, _ in waiting}
    found: list[Cause] = []
    limits = past.limits
    while waiting and len(found) < limits.why_commits_max:
        await turn()
        (key, revision), depth = waiting.popleft()
        cause = await _cause(past, Cause(key, revision, depth), readable)
        found.append(cause)
        for ground in cause.based_on:
            if ground not in met and cause.depth < limits.why_depth_max:
                met.add(ground)
                waiting.append((ground, cause.depth + 1))
    return found


async def _cause(past: HistoryReader, at: Cause, readable: Callable[[Key], bool]) -> Cause:
    """`at`, which says where, and what the commit there says."""
    try:
        entry = await _entry_at(past, at.revision)
    except Compacted:
        return replace(at, missing="compacted")
    if entry is None or not any(change.key == at.key for change in entry.changes):
        return replace(at, missing="not written there")
    grounds = await _grounds(past, at.key, entry)
    shown = tuple(ground for ground in grounds if readable(ground[0]))
    return replace(
        at,
        author=entry.author,
        account=entry.account,
        time_ms=entry.time_ms,
        note=entry.note,
        based_on=shown,
    )


async def _grounds(past: HistoryReader, key: Key, entry: LogEntry) -> tuple[Ground, ...]:
    if entry.epoch is None or entry.epoch.cause != RESTORE:
        return entry.based_on
    written = await past.put_back(key, entry.epoch.from_revision)
    return () if written is None else ((key, written),)


async def _entry_at(past: HistoryReader, revision: Revision) -> LogEntry | None:
    """The log entry of `revision`; None if there is none: a writer may claim any ground."""
    if revision < 1:
        return None
    try:
        page = await past.log(revision - 1, 1)
    except FutureRevision:
        return None
    return next((entry for entry in page.entries if entry.revision == revision), None)
