"""What a preview of a restore reads."""

from collections.abc import Sequence
from pathlib import Path

import blackboard
from blackboard.client.comparison import calls_since
from blackboard.client.views import RevisionEvent


async def test_the_preview_of_a_busy_board_ends(tmp_path: Path) -> None:
    """Between any two reads of its log somebody commits."""
    async with blackboard.open(tmp_path) as client:
        board = client.board("main")
        cut = (await board.put("public/plan", 1)).revision
        until = (await board.put("public/plan", 2)).revision
        reads: list[int] = []

        async def busy(*, after: int) -> Sequence[RevisionEvent]:
            reads.append(await board.increment("public/beats"))
            assert len(reads) < 9, "it goes on for ever"
            return await board.log(after=after)

        assert await calls_since(busy, cut, until) == []
        assert len(reads) == 1
