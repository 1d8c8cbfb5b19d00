"""Claims: one winner for each entry, and every way in which an attempt ends."""
# ruff: noqa: PT012 - what is tried is the whole block

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from blackboard.client.board import Board
from blackboard.client.leases.claim import Record, Task, dead_key, tries_key
from blackboard.client.views import Entry
from blackboard.core import access
from blackboard.core.access import Principal, Right
from blackboard.core.checkpoints import When
from blackboard.core.commit import Grant, Release
from blackboard.errors import (
    AccessDenied,
    Fenced,
    InvalidRequest,
    LeaseLost,
    LocalProtocolError,
    NothingToClaim,
)
from blackboard.limits import KEY_BYTES_MAX
from tests.conformance.team import PATIENCE_S, RENEWED_MS, Team, renewed_often
from tests.conformance.workers import Block, apart, renewals
from tests.waiting import wait_until

TASKS = "public/tasks/*"
ONE, TWO, THREE = "public/tasks/1", "public/tasks/2", "public/tasks/3"
PATIENCE_MS = int(PATIENCE_S * 1000)
HOUR_MS = 3_600_000
SHORT_MS = 300
"""Short enough to see it run out."""


class Broken(Exception):
    """What a block in these rules dies of."""


async def fail(board: Board, *, delay_ms: int = 0, tries_max: int = 5) -> Task:
    """Claim the first task and fail at it."""
    with pytest.raises(Broken):
        async with board.claim(TASKS, timeout_ms=0, tries_max=tries_max) as task:
            task.delay_ms = delay_ms
            raise Broken("no network")
    return task


async def take_and_die(board: Board, key: str, tries: int = 1) -> None:
    """What a process leaves behind that was killed in attempt number `tries` at `key`."""
    entry = await board.entry(key)
    assert entry is not None
    record = Record(tries, entry.create_revision)
    await board.commit([Grant(key, f"{board.agent}~dead", 100), record.at(key)])


class Overtaken(Board):
    """A board on which somebody else acts, once, right after a certain key was read."""

    key = ""
    act: Callable[[], Awaitable[object]] | None = None

    async def entry(self, key: str, *, at: When | None = None) -> Entry | None:
        """As `Board.entry`."""
        found = await super().entry(key, at=at)
        if key == self.key and self.act is not None:
            act, self.act = self.act, None
            # Started in no block: it relies on no lease of who reads.
            await apart(_done(act))
        return found


async def _done(act: Callable[[], Awaitable[object]]) -> None:
    await act()


async def overtaken(team: Team, key: str, act: Callable[[], Awaitable[object]]) -> Overtaken:
    """The board as ada, overtaken by `act` when she reads `key`."""
    board = Overtaken((await team.client(access.agent("ada"))).link, team.name)
    board.key, board.act = key, act
    return board


async def steal(thief: Board, pattern: str = "**") -> None:
    """End the one lease that matches behind its holder's back, and take it."""
    [lease] = await thief.leases(pattern)
    # Started in no block, so that it does not rely on what it ends.
    ended = Release(lease.key, lease.holder, lease.fence)
    taken = thief.commit([ended, Grant(lease.key, "thief~1", HOUR_MS)])
    await asyncio.create_task(taken, context=Context())


async def nothing_is_held(board: Board) -> bool:
    """No lease, no record of an attempt."""
    kept = await board.list("public/~tries/**")
    return not kept.entries and not await board.leases()


