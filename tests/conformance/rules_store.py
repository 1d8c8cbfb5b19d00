"""Rules of an engine as a whole: boards, concurrency, cancellation, facts."""

from functools import partial

import anyio
import pytest

from blackboard.core.commit import Append, Committed, Increment, Put
from blackboard.engines.base import Store
from blackboard.errors import InvalidRequest
from blackboard.limits import BATCH_COMMITS_MAX
from blackboard.wire.codec import prepare
from tests.conformance.rules_log import whole_log
from tests.conformance.writer import Writer, packed

COUNT = "public/count"
LEVELS = ("disk", "second", "replica", "memory")


class StoreRules:
    """Boards are independent, callers are independent, and nothing leaves the engine unusable."""

    async def test_a_new_board_is_empty_and_in_its_first_epoch(
        self, store: Store, board: str
    ) -> None:
        head = await store.open(board)
        assert (head.revision, head.oldest, head.log_entries) == (0, 1, 0)
        epoch = head.epoch
        assert (epoch.number, epoch.cause, epoch.from_revision, epoch.revision) == (
            1,
            "created",
            0,
            0,
        )
        assert (await store.list(board, "", limit=10)).entries == ()
        assert (await store.log(board, 0, limit=10)).entries == ()

    async def test_opening_again_changes_nothing(self, store: Store, board: str) -> None:
        first = await store.open(board)
        ada = await Writer.open(store, board)
        done = await ada.commit(Put("public/a", packed(1)))
        again = await store.open(board)
        assert (again.epoch, again.revision, again.log_entries) == (first.epoch, 1, 1)
        assert again.time_ms >= done.time_ms

    async def test_a_board_exists_once_it_was_opened(self, store: Store, board: str) -> None:
        """Asking makes none; what is dropped does not exist."""
        for begins in (False, True):
            assert not await store.exists(board)
            assert board not in await store.boards()
            if begins:
                await store.open(board)
        assert await store.exists(board)
        await store.drop(board)
        assert not await store.exists(board)
        with pytest.raises(InvalidRequest):
            await store.exists("no/name")

    async def test_boards_are_listed_in_order(self, store: Store, board: str) -> None:
        names = [f"{board}-{letter}" for letter in "bca"]
        for name in names:
            await store.open(name)
        assert [name for name in await store.boards() if name in names] == sorted(names)

    async def test_two_boards_know_nothing_of_each_other(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        other = await Writer.open(store, f"{board}-other")
        assert ada.epoch != other.epoch
        await ada.commit(Put("public/a", packed(1)), Append("public/list", packed(1)))
        await ada.commit(Put("public/a", packed(2)))
        done = await other.commit(Append("public/list", packed("x")))
        assert (done.revision, done.results) == (1, ("public/list/0000000000",))
        assert (await store.read(other.board, ["public/a"])).entries == ()

    async def test_each_commit_of_a_batch_is_decided_on_its_own(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        steps = [ada.make(Increment(COUNT, 1)) for _ in range(BATCH_COMMITS_MAX)]
        steps[7] = ada.make()
        outcomes = await ada.send_all(steps)
        revisions = [o.revision for o in outcomes if isinstance(o, Committed)]
        assert revisions == list(range(1, BATCH_COMMITS_MAX))
        assert not isinstance(outcomes[7], Committed)
        assert (await store.read(board, [COUNT])).entries[0].value == packed(BATCH_COMMITS_MAX - 1)

    async def test_concurrent_batches_lose_nothing(self, store: Store, board: str) -> None:
        writers = [await Writer.open(store, board, f"agent{i}") for i in range(8)]

        async def work(writer: Writer) -> None:
            for _ in range(10):
                await writer.send_all([writer.make(Increment(COUNT, 1)) for _ in range(3)])

        async with anyio.create_task_group() as tasks:
            for writer in writers:
                tasks.start_soon(work, writer)
        assert (await store.read(board, [COUNT])).entries[0].value == packed(240)
        log = await whole_log(store, board)
        assert [entry.revision for entry in log] == list(range(1, 241))

    async def test_a_storm_of_cancelled_calls_leaves_the_engine_usable(
        self, store: Store, board: str
    ) -> None:
        """Every call that was not cancelled gets its own answer, and a cancelled one is whole."""
        ada = await Writer.open(store, board)
        await ada.commit(*[Put(f"public/k{i}", packed(f"value {i}")) for i in range(20)])
        cancelled: list[Writer] = []

        async def hurried(number: int) -> None:
            writer = await Writer.open(store, board, f"agent{number}")
            for attempt in range(6):
                with anyio.move_on_after(0.0003 * attempt) as scope:
                    await writer.attempt(Increment(COUNT, 1))
                if scope.cancelled_caught:
                    cancelled.append(writer)
                with anyio.move_on_after(0.0003 * attempt):
                    await store.log(board, 0, limit=5)

        async def patient() -> None:
            for i in range(20):
                [entry] = (await store.read(board, [f"public/k{i}"])).entries
                assert (entry.key, entry.value) == (f"public/k{i}", packed(f"value {i}"))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(hurried, number)
                    tasks.start_soon(patient)
        assert cancelled, "no call was cancelled: the storm was none"
        log = await whole_log(store, board)
        assert [entry.revision for entry in log] == list(range(1, len(log) + 1))
        reading = await store.read(board, [COUNT])  # a cancelled call may still be on its way
        # All of them may have been cancelled before they were decided.
        [count] = [entry.value for entry in reading.entries] or [packed(0)]
        assert count == packed(reading.revision - 1)

    async def test_a_cancelled_commit_can_be_sent_again(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        step = prepare(ada.make(Increment(COUNT, 1)))
        with anyio.move_on_after(0):
            await store.commit(board, [step])
        [outcome] = await store.commit(board, [step])
        assert isinstance(outcome, Committed)
        assert outcome.results == (1,)
        assert (await store.read(board, [COUNT])).entries[0].value == packed(1)

    async def test_waiting_readers_and_writers_do_not_block_each_other(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(partial(store.log, f"{board}", 0, limit=1, wait_ms=60_000))
                    other = f"{board}-{number}"
                    await store.open(other)
                    tasks.start_soon(partial(store.log, other, 0, limit=1, wait_ms=60_000))
                await anyio.wait_all_tasks_blocked()
                await ada.commit(Put("public/a", packed(1)))
                for number in range(20):
                    writer = await Writer.open(store, f"{board}-{number}")
                    await writer.commit(Put("public/a", packed(1)))

    async def test_an_engine_says_what_it_is(self, store: Store) -> None:
        facts = await store.facts()
        assert facts.name
        assert facts.version
        assert facts.location
        assert facts.level in LEVELS
