"""Why is this so? Walk back from an entry through the commits that it was based on.

What a commit was based on is what its writer said it had read; nothing is inferred, and nobody's
belief is computed. The walk is breadth first, visits each (key, revision) once, and is bounded by
WHY_DEPTH_MAX and WHY_COMMITS_MAX.
"""

from collections import deque
from collections.abc import Callable

from blackboard.core.commit import LogEntry
from blackboard.errors import Compacted, FutureRevision
from blackboard.service.views import Cause
from blackboard.store.base import Store
from blackboard.types import WHY_COMMITS_MAX, WHY_DEPTH_MAX, Key, Revision


async def causes(
    store: Store, board: str, key: Key, readable: Callable[[Key], bool]
) -> list[Cause]:
    """The commits behind `key` as it is now, nearest first; empty when the key is absent."""
    reading = await store.read(board, [key])
    waiting = deque((key, entry.mod_revision, 0) for entry in reading.entries)
    met = {(key, entry.mod_revision) for entry in reading.entries}
    found: list[Cause] = []
    while waiting and len(found) < WHY_COMMITS_MAX:
        cause = await _cause(store, board, *waiting.popleft(), readable)
        found.append(cause)
        for ground in cause.based_on:
            if ground not in met and cause.depth < WHY_DEPTH_MAX:
                met.add(ground)
                waiting.append((*ground, cause.depth + 1))
    return found


async def _cause(
    store: Store,
    board: str,
    key: Key,
    revision: Revision,
    depth: int,
    readable: Callable[[Key], bool],
) -> Cause:
    try:
        entry = await _entry_at(store, board, revision)
    except Compacted:
        return Cause(key, revision, depth, missing="compacted")
    if entry is None or not any(change.key == key for change in entry.changes):
        return Cause(key, revision, depth, missing="not written there")
    shown = tuple(ground for ground in entry.based_on if readable(ground[0]))
    return Cause(key, revision, depth, entry.author, entry.time_ms, entry.note, shown)


async def _entry_at(store: Store, board: str, revision: Revision) -> LogEntry | None:
    """The log entry of `revision`; None if there is none: a writer may claim any ground."""
    if revision < 1:
        return None
    try:
        page = await store.log(board, revision - 1, limit=1)
    except FutureRevision:
        return None
    return next((entry for entry in page.entries if entry.revision == revision), None)
