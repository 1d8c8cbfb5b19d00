"""The newest log entries in memory."""

import pytest

from tests.lowered import lowered
from tests.unit.engines.sqlite.opened import Opened


@pytest.mark.parametrize(
    "limits", [lowered(watch_queue_changes_max=8), lowered(watch_queue_bytes_max=500)]
)
async def test_the_log_is_the_same_from_memory_and_from_the_file(opened: Opened) -> None:
    """Memory holds the newest only; every page is whole, wherever it begins."""
    await opened.commit(20)
    tail = opened.board.tail
    kept = tail.page(19, 20, 9)
    assert kept is not None
    assert tail.page(0, 20, 9) is None
    assert 0 < len(tail._entries) < 9
    assert len(tail._entries) == len(tail._sizes) == len(tail._places)
    for after in range(21):
        assert await opened.log(after) == list(range(after + 1, 21))
    from_file = opened.file.read_log(19, 20, limit=9)
    assert kept == from_file
