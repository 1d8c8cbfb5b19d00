"""Rules of a barrier: an agent that a checkpoint waits for delivers first."""

import pytest

from blackboard.core.commit import (
    Append,
    Committed,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    Increment,
    KeyAt,
    Op,
    Put,
    Release,
    Renew,
)
from blackboard.core.path import barrier_key, cut_key
from blackboard.engines.base import Store
from blackboard.errors import LimitExceeded, SnapshotFirst
from blackboard.limits import OPERATIONS_MAX
from tests.conformance.rules_restore import restored
from tests.conformance.writer import Writer, packed
from tests.waiting import wait_until

KEY, CUT = barrier_key("ada"), cut_key("ada")
PLAN = "public/plan"
HOUR_MS = 3_600_000
SHORT_MS = 60


class BarrierRules:
    """`system/barriers/<agent>` stops that agent's commits, and no one else's."""

    @pytest.mark.parametrize(
        "op",
        [
            Put(PLAN, packed(1)),
            Delete(PLAN),
            Delete(barrier_key("bob")),
            DeletePrefix("system/barriers"),
            Append("public/list", packed(1)),
            Increment("public/n", 1),
        ],
        ids=lambda op: type(op).__name__,
    )
    async def test_who_is_waited_for_may_do_nothing_else(
        self, store: Store, board: str, op: Op
    ) -> None:
        ada = await Writer.open(store, board)
        asked = await (await Writer.open(store, board, "bob")).commit(Put(KEY, packed(1)))
        refused = await ada.attempt(op)
        assert isinstance(refused, SnapshotFirst)
        assert (refused.agent, refused.key, refused.since) == ("ada", KEY, asked.revision)
        assert (await store.open(board)).revision == asked.revision

    async def test_delivering_ends_it(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await (await Writer.open(store, board, "bob")).commit(Put(KEY, packed(1)))
        await ada.commit(Put(PLAN, packed(1)), Delete(KEY))
        await ada.commit(Put(PLAN, packed(2)))

    async def test_until_the_cut_every_commit_delivers(self, store: Store, board: str) -> None:
        """The gate is gone, and what stands until the cut is not: its holder cannot remove it."""
        ada = await Writer.open(store, board)
        bob = await Writer.open(store, board, "bob")
        asked = await bob.commit(Put(KEY, packed(1)), Put(CUT, packed(1)))
        refused = await ada.attempt(Put(PLAN, packed(0)))
        assert isinstance(refused, SnapshotFirst)
        await ada.commit(Put(PLAN, packed(1)), Delete(KEY))
        refused = await ada.attempt(Put(PLAN, packed(2)))
        assert isinstance(refused, SnapshotFirst)
        assert (refused.agent, refused.key, refused.since) == ("ada", KEY, asked.revision)
        assert isinstance(await ada.attempt(Put(PLAN, packed(2)), Delete(CUT)), SnapshotFirst)
        await ada.commit(Put(PLAN, packed(2)), Delete(KEY))
        granted = await ada.commit(Grant("public/lock", "ada", HOUR_MS))
        await ada.commit(Renew("public/lock", "ada", granted.revision, 0))
        await bob.commit(Delete(CUT))
        await ada.commit(Put(PLAN, packed(3)))

    async def test_what_stands_until_the_cut_ends_with_its_time(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        bob = await Writer.open(store, board, "bob")
        await bob.commit(Put(CUT, packed(1), ttl_ms=0))
        await ada.commit(Put(PLAN, packed(1)))
        await bob.commit(Put(CUT, packed(1), ttl_ms=HOUR_MS))
        assert isinstance(await ada.attempt(Put(PLAN, packed(2))), SnapshotFirst)

    async def test_leases_are_kept(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        granted = await ada.commit(Grant("public/lock", "ada", HOUR_MS))
        await (await Writer.open(store, board, "bob")).commit(Put(KEY, packed(1)))
        await ada.commit(Renew("public/lock", "ada", granted.revision, 0))
        mixed = await ada.attempt(Grant("public/l", "ada", 0), Put(PLAN, packed(1)))
        assert isinstance(mixed, SnapshotFirst)
        await ada.commit(Expire("public/lock", "ada", granted.revision))
        again = await ada.commit(Grant("public/lock", "ada", HOUR_MS))
        await ada.commit(Release("public/lock", "ada", again.revision))

    async def test_others_go_on(self, store: Store, board: str) -> None:
        bob = await Writer.open(store, board, "bob")
        await bob.commit(Put(KEY, packed(1)))
        await bob.commit(Put(PLAN, packed(1)))
        await (await Writer.open(store, board, "ad")).commit(Put(PLAN, packed(2)))

    async def test_it_ends_with_its_time(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        bob = await Writer.open(store, board, "bob")
        await bob.commit(Put(KEY, packed(1), ttl_ms=0))
        await ada.commit(Put(PLAN, packed(1)))
        await bob.commit(Put(KEY, packed(1), ttl_ms=HOUR_MS))
        assert isinstance(await ada.attempt(Put(PLAN, packed(2))), SnapshotFirst)
        short = await bob.commit(Put(KEY, packed(1), ttl_ms=SHORT_MS))
        passed: list[Committed] = []

        async def passes() -> bool:
            outcome = await ada.attempt(Put(PLAN, packed(2)))
            if isinstance(outcome, Committed):
                passed.append(outcome)
            return bool(passed)

        await wait_until(passes)
        assert passed[0].time_ms >= short.time_ms + SHORT_MS

    async def test_it_comes_after_the_limits_and_before_the_conditions(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await (await Writer.open(store, board, "bob")).commit(Put(KEY, packed(1)))
        many = [Put(PLAN, packed(1))] * (OPERATIONS_MAX + 1)
        assert isinstance(await ada.attempt(*many), LimitExceeded)
        refused = await ada.attempt(Put(PLAN, packed(1)), conditions=[KeyAt(PLAN, 7)])
        assert isinstance(refused, SnapshotFirst)

    async def test_a_retry_gets_its_first_answer(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        step = ada.make(Put(PLAN, packed(1)))
        first = await ada.send(step)
        await (await Writer.open(store, board, "bob")).commit(Put(KEY, packed(1)))
        again = await ada.send(step)
        assert isinstance(first, Committed)
        assert isinstance(again, Committed)
        assert again.revision == first.revision

    async def test_within_one_batch(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        bob = await Writer.open(store, board, "bob")
        outcomes = await store.commit(
            board,
            bob.prepared(Put(KEY, packed(1)))
            + ada.prepared(Put(PLAN, packed(1)))
            + ada.prepared(Delete(KEY))
            + ada.prepared(Put(PLAN, packed(2))),
        )
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [Committed, SnapshotFirst, Committed, Committed]

    async def test_a_restore_passes(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await (await Writer.open(store, board, "bob")).commit(Put(KEY, packed(1)))
        await restored(store, ada)
        ada.epoch = (await store.open(board)).epoch.id
        assert isinstance(await ada.attempt(Put(PLAN, packed(1))), SnapshotFirst)
