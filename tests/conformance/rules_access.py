"""Rules of access numbers, of engines that several processes share."""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from blackboard.core.commit import Commit, Committed, Delete, Put
from blackboard.core.model import Outcome
from blackboard.engines.base import Behind, Shared, Store
from blackboard.units import Revision
from blackboard.wire.codec import prepare
from tests.conformance.rules_restore import restored
from tests.conformance.rules_seed import ENTRIES, a_seed, paged
from tests.conformance.writer import Writer, packed

PLAN = "public/plan"


class SharedStore(Store, Shared, Protocol):
    """An engine that has both."""


async def send(
    store: SharedStore, board: str, commits: Sequence[Commit], access: Revision
) -> list[Outcome | Behind]:
    """Send a batch under tokens that were looked at when `access` was known."""
    return await store.commit_at(board, [prepare(commit) for commit in commits], access)


class AccessRules:
    """What was let in before a revocation is not decided after it."""

    async def test_a_board_without_an_access_number_decides_nothing_under_a_token(
        self, store: SharedStore, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        commits = [ada.make(Put(PLAN, packed(1))), ada.make(Put(PLAN, packed(2)))]
        assert await send(store, board, commits, 7) == [Behind(None)] * 2
        assert (await store.open(board)).revision == 0
        await store.raise_access(board, 7)
        assert all(isinstance(o, Committed) for o in await send(store, board, commits, 7))

    async def test_what_has_no_token_needs_no_number(self, store: SharedStore, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        await store.raise_access(board, 7)
        await ada.commit(Put(PLAN, packed(2)))

    async def test_a_batch_with_an_older_access_number_is_not_decided(
        self, store: SharedStore, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await store.raise_access(board, 7)
        commit = ada.make(Put(PLAN, packed(1)))
        assert await send(store, board, [commit], 6) == [Behind(7)]
        assert (await store.open(board)).revision == 0
        assert (await store.read(board, [PLAN])).entries == ()
        for number in (7, 8):
            [done] = await send(store, board, [ada.make(Put(PLAN, packed(number)))], number)
            assert isinstance(done, Committed)

    async def test_the_number_never_falls(self, store: SharedStore, board: str) -> None:
        ada = await Writer.open(store, board)
        await store.raise_access(board, 7)
        await store.raise_access(board, 3)
        await store.open(board)
        assert await send(store, board, [ada.make(Put(PLAN, packed(1)))], 6) == [Behind(7)]

    async def test_an_answer_is_repeated_to_a_retry_that_proves_its_age(
        self, store: SharedStore, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await store.raise_access(board, 7)
        commit = ada.make(Put(PLAN, packed(1)))
        [first] = await send(store, board, [commit], 7)
        await store.raise_access(board, 8)
        assert await send(store, board, [commit], 7) == [Behind(8)]
        [again] = await send(store, board, [commit], 8)
        assert isinstance(first, Committed)
        assert again == replace(first, duplicate=True, level="")

    async def test_a_restore_does_not_take_it_back(self, store: SharedStore, board: str) -> None:
        ada = await Writer.open(store, board)
        await store.raise_access(board, 7)
        await ada.commit(Put(PLAN, packed(1)))
        await restored(store, ada, Delete(PLAN))
        ada.epoch = (await store.open(board)).epoch.id
        assert await send(store, board, [ada.make(Put(PLAN, packed(2)))], 6) == [Behind(7)]

    async def test_a_board_that_is_made_begins_without_one(
        self, store: SharedStore, board: str
    ) -> None:
        await store.raise_access(board, 7)
        assert not await store.exists(board)
        head = await store.seed(board, a_seed(board), paged(ENTRIES))
        ada = Writer(store, board, head)
        assert await send(store, board, [ada.make(Put(PLAN, packed(1)))], 7) == [Behind(None)]
