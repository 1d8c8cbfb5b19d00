"""How large the manifest of a checkpoint would be, before it is taken.

A manifest names every namespace and every agent of a board, and holds what agents declared. It is
made by whoever archives the checkpoint, when nobody can be refused any more; one that is larger
than MANIFEST_BYTES_MAX would be kept, but could not be imported anywhere.
"""

from typing import Final

from blackboard.archive.base import Archive
from blackboard.archive.fold import DECLARED
from blackboard.core.checkpoints import Cut, Facts, Point
from blackboard.core.commit import Epoch
from blackboard.engines.base import Store
from blackboard.errors import BlackboardError, LimitExceeded
from blackboard.integrity.envelope import sealed_form
from blackboard.integrity.signing import KEY_BYTES, manifest_of
from blackboard.types import LIST_ENTRIES_MAX, MANIFEST_BYTES_MAX, Key
from blackboard.wire.codec import SYSTEM_AGENT

ROOM_BYTES: Final = 64 * 1024
"""For agents and namespaces that the archive does not know yet, and what is declared meanwhile."""
_DECLARED_BYTES_MAX: Final = 4 * MANIFEST_BYTES_MAX
"""Of values that are looked at: as JSON they have at least a quarter of these bytes."""
_HASH: Final = bytes(32)


async def check_manifest(
    store: Store, archive: Archive, board: str, name: str, record: bytes
) -> None:
    """Errors: LimitExceeded when the manifest of checkpoint `name`, whose entry will hold `record`,
    would be too large to be imported.

    Cost: a look at the archive, which names the namespaces and agents as far as it is. While that
    is away, nothing is refused.
    """
    try:
        size = ROOM_BYTES + await _size(store, archive, board, name, record)
    except BlackboardError:
        return
    if size > MANIFEST_BYTES_MAX:
        raise LimitExceeded("MANIFEST_BYTES_MAX", size, MANIFEST_BYTES_MAX, board)


async def _size(store: Store, archive: Archive, board: str, name: str, record: bytes) -> int:
    """Bytes of the manifest, if the archive knows all namespaces and agents; but for digits."""
    mark = await archive.mark(board)
    facts = Facts({}, {})
    if mark is not None:
        facts = await archive.facts_at(Point(board, mark.revision))
    cut = Cut(
        board=board,
        name=name,
        revision=0,
        time_ms=0,
        author=SYSTEM_AGENT,
        epoch=Epoch(1, "") if mark is None else mark.epoch,
        chain=_HASH,
        facts=facts,
        record=record,
        declared=await _declared(store, board),
        previous=_HASH,
    )
    return len(manifest_of(cut, bytes(KEY_BYTES)))


async def _declared(store: Store, board: str) -> dict[str, bytes]:
    """What agents declared, as the log has it."""
    found: dict[str, bytes] = {}
    size = 0
    after: Key | None = None
    while size <= _DECLARED_BYTES_MAX:
        page = await store.list(board, DECLARED, after=after, limit=LIST_ENTRIES_MAX)
        for entry in page.entries:
            value = sealed_form(entry.value)
            found[entry.key.rpartition("/")[2]] = value
            size += len(value)
        after = page.next_key
        if after is None:
            break
    return found
