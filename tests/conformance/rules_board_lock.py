"""Rules of `Board.lock` and `Board.wait_free`."""

import asyncio

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.step import Step
from blackboard.core.commit import Expire, Grant, Put, Release
from blackboard.errors import (
    AccessDenied,
    Fenced,
    InvalidRequest,
    LeaseHeld,
    LeaseLost,
    LimitExceeded,
    LocalProtocolError,
)
from blackboard.limits import FENCES_MAX
from blackboard.wire.codec import encode_value
from tests.conformance.team import PATIENCE_S, RENEWED_MS, Team, renewed_often, take
from tests.conformance.workers import Block, apart, finished, lease_of, queued, renewals

A, B = "public/a", "public/b"
SHORT_MS = 300
"""Short enough to see it run out."""
HOUR_MS = 3_600_000


class OwnError(Exception):
    """What a block raises by itself."""


async def steal(operator: Board, key: str) -> None:
    """End the lease of `key`, whichever agent holds it."""
    lease = await lease_of(operator, key)
    await operator.commit([Release(key, lease.holder, lease.fence)])


class LockRules:
    """One at a time, in turn, and nothing is left behind."""

    async def test_a_lock_is_held_in_its_block_only(self, ada: Board) -> None:
        async with ada.lock(A, ttl_ms=HOUR_MS) as lock:
            lease = await lease_of(ada, A)
            assert (lease.holder, lease.fence) == (lock.holder, lock.fences[0].fence)
            assert (lease.until_ms, lock.keys) == (lock.until_ms, (A,))
            assert lock.holder.startswith("ada~")
        assert await ada.leases() == ()

    async def test_who_waits_is_served_in_the_order_of_asking(self, ada: Board, bob: Board) -> None:
        first = Block(ada.lock(A))
        await first.entered()
        waiters = []
        for count, board in enumerate((bob, ada, bob, ada), start=1):
            waiters.append(Block(board.lock(A)))
            holders = await queued(ada, A, count)
        fences = [(await first.entered()).fences[0].fence]
        await first.end()
        for waiter, holder in zip(waiters, holders, strict=True):
            lock = await waiter.entered()
            assert lock.holder == holder
            fences.append(lock.fences[0].fence)
            await waiter.end()
        assert fences == sorted(set(fences))

    async def test_no_increment_is_lost_under_a_lock(self, ada: Board, bob: Board) -> None:
        async def add(board: Board) -> None:
            for _ in range(5):
                async with board.lock(A):
                    await board.put("public/n", await board.get("public/n", 0) + 1)

        with anyio.fail_after(PATIENCE_S):
            await asyncio.gather(*(apart(add(board)) for board in (ada, bob, ada, bob)))
        assert await ada.get("public/n") == 20
        assert await ada.leases() == ()

    async def test_several_keys_are_had_together_whatever_order_they_are_named_in(
        self, ada: Board, bob: Board
    ) -> None:
        holding: set[str] = set()

        async def work(board: Board, *keys: str) -> None:
            for _ in range(4):
                async with board.lock(*keys) as lock:
                    assert not holding & set(keys)
                    holding.update(keys)
                    assert [fence.key for fence in lock.fences] == sorted(set(keys))
                    await board.put("public/x", 1)
                    holding.difference_update(keys)

        keys = [(A, B), (B, A), (B, "public/c"), ("public/c", A), (A, A)]
        with anyio.fail_after(PATIENCE_S):
            await asyncio.gather(
                *(apart(work(board, *some)) for some in keys for board in (ada, bob))
            )
        assert await ada.leases() == ()

    async def test_who_waits_for_one_key_holds_the_other_back(self, ada: Board, bob: Board) -> None:
        first = Block(ada.lock(A))
        await first.entered()
        both = Block(bob.lock(A, B))
        await queued(ada, A, 1)
        assert (await lease_of(ada, B)).holder.startswith("bob~")
        third = Block(ada.lock(B))
        await queued(ada, B, 1)
        await first.end()
        await both.entered()
        assert not third.inside.is_set()
        await both.end()
        await third.entered()
        await third.end()

    @renewed_often
    async def test_a_lock_is_renewed_as_long_as_its_block_runs(self, ada: Board) -> None:
        """And that makes no revision: who watches sees the grant and the release."""
        async with ada.watch(A) as watch:
            block = Block(ada.lock(A, ttl_ms=RENEWED_MS))
            await block.entered()
            await renewals(ada, A, 3)
            await block.end()
            kinds = [r.changes[0].kind for r in await take(watch, 2)]
        assert kinds == ["grant", "release"]
        assert (await ada.head()).revision == 2

    @renewed_often
    async def test_a_ticket_is_renewed_as_long_as_it_is_waited_for(
        self, ada: Board, bob: Board
    ) -> None:
        first = Block(ada.lock(A, ttl_ms=HOUR_MS))
        await first.entered()
        second = Block(bob.lock(A, ttl_ms=RENEWED_MS))
        await queued(ada, A, 1)
        head = await ada.head()
        await renewals(ada, A, 3)
        assert (await ada.head()).revision == head.revision
        await first.end()
        await second.entered()
        await second.end()

    @pytest.mark.parametrize("timeout_ms", [0, 150])
    async def test_patience_ends_with_the_name_of_the_holder(
        self, ada: Board, bob: Board, timeout_ms: int
    ) -> None:
        first = Block(ada.lock(B))
        lock = await first.entered()
        second = Block(bob.lock(A, B, timeout_ms=timeout_ms))
        with pytest.raises(LeaseHeld) as refused:
            await second.entered()
        assert (refused.value.key, refused.value.holder) == (B, lock.holder)
        assert [lease.waiters for lease in await ada.leases()] == [()]
        await first.end()

    async def test_a_free_lock_is_had_without_patience(self, ada: Board) -> None:
        async with ada.lock(A, B, timeout_ms=0) as lock:
            assert len(lock.fences) == 2

    async def test_who_stops_waiting_is_not_in_anybodys_way(self, ada: Board, bob: Board) -> None:
        first = Block(ada.lock(A))
        await first.entered()
        second = Block(bob.lock(A, B))
        await queued(ada, A, 1)
        third = Block(ada.lock(A, B))
        await queued(ada, A, 2)
        await second.cancel()
        assert len(await queued(ada, A, 1)) == 1
        await first.end()
        await third.entered()
        await third.end()
        assert await ada.leases() == ()

    async def test_a_cancelled_block_gives_the_lock_back(self, ada: Board, bob: Board) -> None:
        first = Block(ada.lock(A, B))
        await first.entered()
        await first.cancel()
        assert await bob.leases() == ()

    async def test_the_error_of_a_block_comes_through_and_the_lock_is_given_back(
        self, ada: Board
    ) -> None:
        with pytest.raises(OwnError):
            async with ada.lock(A):
                raise OwnError
        assert await ada.leases() == ()

    async def test_the_lease_of_a_dead_holder_goes_to_the_waiter(
        self, ada: Board, bob: Board
    ) -> None:
        await ada.commit([Grant(A, "ada~dead", SHORT_MS)])
        waiting = Block(bob.lock(A))
        await waiting.entered()
        await waiting.end()

    async def test_the_lease_of_a_dead_holder_ends_without_waiters(self, ada: Board) -> None:
        async with ada.watch(A) as watch:
            granted = await ada.commit([Grant(A, "ada~dead", SHORT_MS)])
            _, ended = await take(watch, 2)
        assert [change.kind for change in ended.changes] == ["expire"]
        assert (ended.author, ended.note) == ("~system", "expired")
        assert ended.time_ms >= granted.time_ms + SHORT_MS

    async def test_an_expired_lock_goes_to_the_waiter_not_to_a_newcomer(
        self, ada: Board, bob: Board
    ) -> None:
        granted = await ada.commit([Grant(A, "ada~dead", HOUR_MS)])
        waiting = Block(bob.lock(A))
        await queued(ada, A, 1)
        with pytest.raises(LeaseHeld):
            await ada.commit([Expire(A, "ada~dead", granted.revision)])
        await ada.commit([Release(A, "ada~dead", granted.revision)])
        with pytest.raises(LeaseHeld):
            async with ada.lock(A, timeout_ms=0):
                pass
        await waiting.entered()
        await waiting.end()