class TakingRules:
    """Who gets what."""

    async def test_the_first_entry_is_claimed_under_a_lease(self, ada: Board, bob: Board) -> None:
        await ada.put(TWO, "later")
        await ada.put(ONE, {"do": "first"})
        async with ada.claim(TASKS) as task:
            assert (task.key, task.value, task.attempt) == (ONE, {"do": "first"}, 1)
            [lease] = await bob.leases(TASKS)
            assert (lease.key, lease.holder, lease.fence) == (
                ONE,
                task.fence.holder,
                task.fence.fence,
            )
            assert lease.holder.startswith("ada~")
            async with bob.claim(TASKS) as other:
                assert other.key == TWO
                with pytest.raises(NothingToClaim) as none:
                    await bob.claim(TASKS, timeout_ms=0).__aenter__()
        assert none.value.fields() == {"pattern": TASKS, "waited_ms": 0}
        assert (await ada.list(TASKS)).entries == ()
        assert await nothing_is_held(ada)

    async def test_an_entry_beside_which_no_record_fits_is_in_nobodys_way(self, ada: Board) -> None:
        """Anybody may write one: its key is as long as keys can be."""
        longest = "public/" + "a/" * ((KEY_BYTES_MAX - 8) // 2) + "a"
        for key in (longest, longest[:-10]):  # of that one, the record as a dead letter
            await ada.put(key, "never")
        await ada.put("public/b", "first")
        async with ada.claim("public/**", timeout_ms=0) as task:
            assert task.key == "public/b"

    async def test_of_many_claimers_one_gets_each_entry(self, team: Team) -> None:
        boards = [await team.board(f"worker-{n}") for n in range(5)]
        keys = [f"public/tasks/{n:02}" for n in range(20)]
        for key in keys:
            await boards[0].put(key, key)
        taken: list[str] = []

        async def work(board: Board) -> None:
            while True:
                try:
                    async with board.claim(TASKS, timeout_ms=0) as task:
                        taken.append(task.value)
                except NothingToClaim:
                    return

        await asyncio.gather(*map(work, boards))
        assert sorted(taken) == keys
        assert await nothing_is_held(boards[0])

    async def test_what_is_locked_for_another_reason_is_passed_over(self, ada: Board) -> None:
        await ada.put(ONE, 1)
        await ada.put(TWO, 2)
        await ada.commit([Grant(ONE, "ada~another", HOUR_MS)])
        async with ada.claim(TASKS) as task:
            assert task.key == TWO

    @pytest.mark.limits(claim_look_entries=2)
    async def test_entries_beyond_the_first_page_are_found(self, ada: Board) -> None:
        for n in range(5):
            await ada.put(f"public/tasks/{n}", n)
            if n < 4:
                await ada.commit([Grant(f"public/tasks/{n}", "ada~another", HOUR_MS)])
        async with ada.claim(TASKS, timeout_ms=0) as task:
            assert task.value == 4

    async def test_a_claim_waits_for_an_entry(self, ada: Board, bob: Board) -> None:
        async def claim() -> str:
            async with ada.claim(TASKS) as task:
                return task.key

        async with bob.watch("public/**") as watch:
            claiming = asyncio.create_task(claim())
            await bob.put("public/other", 1)
            await bob.put(ONE, 1)
            with anyio.fail_after(PATIENCE_S):
                assert await claiming == ONE
            changes = [c.kind for r in await watch.wait_for(4) for c in r.changes if c.key == ONE]
        assert changes == ["put", "grant", "delete", "release"]

    async def test_a_claim_waits_for_an_entry_that_comes_back(self, ada: Board, bob: Board) -> None:
        async def claim() -> int:
            async with bob.claim(TASKS) as task:
                return task.attempt

        await ada.put(ONE, 1)
        with pytest.raises(Broken):
            async with ada.claim(TASKS):
                # An empty context: what is started in a block relies on its fence.
                waiting = asyncio.create_task(claim(), context=Context())
                await checkpoint()
                raise Broken
        with anyio.fail_after(PATIENCE_S):
            assert await waiting == 2

    async def test_waiting_ends_after_its_time(self, ada: Board) -> None:
        with pytest.raises(NothingToClaim) as none:
            async with ada.claim(TASKS, timeout_ms=50):
                pass
        assert none.value.waited_ms == 50
        assert (await ada.head()).revision == 0

    async def test_own_messages_can_be_claimed(self, ada: Board, bob: Board) -> None:
        await bob.append("inbox/ada/messages", "hello")
        async with ada.claim("inbox/ada/messages/*") as task:
            assert task.value == "hello"
            with pytest.raises(NothingToClaim):
                await bob.claim("inbox/ada/messages/*", timeout_ms=0).__aenter__()
        assert (await ada.list("inbox/ada/**")).entries == ()

    @pytest.mark.parametrize("pattern", ["**", "*/tasks", "private/**", "public", "other/*"])
    async def test_a_claim_is_of_one_namespace(self, ada: Board, pattern: str) -> None:
        with pytest.raises(InvalidRequest):
            ada.claim(pattern)

    async def test_a_claim_needs_the_right_to_lock(self, team: Team) -> None:
        await (await team.operator()).put(ONE, 1)
        reader = Principal("reader", (access.AccessGrant("public/**", frozenset({Right.READ})),))
        board = (await team.client(reader)).board(team.name)
        with pytest.raises(AccessDenied):
            await board.claim(TASKS).__aenter__()
        assert await nothing_is_held(board)

    async def test_a_claim_is_for_one_block(self, ada: Board) -> None:
        await ada.put(ONE, 1)
        claim = ada.claim(TASKS)
        async with claim:
            pass
        with pytest.raises(LocalProtocolError):
            async with claim:
                pass


class EndingRules:
    """Done, returned, dead."""

    async def test_what_a_task_asks_for_happens_with_its_end(self, ada: Board) -> None:
        await ada.put(ONE, "draft")
        async with ada.claim(TASKS) as task:
            task.put("public/result", 42)
            task.append("public/log", "worked")
            task.move_to("public/done")
            assert await ada.get("public/result") is None
        [revised] = (await ada.log())[-1:]
        assert revised.note == "done"
        assert {(c.kind, c.key, c.value) for c in revised.changes if c.kind == "put"} == {
            ("put", "public/result", 42),
            ("put", "public/log/0000000000", "worked"),
            ("put", "public/done/0000000000", "draft"),
        }
        assert await ada.entry(ONE) is None
        assert await nothing_is_held(ada)

    async def test_a_block_that_raises_returns_the_task(self, ada: Board) -> None:
        await ada.put(ONE, 1)
        with pytest.raises(Broken):
            async with ada.claim(TASKS) as task:
                task.put("public/result", 42)
                raise Broken("no network")
        assert await ada.get("public/result") is None
        [claimed] = await ada.claims()
        assert (claimed.key, claimed.state, claimed.tries) == (ONE, "returned", 1)
        assert claimed.last_error == "Broken: no network"
        async with ada.claim(TASKS, timeout_ms=0) as again:
            assert (again.attempt, again.last_error) == (2, "Broken: no network")

    async def test_a_task_can_be_delayed(self, ada: Board) -> None:
        await ada.put(ONE, 1)
        await fail(ada, delay_ms=HOUR_MS)
        [claimed] = await ada.claims()
        assert (claimed.state, claimed.holder) == ("delayed", None)
        assert claimed.until_ms == (await ada.log())[-1].time_ms + HOUR_MS
        with pytest.raises(NothingToClaim):
            await ada.claim(TASKS, timeout_ms=0).__aenter__()

    async def test_a_delay_ends(self, ada: Board) -> None:
        await ada.put(ONE, 1)
        await fail(ada, delay_ms=SHORT_MS)
        async with ada.claim(TASKS, timeout_ms=PATIENCE_MS) as task:
            assert task.attempt == 2
            times = [r.time_ms for r in await ada.log() if r.note.startswith(("claimed", "ret"))]
        assert times[2] - times[1] >= SHORT_MS

    async def test_what_fails_too_often_is_dead(self, ada: Board) -> None:
        await ada.put(ONE, {"do": "the impossible"})
        await fail(ada, tries_max=2)
        await fail(ada, tries_max=2)
        assert await ada.entry(ONE) is None
        assert await ada.get(dead_key(ONE)) == {"do": "the impossible"}
        assert (await ada.log())[-1].note == "dead letter: Broken: no network"
        [claimed] = await ada.claims()
        assert (claimed.key, claimed.state, claimed.tries) == (dead_key(ONE), "dead", 2)
        assert claimed.last_error == "Broken: no network"
        assert await ada.leases() == ()

    async def test_dead_letters_are_claimed_only_by_name_and_start_over(self, ada: Board) -> None:
        await ada.put(ONE, 1)
        await fail(ada, tries_max=1)
        with pytest.raises(NothingToClaim):
            await ada.claim("public/**", timeout_ms=0).__aenter__()
        async with ada.claim("public/~dead/**") as task:
            assert (task.key, task.attempt) == (dead_key(ONE), 1)
            task.move_to("public/tasks")
        assert [e.key for e in (await ada.list("public/**")).entries] == ["public/tasks/0000000000"]

    @pytest.mark.parametrize("tries_max", [0, -1, 1.5, "2", None])
    async def test_a_number_of_tries_that_is_none_is_refused(
        self, ada: Board, tries_max: Any
    ) -> None:
        with pytest.raises(InvalidRequest, match="tries_max"):
            ada.claim(TASKS, tries_max=tries_max)

    async def test_what_a_dead_task_holds_is_what_it_held_last(self, ada: Board) -> None:
        await ada.put(ONE, "first")
        with pytest.raises(Broken):
            async with ada.claim(TASKS, tries_max=1) as task:
                await ada.put(task.key, "half done")
                raise Broken
        assert await ada.get(dead_key(ONE)) == "half done"

    async def test_a_dead_task_that_changes_meanwhile_is_not_removed(
        self, team: Team, bob: Board
    ) -> None:
        """Nobody has read what it holds now. Its lease runs out, and the next claimer sees it."""
        await bob.put(ONE, "first")
        ada = await overtaken(team, ONE, lambda: bob.put(ONE, "second"))
        await fail(ada, tries_max=1)
        assert ada.act is None
        assert (await bob.get(ONE), await bob.get(dead_key(ONE))) == ("second", None)

    async def test_an_attempt_that_began_and_ended_meanwhile_is_counted(
        self, team: Team, bob: Board
    ) -> None:
        await bob.put(ONE, 1)
        ada = await overtaken(team, tries_key(ONE), lambda: fail(bob))
        async with ada.claim(TASKS, timeout_ms=0) as task:
            assert (task.attempt, task.last_error) == (2, "Broken: no network")

    async def test_an_entry_that_is_put_again_is_counted_again(self, ada: Board) -> None:
        await ada.put(ONE, 1)
        await fail(ada)
        await ada.delete(ONE)
        assert await ada.claims() == []
        await ada.put(ONE, 1)
        async with ada.claim(TASKS) as task:
            assert (task.attempt, task.last_error) == (1, "")

    @pytest.mark.parametrize("rubbish", [1, {}, {"tries": "x"}, {"tries": -1, "created": 1}])
    async def test_rubbish_in_place_of_a_record_counts_nothing(
        self, ada: Board, rubbish: object
    ) -> None:
        await ada.put(ONE, 1)
        await ada.put(tries_key(ONE), rubbish)
        async with ada.claim(TASKS) as task:
            assert task.attempt == 1

    async def test_an_end_that_is_refused_returns_the_task(self, ada: Board) -> None:
        await ada.put(ONE, 1)
        with pytest.raises(AccessDenied):
            async with ada.claim(TASKS) as task:
                task.put("private/bob/x", 1)
        [claimed] = await ada.claims()
        assert (claimed.state, claimed.tries) == ("returned", 1)
        assert claimed.last_error.startswith("AccessDenied")


class LosingRules:
    """Claimers that die, are cancelled, or lose what they have."""

    async def test_the_task_of_a_dead_claimer_comes_back(self, ada: Board, bob: Board) -> None:
        await ada.put(ONE, 1)
        await take_and_die(ada, ONE)
        async with bob.claim(TASKS, timeout_ms=PATIENCE_MS) as task:
            assert (task.attempt, task.last_error) == (2, "")

    async def test_a_task_that_kills_its_claimers_is_dead(self, ada: Board) -> None:
        await ada.put(ONE, "poison")
        await take_and_die(ada, ONE, tries=5)

        async def is_dead() -> bool:
            return bool(await ada.get(dead_key(ONE)) == "poison")

        waiting = Block(ada.claim(TASKS))
        await wait_until(is_dead, timeout_s=PATIENCE_S)
        await waiting.cancel()
        assert not waiting.inside.is_set()
        [claimed] = await ada.claims()
        assert (claimed.state, claimed.last_error) == ("dead", "its claimers died")

    @renewed_often
    async def test_a_claim_is_renewed(self, ada: Board) -> None:
        await ada.put(ONE, 1)
        async with ada.claim(TASKS, ttl_ms=RENEWED_MS) as task:
            head = await ada.head()
            await renewals(ada, ONE, 2)
            assert (await ada.head()).revision == head.revision
            await ada.put("public/work", task.value)

    async def test_the_commits_of_the_block_carry_the_fence(self, ada: Board, team: Team) -> None:
        await ada.put(ONE, 1)
        with pytest.raises(Fenced) as fenced:
            async with ada.claim(TASKS, ttl_ms=HOUR_MS) as task:
                await steal(await team.operator())
                await ada.put("public/work", 1)
        assert (fenced.value.key, fenced.value.holder) == (task.key, "thief~1")
        assert await ada.get("public/work") is None

    async def test_a_task_that_was_lost_is_not_done(self, ada: Board, team: Team) -> None:
        await ada.put(ONE, 1)
        with pytest.raises(LeaseLost) as lost:
            async with ada.claim(TASKS, ttl_ms=HOUR_MS) as task:
                task.put("public/result", 1)
                await steal(await team.operator())
        assert (lost.value.key, lost.value.holder) == (ONE, "thief~1")
        assert await ada.get("public/result") is None
        assert await ada.get(ONE) == 1

    @renewed_often
    async def test_losing_a_task_is_reported_at_once(self, ada: Board, team: Team) -> None:
        await ada.put(ONE, 1)
        with anyio.fail_after(PATIENCE_S), pytest.raises(LeaseLost):
            async with ada.claim(TASKS, ttl_ms=RENEWED_MS):
                await steal(await team.operator())
                await anyio.sleep_forever()
        assert [lease.holder for lease in await ada.leases()] == ["thief~1"]

    async def test_a_cancelled_block_returns_its_task(self, ada: Board) -> None:
        await ada.put(ONE, 1)
        with anyio.CancelScope() as scope:
            async with ada.claim(TASKS):
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        [claimed] = await ada.claims()
        assert (claimed.state, claimed.tries) == ("returned", 1)
        assert claimed.last_error.startswith("CancelledError")

    @pytest.mark.parametrize("native", [True, False])
    async def test_a_claim_can_be_cancelled_at_any_moment(self, ada: Board, native: bool) -> None:
        """Before its block it leaves nothing; in it, the task is returned."""
        turns, began = 0, False
        while not began:
            assert turns < 100_000
            await ada.put(ONE, turns)
            began = await _cancelled_after(ada, turns, native=native)
            turns += 1 + turns // 8
            assert await ada.leases() == ()
            tries = [claimed.tries for claimed in await ada.claims()]
            assert tries == ([1] if began else [])
            await ada.delete(ONE)


async def _cancelled_after(board: Board, turns: int, *, native: bool) -> bool:
    """Cancel a claim after so many turns of the event loop; whether its block had begun."""
    began = False
    scope = anyio.CancelScope()

    async def claim() -> None:
        nonlocal began
        with scope:
            async with board.claim(TASKS):
                began = True
                await anyio.sleep_forever()

    claiming = asyncio.create_task(claim())
    for _ in range(turns):
        await checkpoint()
    if native:
        claiming.cancel()
    else:
        scope.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    return began


class ClaimRules(TakingRules, EndingRules, LosingRules):
    """All of them."""
