"""Rules of removing a board for good, and of what begins under its name later."""

from collections.abc import AsyncIterator, Sequence

import pytest

from blackboard.core.commit import (
    Append,
    Entry,
    Grant,
    HeldFence,
    KeyAt,
    PrefixUnchanged,
    Put,
)
from blackboard.engines.base import Store
from blackboard.errors import Compacted, Conflict, Fenced, NoSuchBoard, StaleEpoch
from blackboard.limits import EPOCH_JUMP
from tests.conformance.rules_seed import ENTRIES, a_seed, paged
from tests.conformance.writer import Writer, packed

HOUR_MS = 3_600_000


async def torn() -> AsyncIterator[Sequence[Entry]]:
    """Pages that end in the middle."""
    yield ENTRIES[:2]
    raise ValueError("torn")


class RemoveRules:
    """A board that was removed is gone for everybody, and comes back under no mask."""

    async def test_a_board_that_was_removed_is_gone_and_stays_so(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/x", packed("text" * 1000)), Append("public/l", packed(1)))
        await store.remove(board)
        assert not await store.exists(board)
        assert board not in await store.boards()
        assert await store.removed(board) == 1
        for asked in (
            lambda: store.open(board),
            lambda: ada.attempt(Put("public/x", packed(2))),
            lambda: store.read(board, ["public/x"]),
            lambda: store.log(board, 0, limit=1),
            lambda: store.leases(board),
        ):
            with pytest.raises(NoSuchBoard):
                await asked()
        assert not await store.exists(board)
        await store.remove(board)
        assert await store.removed(board) == 1

    async def test_only_the_board_that_is_meant_is_removed(self, store: Store, board: str) -> None:
        """A request that comes late names the epoch of a board that is gone."""
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/x", packed(1)))
        old = (await store.open(board)).epoch.id
        with pytest.raises(StaleEpoch):
            await store.remove(board, epoch="another")
        await store.remove(board, epoch=old)
        assert not await store.exists(board)
        await store.remove(board, epoch=old)
        await store.open(board, again=True)
        with pytest.raises(StaleEpoch) as refused:
            await store.remove(board, epoch=old)
        head = await store.open(board)
        assert (refused.value.yours, refused.value.current) == (old, head.epoch.id)
        await store.remove(board)
        assert not await store.exists(board)

    async def test_a_board_that_begins_again_is_another_one(self, store: Store, board: str) -> None:
        """Nothing that relies on the old one passes, even if it knows the new epoch."""
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/x", packed(1)), Grant("public/lock", "ada", HOUR_MS))
        old = await store.open(board)
        await store.remove(board)
        new = await store.open(board, again=True)
        assert new.epoch.number == old.epoch.number + 1
        assert new.revision > old.revision + EPOCH_JUMP - 1
        assert new.oldest == new.revision
        assert await store.removed(board) is None
        assert board in await store.boards()
        assert (await store.list(board, "", limit=10)).entries == ()
        assert isinstance(await ada.attempt(Put("public/x", packed(2))), StaleEpoch)
        ada.epoch = new.epoch.id
        held = HeldFence("public/lock", "ada", 1)
        assert isinstance(await ada.attempt(Put("public/x", packed(2)), fences=[held]), Fenced)
        changed = KeyAt("public/x", 1)
        refused = await ada.attempt(Put("public/x", packed(2)), conditions=[changed])
        assert isinstance(refused, Conflict)
        since = PrefixUnchanged("public", 1)
        refused = await ada.attempt(Put("public/x", packed(2)), conditions=[since])
        assert isinstance(refused, Compacted)
        again = await Writer.open(store, board)
        done = await again.commit(Put("public/x", packed(3)), Append("public/l", packed(1)))
        assert done.revision == new.revision + 1
        assert done.results[1] == "public/l/0000000000"
        [marker, entry] = (await store.log(board, new.revision - 1, limit=9)).entries
        assert (marker.epoch, entry.revision) == (new.epoch, done.revision)
        assert (await store.open(board, again=True)).epoch == new.epoch

    async def test_what_never_was_is_removed_above_a_revision(
        self, store: Store, board: str
    ) -> None:
        """Of a board that its engine lost, its archive knows how far it got."""
        await store.remove(board, above=700)
        assert await store.removed(board) == 700
        with pytest.raises(NoSuchBoard):
            await store.open(board)
        assert (await store.open(board, again=True)).revision > 700

    async def test_a_seed_takes_the_place_of_what_was_removed(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/x", packed(1)))
        await store.remove(board)
        with pytest.raises(ValueError, match="torn"):
            await store.seed(board, a_seed(board), torn())
        assert await store.removed(board) == 1
        await store.seed(board, a_seed(board), paged(ENTRIES))
        assert await store.removed(board) is None
        assert await store.exists(board)