class FenceRules:
    """What is written under a lock is written while it is held, or not at all."""

    async def test_commits_in_the_block_rely_on_the_lock_implicitly(
        self, team: Team, ada: Board
    ) -> None:
        operator = await team.operator()
        same = (await team.client_of(ada)).board(ada.name)

        async def write_after_loss() -> None:
            async with ada.lock(A, ttl_ms=HOUR_MS) as lock:
                await apart(steal(operator, A))
                for write in (
                    ada.put("public/x", 1),
                    same.put("public/x", 1),
                    asyncio.create_task(ada.put("public/x", 1)),
                    ada.commit([Put("public/x", encode_value(1))]),
                    ada.run_step("ada", put),
                ):
                    with pytest.raises(Fenced) as refused:
                        await write
                    assert refused.value.fence == lock.fences[0].fence

        async def put(step: Step) -> None:
            step.put("public/x", 1)

        with pytest.raises(LeaseLost):
            await write_after_loss()
        assert await ada.get("public/x") is None
        await ada.put("public/x", 2)

    async def test_a_lock_of_one_board_is_nothing_to_another(self, team: Team, ada: Board) -> None:
        other = (await team.client_of(ada)).board(f"{ada.name}-other")
        async with ada.lock(A), other.lock(A):
            await other.put("public/x", 1)
            await ada.put("public/x", 1)

    async def test_a_task_that_outlives_the_block_writes_nothing(self, ada: Board) -> None:
        over = asyncio.Event()

        async def late() -> None:
            await over.wait()
            await ada.put("public/x", 1)

        async with ada.lock(A):
            task = asyncio.create_task(late())
        over.set()
        with pytest.raises(Fenced):
            await finished(task)
        await ada.put("public/x", 2)

    async def test_a_private_lock_goes_with_the_commits_of_its_agent_only(self, team: Team) -> None:
        operator = await team.operator()
        ada, bob = operator.as_agent("ada"), operator.as_agent("bob")
        async with ada.lock("private/ada/x"):
            await bob.put("public/y", 1)
            await ada.put("public/y", 2)

    @renewed_often
    async def test_a_lost_lock_ends_the_block_where_it_waits(self, team: Team, ada: Board) -> None:
        operator = await team.operator()
        block = Block(ada.lock(A, B, ttl_ms=RENEWED_MS))
        lock = await block.entered()
        lost = lock.fences[1]
        # In one commit: a renewal in between would find a lease that nobody holds.
        taken = await operator.commit(
            [Release(B, lost.holder, lost.fence), Grant(B, "other", HOUR_MS)]
        )
        with pytest.raises(LeaseLost) as told:
            await finished(block.task)
        assert (told.value.key, told.value.fence, told.value.holder) == (B, lost.fence, "other")
        assert [(o.key, o.fence) for o in await ada.leases()] == [(B, taken.revision)]

    async def test_a_block_that_ended_well_after_the_loss_gets_the_error_too(
        self, team: Team, ada: Board
    ) -> None:
        operator = await team.operator()
        with pytest.raises(LeaseLost):
            async with ada.lock(A, ttl_ms=HOUR_MS):
                await apart(steal(operator, A))

    async def test_the_error_of_a_block_goes_before_the_loss(self, team: Team, ada: Board) -> None:
        operator = await team.operator()

        async def fail_after_loss() -> None:
            async with ada.lock(A, ttl_ms=HOUR_MS):
                await apart(steal(operator, A))
                raise OwnError

        with pytest.raises(OwnError) as raised:
            await fail_after_loss()
        assert "lease_lost" in raised.value.__notes__[0]

    async def test_the_same_task_cannot_take_a_lock_twice(self, ada: Board) -> None:
        async with ada.lock(A, B):
            with pytest.raises(LocalProtocolError, match=A):
                async with ada.lock("public/c", A):
                    pass
            async with ada.lock("public/c"):
                pass
        async with ada.lock(A):
            pass

    async def test_a_lock_is_for_one_block(self, ada: Board) -> None:
        lock = ada.lock(A)
        async with lock:
            pass
        with pytest.raises(LocalProtocolError):
            async with lock:
                pass

    async def test_a_lock_has_keys_and_not_too_many(self, ada: Board) -> None:
        with pytest.raises(InvalidRequest):
            ada.lock()
        keys = [f"public/k{number}" for number in range(FENCES_MAX + 1)]
        with pytest.raises(LimitExceeded):
            async with ada.lock(*keys):
                pass
        async with ada.lock(*keys[1:]):
            await ada.put("public/x", 1)
        assert await ada.leases() == ()

    async def test_a_lock_on_what_is_not_yours_is_refused(self, ada: Board) -> None:
        with pytest.raises(AccessDenied):
            async with ada.lock("private/bob/x"):
                pass


