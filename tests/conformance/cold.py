"""An embedded engine whose boards forget their entries before each call: everything that a call
looks up is read from the file again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blackboard.engines.base import BatchAnswer
from blackboard.engines.sqlite import follower
from blackboard.engines.sqlite.board import EmbeddedBoard
from blackboard.engines.sqlite.cache import loaded_of
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.wire.codec import Prepared
from tests.lowered import lowered

COLD = lowered(boards_whole_keys=1, tablet_keys_max=3)
"""Tablets have up to three entries, and no board with two entries is read whole."""


@contextmanager
def following() -> Iterator[None]:
    """Boards whose tables follow each commit: what the file does not hold is not evicted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower, "FOLLOW_ROWS", 1)
        yield


class ColdStore(SqliteStore):
    """Counts what it had to load."""

    loads = 0
    evicted = 0

    @classmethod
    async def cold(cls, directory: Path) -> "ColdStore":
        """Over an empty directory."""
        return await cls.at(directory, "memory", limits=COLD)

    async def _board(self, name: str, *, create: bool = False) -> EmbeddedBoard:
        board = await super()._board(name, create=create)
        self._cool(board)
        return board

    def begin(self, board: str, batch: Sequence[Prepared], answer: BatchAnswer) -> bool:
        """As `Begins.begin`."""
        if board in self._boards:
            self._cool(self._boards[board])
        return super().begin(board, batch, answer)

    def _cool(self, board: EmbeddedBoard) -> None:
        entries: Any = loaded_of(board._state)
        before, rounds = entries.unloaded, 2 + 2 * len(entries._parts) // 16
        for _ in range(rounds):
            board.loader.evict(2**62)
        self.evicted += entries.unloaded - before
        board.loader.make_room = self._note

    def _note(self) -> None:
        self.loads += 1
