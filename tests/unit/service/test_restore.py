"""A restore while others commit: how often it is tried before they have to wait."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from blackboard.core.commit import Put
from blackboard.core.model import Outcome
from blackboard.service import access, restore
from blackboard.service.board import Client
from blackboard.service.embedded import archive_beside
from blackboard.service.service import Service
from blackboard.store.sqlite import SqliteStore
from blackboard.types import RESTORE_ATTEMPTS_MAX, Milliseconds
from blackboard.wire.codec import Prepared
from tests.conformance.writer import Writer
from tests.unit.core.trial import packed

BOARD = "main"


class BusyStore(SqliteStore):
    """Somebody else commits just before each restore, unless the board is held."""

    tries = 0
    held = False
    bob: Writer | None = None

    async def hold(self, board: str, hold_ms: Milliseconds) -> None:
        """As `Store.hold`."""
        await super().hold(board, hold_ms)
        self.held = hold_ms > 0

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`, counting restores."""
        if batch[0].commit.begins is not None:
            self.tries += 1
            if not self.held:
                self.bob = self.bob or await Writer.open(self, board, "bob")
                await self.bob.commit(Put("public/bob", packed(self.tries)))
        return await super().commit(board, batch)


@pytest.mark.parametrize(("few", "tries"), [(9, RESTORE_ATTEMPTS_MAX), (-1, 1)])
async def test_only_a_small_restore_is_tried_again_without_a_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, tries: int
) -> None:
    """Of a large one each try takes long; held, the first is the last."""
    monkeypatch.setattr(restore, "_FEW_CHANGES", few)
    store = await BusyStore.at(tmp_path, level="memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        board = Client(service.link(access.operator())).board(BOARD)
        before = await board.put("public/plan", 1)
        await board.restore(before.revision)
        assert store.tries == tries + 1
        assert await board.get("public/bob") is None