class WaitFreeRules:
    """Who only reads can wait until nobody updates."""

    async def test_a_reader_sees_all_that_the_holder_wrote(self, ada: Board, bob: Board) -> None:
        update = Block(ada.lock(A))
        await update.entered()
        waiting = apart(bob.wait_free(A))
        await ada.put("public/x", "half")
        await ada.put("public/x", "whole")
        assert not waiting.done()
        await update.end()
        revision = await finished(waiting)
        assert revision == (await bob.head()).revision
        assert await bob.get("public/x") == "whole"

    async def test_nobody_is_waited_for_when_nobody_holds_it(self, ada: Board) -> None:
        await ada.put("public/x", 1)
        assert await ada.wait_free(A) == 1

    async def test_patience_ends_with_the_present_holder(self, ada: Board, bob: Board) -> None:
        first = Block(ada.lock(A))
        await first.entered()
        second = Block(bob.lock(A))
        await queued(ada, A, 1)
        waiting = apart(ada.wait_free(A, timeout_ms=3_000))
        await first.end()
        lock = await second.entered()
        with pytest.raises(LeaseHeld) as told:
            await finished(waiting)
        assert told.value.holder == lock.holder
        await second.end()

    async def test_who_may_not_read_a_key_does_not_wait_for_it(self, ada: Board) -> None:
        with pytest.raises(AccessDenied):
            await ada.wait_free("private/bob/x")
