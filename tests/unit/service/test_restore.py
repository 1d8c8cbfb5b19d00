"""A restore while others commit: how often it is tried before they have to wait, and what rests."""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from blackboard.core.commit import Commit, Head, Put
from blackboard.core.model import Outcome
from blackboard.errors import LimitExceeded, Unavailable
from blackboard.service import access, restore
from blackboard.service.board import Board, Client
from blackboard.service.embedded import archive_beside
from blackboard.service.local import LocalLink
from blackboard.service.moments import Restored, RestoreWish
from blackboard.service.service import Service
from blackboard.store.archive import Mark
from blackboard.store.sqlite import SqliteStore
from blackboard.types import RESTORE_ATTEMPTS_MAX, Milliseconds, Revision
from blackboard.wire.codec import Prepared, prepare
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


class AwayAfterRestore(LocalLink):
    """A service that cannot be asked anything any more once it has answered a restore."""

    is_away = False

    async def restore(self, board: str, wish: RestoreWish) -> Restored:
        """As `Link.restore`."""
        restored = await super().restore(board, wish)
        self.is_away = True
        return restored

    async def head(self, board: str) -> Head:
        """As `Link.head`, while it is there."""
        if self.is_away:
            raise Unavailable("service", "away")
        return await super().head(board)


async def test_a_restore_that_was_answered_took_effect_whatever_comes_then(tmp_path: Path) -> None:
    """Nothing is asked after its answer, which could fail: that would read as not done."""
    store = await SqliteStore.at(tmp_path)
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        link = AwayAfterRestore(service.host, access.operator())
        board = Board(link, BOARD)
        await board.put("public/a", 1)
        restored = await board.restore(0)
        link.is_away = False
        assert (await board.put("public/a", 2)).revision == restored.revision + 1


@pytest.mark.parametrize(("few", "tries"), [(9, RESTORE_ATTEMPTS_MAX), (-1, 0)])
async def test_only_a_small_restore_is_tried_without_a_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, tries: int
) -> None:
    """Of a large one each try takes long; held, the first is the last, and encoded in a thread."""
    monkeypatch.setattr(restore, "_FEW_CHANGES", few)
    threads = []

    def noted(commit: Commit) -> Prepared:
        threads.append(threading.current_thread())
        return prepare(commit)

    monkeypatch.setattr(restore, "prepare", noted)
    store = await BusyStore.at(tmp_path, level="memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        board = Client(service.link(access.operator())).board(BOARD)
        before = await board.put("public/plan", 1)
        await board.restore(before.revision)
        assert store.tries == tries + 1
        assert await board.get("public/bob") is None
    assert [thread is threading.main_thread() for thread in threads] == [few > 0] * (tries + 1)


@pytest.mark.parametrize("changes_max", [2, 0])
async def test_the_archiver_rests_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes_max: int
) -> None:
    """From the comparison to the answer, be it a refusal; not before, nor after."""
    monkeypatch.setattr(restore, "RESTORE_CHANGES_MAX", changes_max)
    store = await SqliteStore.at(tmp_path, level="memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        archiver, during = service.host.archiver, []
        assert archiver is not None
        reach = archiver.reached

        async def noted(board: str, revision: Revision) -> Mark:
            during.append(archiver._boards[BOARD].restores)
            return await reach(board, revision)

        monkeypatch.setattr(archiver, "reached", noted)
        board = Client(service.link(access.operator())).board(BOARD)
        before = await board.put("public/plan", 1)
        await board.put("public/plan", 2)
        refused = nullcontext() if changes_max else pytest.raises(LimitExceeded)
        with refused:
            await board.restore(before.revision)
        assert during == [0, 1]
        assert archiver._boards[BOARD].restores == 0
