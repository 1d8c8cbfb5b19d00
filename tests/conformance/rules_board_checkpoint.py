"""Checkpoints: a name for a revision, once; and barriers, which ask the agents for their state."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.access import AccessGrant, Principal, Right
from blackboard.core.checkpoints import (
    Checkpoint,
    CheckpointRequest,
    RetentionPolicy,
    checkpoint_key,
)
from blackboard.core.commit import Delete, Op, Put
from blackboard.core.path import barrier_key
from blackboard.errors import (
    AccessDenied,
    BarrierMissed,
    Compacted,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NoSuchCheckpoint,
    SnapshotFirst,
)
from blackboard.limits import BARRIER_MS_MAX, NOTE_BYTES_MAX, VALUE_BYTES_MAX
from blackboard.wire.codec import encode_value
from tests.conformance.team import PATIENCE_S, Team
from tests.waiting import wait_until

BARRIER_MS = 10_000
SHORT_MS = 500
DELIVERED_MS = 2_500
"""Short enough to be waited for, long enough for a busy machine to deliver in it."""


def keeper_of_checkpoints(name: str = "keeper") -> Principal:
    """Somebody who may checkpoint and restore the board, and see what is public."""
    rights = frozenset({Right.CHECKPOINT, Right.RESTORE})
    own = (AccessGrant("**", rights), AccessGrant("public/**", frozenset({Right.READ})))
    return Principal(name, (*own, AccessGrant("system/checkpoints/**", frozenset({Right.READ}))))


async def board_of(team: Team, principal: Principal) -> Board:
    """The board as `principal` sees it."""
    return (await team.client(principal)).board(team.name)


@asynccontextmanager
async def under_way(
    board: Board, name: str, barrier_ms: int, *, stale_ok: bool = False
) -> AsyncIterator["asyncio.Task[Checkpoint]"]:
    """A checkpoint with a barrier that stands by now."""
    async with board.watch("system/barriers/*") as watch:
        taking = asyncio.create_task(
            board.checkpoint(name, barrier_ms=barrier_ms, stale_ok=stale_ok)
        )
        try:
            with anyio.fail_after(PATIENCE_S):
                await anext(watch)
            yield taking
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)


class CheckpointRules:
    """What a checkpoint is, and who may take one."""

    async def test_a_checkpoint_names_a_revision_and_costs_one(
        self, team: Team, ada: Board
    ) -> None:
        await ada.put("public/plan", 1)
        board = await team.operator()
        taken = await board.checkpoint("before-plan", note="all agree")
        assert (taken.board, taken.name, taken.revision) == (board.name, "before-plan", 2)
        assert (taken.kind, taken.by, taken.note) == ("named", "operator", "all agree")
        assert (await board.head()).revision == 2
        assert await board.checkpoints() == (taken,)

    async def test_its_manifest_tells_what_was_sealed(self, team: Team, ada: Board) -> None:
        await ada.put("public/plan", 1)
        await ada.put("private/ada/draft", 2)
        await ada.put("public/~declared/ada", {"model": "small", "temperature": 0})
        board = await team.operator()
        first = await board.checkpoint("first")
        await ada.put("public/plan", 3)
        await board.checkpoint("second")
        shown = await board.show("first")
        assert (shown.checkpoint, shown.epoch.number, shown.previous) == (first, 1, "")
        assert shown.steps == {"ada": 3}
        assert shown.declared == {"ada": {"model": "small", "temperature": 0}}
        assert {"public", "private/ada"} <= set(shown.digests)
        assert all(re.fullmatch("[0-9a-f]{64}", text) for text in shown.digests.values())
        later = await board.show("second")
        assert later.previous
        assert later.chain != shown.chain
        assert later.digests["private/ada"] == shown.digests["private/ada"]
        assert later.digests["public"] != shown.digests["public"]

    async def test_its_manifest_shows_each_what_it_may_read(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """What an agent declared is an entry, and so is the checkpoint."""
        for board in (ada, bob):
            await board.put(f"public/~declared/{board.agent}", {"prompt": board.agent})
        await (await team.operator()).checkpoint("plan")
        readable = (checkpoint_key("plan"), "public/~declared/ada", "private/eve/**")
        grants = tuple(AccessGrant(key, frozenset({Right.READ})) for key in readable)
        eve = (await team.client(Principal("eve", grants))).board(team.name)
        shown = await eve.show("plan")
        assert shown.declared == {"ada": {"prompt": "ada"}}
        assert "public" not in shown.digests

    async def test_without_a_name_it_gets_one_from_the_time(self, team: Team) -> None:
        board = await team.operator()
        one, two = await board.checkpoint(), await board.checkpoint()
        assert one.name != two.name
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d\.\d\d\.\d\dZ-[0-9a-f]{4}", one.name)
        assert one.kind == "automatic"

    async def test_a_name_is_given_once(self, team: Team) -> None:
        board = await team.operator()
        first = await board.checkpoint("plan")
        with pytest.raises(Conflict) as refused:
            await board.checkpoint("plan")
        assert (refused.value.key, refused.value.actual) == (checkpoint_key("plan"), first.revision)
        assert await board.checkpoints() == (first,)

    async def test_only_those_that_may_be_read_are_listed(self, team: Team) -> None:
        await (await team.operator()).checkpoint("plan")
        seen = (
            access.parse_grant("public/**=read"),
            access.parse_grant(f"{checkpoint_key('a')}=read"),
        )
        only = await team.account("guest", grants=seen)
        assert await only.checkpoints() == ()

    async def test_one_of_many_concurrent_checkpoints_gets_the_name(self, team: Team) -> None:
        """The others learn whose it is, and it stays where it was put."""
        link = (await team.client(access.operator())).link
        wishes = [CheckpointRequest("plan", secrets.token_hex(8)) for _ in range(4)]
        asked = (link.checkpoint(team.name, spec) for spec in wishes)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 3
        [first] = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert await (await team.operator()).checkpoints() == (first,)

    async def test_the_same_request_gets_the_same_answer(self, team: Team) -> None:
        """So a client whose connection broke asks again without fear."""
        link = (await team.client(access.operator())).link
        spec = CheckpointRequest("plan", secrets.token_hex(8), "why")
        one = await link.checkpoint(team.name, spec)
        two = await link.checkpoint(team.name, spec)
        assert one == two
        both = await asyncio.gather(
            *(link.checkpoint(team.name, CheckpointRequest("again", "ab" * 8)) for _ in range(4))
        )
        assert len(set(both)) == 1

    @pytest.mark.parametrize("name", ["now", "4711", "a/b", "", "..", "x" * 129])
    async def test_names_that_would_be_misread_are_refused(self, team: Team, name: str) -> None:
        board = await team.operator()
        link = (await team.client(access.operator())).link
        with pytest.raises(InvalidRequest):
            await link.checkpoint(board.name, CheckpointRequest(name, "ab" * 8))
        assert await board.checkpoints() == ()

    async def test_what_is_too_long_is_refused(self, team: Team) -> None:
        board = await team.operator()
        with pytest.raises(LimitExceeded) as refused:
            await board.checkpoint("a", note="x" * (NOTE_BYTES_MAX + 1))
        assert refused.value.limit == "NOTE_BYTES_MAX"
        await board.checkpoint("b", note="x" * NOTE_BYTES_MAX)
        with pytest.raises((LimitExceeded, InvalidRequest)):
            await board.checkpoint("c", barrier_ms=BARRIER_MS_MAX + 1)
        with pytest.raises(InvalidRequest):
            await board.checkpoint("d", barrier_ms=0)

    async def test_pages_of_checkpoints_are_put_together(self, team: Team) -> None:
        board = await team.operator()
        taken = [await board.checkpoint(f"c{number}") for number in range(7)]
        assert await board.checkpoints() == tuple(taken)
        link = (await team.client(access.operator())).link
        page = await link.checkpoints(board.name, after=taken[1].revision, limit=3)
        assert list(page) == taken[2:5]

    async def test_agents_may_see_checkpoints_and_not_take_them(
        self, team: Team, ada: Board
    ) -> None:
        board = await team.operator()
        taken = await board.checkpoint("plan")
        assert await ada.checkpoints() == (taken,)
        for refused in (
            ada.checkpoint("mine"),
            ada.restore("plan"),
            ada.branch("mine", "plan"),
            ada.pin("plan"),
            ada.prune(),
            ada.verify(),
        ):
            with pytest.raises(AccessDenied):
                await refused
        assert (await board.head()).revision == taken.revision

    async def test_nobody_writes_the_records_of_the_service(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        await board.checkpoint("plan")
        for who in (board, ada):
            for key in (checkpoint_key("plan"), checkpoint_key("x"), barrier_key("bob")):
                with pytest.raises(AccessDenied):
                    await who.put(key, 1)
                with pytest.raises(AccessDenied):
                    await who.delete(key)
            with pytest.raises(AccessDenied):
                await who.delete_prefix("system")
        assert len(await board.checkpoints()) == 1

    async def test_an_unknown_name_is_reported(self, team: Team) -> None:
        board = await team.operator()
        await board.head()
        for asked in (
            board.show("x"),
            board.restore("x"),
            board.get("public/a", at="x"),
            board.pin("x"),
            board.diff("x"),
            board.branch("y", "x"),
        ):
            with pytest.raises(NoSuchCheckpoint) as refused:
                await asked
            assert (refused.value.board, refused.value.name) == (board.name, "x")

    # --- retention --------------------------------------------------------------------------------

    async def test_pruning_keeps_what_the_policy_says(self, team: Team) -> None:
        board = await team.operator()
        await board.checkpoint("named")
        unnamed = [(await board.checkpoint()).name for _ in range(4)]
        await board.pin(unnamed[0])
        policy = RetentionPolicy(last=1, days=0)
        dry = await board.prune(policy, dry_run=True)
        assert len(await board.checkpoints()) == 5
        assert dry.removed == tuple(unnamed[1:3])
        pruned = await board.prune(policy)
        assert pruned.removed == dry.removed
        left = await board.checkpoints()
        assert [c.name for c in left] == ["named", unnamed[0], unnamed[3]] == list(pruned.kept)
        assert [c.pinned for c in left] == [False, True, False]
        await board.unpin(unnamed[0])
        assert (await board.prune(RetentionPolicy(last=0, days=0, named=False))).kept == ()
        assert await board.checkpoints() == ()

    async def test_what_a_branch_needs_is_not_pruned(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        await ada.put("public/plan", "first")
        origin = await board.checkpoint()
        other = await board.branch(f"{board.name}-b", origin.name)
        for number in range(5):
            await ada.put("public/plan", number)
        pruned = await board.prune(RetentionPolicy(last=0, days=0, named=False, history_ms=0))
        assert pruned.kept == (origin.name,)
        assert await other.get("public/plan", at=origin.revision) == "first"
        assert await other.get("public/plan") == "first"
        assert (await other.verify()).ok

    async def test_history_that_is_pruned_is_gone_and_checkpoints_stay(
        self, team: Team, ada: Board
    ) -> None:
        board = await team.operator()
        await ada.put("public/plan", "first")
        await board.checkpoint("kept")
        for number in range(5):
            await ada.put("public/plan", number)
        await board.prune(RetentionPolicy(history_ms=0))
        assert await board.get("public/plan", at="kept") == "first"
        assert (await board.verify()).ok
        await board.restore("kept")
        assert await ada.get("public/plan") == "first"

    async def test_a_dry_run_says_what_pruning_removes(self, team: Team, ada: Board) -> None:
        """And removes nothing."""
        board = await team.operator()
        for number in range(5):
            await ada.put("public/plan", f"{number}" * 100)
        await board.checkpoint("kept")
        await ada.put("public/plan", "last")
        policy = RetentionPolicy(history_ms=0)
        dry = await board.prune(policy, dry_run=True)
        assert dry == await board.prune(policy, dry_run=True)
        assert len(await board.history("public/plan")) == 6
        pruned = await board.prune(policy)
        assert (pruned.versions, pruned.value_bytes) == (dry.versions, dry.value_bytes)
        assert pruned.versions >= 4
        assert pruned.value_bytes
        assert (await board.verify()).ok

    async def test_the_history_is_kept_up_to_a_number_of_bytes(
        self, team: Team, ada: Board
    ) -> None:
        """The newest commits count, before compression."""
        board = await team.operator()
        revisions = [(await ada.put("public/plan", f"{n}" * 10_000)).revision for n in range(6)]
        assert (await board.prune(RetentionPolicy(history_bytes=10**9))).versions == 0
        assert (await board.prune(RetentionPolicy(history_bytes=35_000))).versions >= 2
        for revision in revisions[:2]:
            with pytest.raises(Compacted):
                await board.get("public/plan", at=revision)
        for n in (3, 4, 5):
            assert await board.get("public/plan", at=revisions[n]) == f"{n}" * 10_000
        pruned = await board.prune(RetentionPolicy(history_ms=10**9, history_bytes=0))
        assert pruned.versions >= 1, "the smaller bound counts"
        assert await ada.get("public/plan") == "5" * 10_000
        assert (await board.verify()).ok


async def _is_asked(board: Board, agent: str) -> bool:
    return await board.entry(barrier_key(agent)) is not None


async def _has_delivered(board: Board, agent: str) -> bool:
    return await board.get(f"private/{agent}/memory") is not None


class BarrierRules:
    """A checkpoint that waits until every agent brought in what it knows."""

    async def test_without_agents_a_barrier_holds_nobody_up(self, team: Team) -> None:
        taken = await (await team.operator()).checkpoint("plan", barrier_ms=BARRIER_MS)
        assert taken.barrier is not None
        assert (taken.barrier.delivered, taken.barrier.not_fresh) == ((), ())

    async def test_an_agent_is_refused_until_it_delivers(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        async with ada.attach(), under_way(board, "plan", BARRIER_MS) as taking:
            with pytest.raises(SnapshotFirst) as refused:
                await ada.put("public/next", 1)
            assert (refused.value.agent, refused.value.key) == ("ada", barrier_key("ada"))
            memory = Put("private/ada/memory", encode_value("all I know"))
            await ada.commit([memory, Delete(refused.value.key)])
            with anyio.fail_after(PATIENCE_S):
                taken = await taking
            await ada.put("public/next", 1)
            assert taken.barrier is not None
            assert taken.barrier.delivered == ("ada",)
            assert taken.barrier.asked < taken.revision
            assert await board.get("private/ada/memory", at="plan") == "all I know"
            assert await board.get("public/next", at="plan") is None

    async def test_a_deliver_callback_brings_it_by_itself(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """Also of an agent that is not committing anything just now."""
        asked = 0

        async def deliver() -> Sequence[Op]:
            nonlocal asked
            asked += 1
            return [Put("private/ada/memory", encode_value(asked))]

        board = await team.operator()
        async with ada.attach(deliver=deliver), bob.attach() as idle:
            async with under_way(board, "plan", BARRIER_MS) as taking:
                await bob.commit([Delete(barrier_key("bob"))])
                with anyio.fail_after(PATIENCE_S):
                    taken = await taking
            assert idle.board.agent == "bob"
            assert taken.barrier is not None
            assert taken.barrier.delivered == ("ada", "bob")
            assert await board.get("private/ada/memory", at="plan") == asked == 1

    async def test_a_commit_that_meets_the_barrier_is_carried_out_after_it(
        self, team: Team, ada: Board
    ) -> None:
        async def deliver() -> Sequence[Op]:
            return [Put("private/ada/memory", encode_value("brought"))]

        board = await team.operator()
        async with (
            ada.attach(deliver=deliver),
            under_way(board, "plan", BARRIER_MS) as taking,
        ):
            for number in range(20):
                await ada.put("public/count", number)
            with anyio.fail_after(PATIENCE_S):
                taken = await taking
            assert await board.get("private/ada/memory", at="plan") == "brought"
            assert await board.get("public/count") == 19
            assert taken.barrier is not None
            assert taken.barrier.not_fresh == ()

    async def test_memory_and_state_of_a_cut_belong_together(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """An agent that has delivered continues while another one thinks: each commit brings the
        memory along, and the manifest tells up to which revision it did."""
        memory, thought = {"turn": 0}, asyncio.Event()

        async def remember() -> Sequence[Op]:
            return [Put("private/ada/memory", encode_value(memory["turn"]))]

        async def think() -> Sequence[Op]:
            await thought.wait()
            return [Put("private/bob/memory", encode_value("thought"))]

        async def turn() -> int:
            memory["turn"] += 1
            return (await ada.put("private/ada/position", memory["turn"])).revision

        board = await team.operator()
        async with ada.attach(deliver=remember), bob.attach(deliver=think):
            await turn()
            async with under_way(board, "plan", BARRIER_MS) as taking:
                last = [await turn() for _ in range(5)][-1]
                assert not taking.done()
                thought.set()
                with anyio.fail_after(PATIENCE_S):
                    taken = await taking
            await turn()
        assert taken.barrier is not None
        assert taken.barrier.delivered == ("ada", "bob")
        assert await board.get("private/ada/memory", at="plan") == 6
        assert await board.get("private/ada/position", at="plan") == 6
        shown = await board.show("plan")
        assert shown.memory.keys() == {"ada", "bob"}
        assert last <= shown.memory["ada"] < taken.revision

    async def test_who_has_to_think_to_deliver_waits_for_the_cut(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """It is asked once, and its next commit comes after the cut."""
        asked, thought = 0, asyncio.Event()

        async def ask_a_model() -> Sequence[Op]:
            nonlocal asked
            asked += 1
            await anyio.lowlevel.checkpoint()
            return [Put("private/ada/memory", encode_value(asked))]

        async def think() -> Sequence[Op]:
            await thought.wait()
            return []

        board = await team.operator()
        async with ada.attach(deliver=ask_a_model), bob.attach(deliver=think):
            async with under_way(board, "plan", BARRIER_MS) as taking:
                await wait_until(lambda: _has_delivered(board, "ada"))
                going_on = asyncio.create_task(ada.put("public/a", 1))
                await anyio.lowlevel.checkpoint()
                thought.set()
                with anyio.fail_after(PATIENCE_S):
                    taken = await taking
                    done = await going_on
            assert taken.revision < done.revision
            assert asked == 1
            assert await board.get("private/ada/memory", at="plan") == 1
            assert (await board.list("system/barriers/**")).entries == ()

    async def test_what_is_too_large_to_go_with_a_delivery_goes_after_the_cut(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """Each of the two fits into a commit."""
        large = encode_value(b"x" * (VALUE_BYTES_MAX - 8))
        keys = ("private/ada/memory", "private/ada/more")
        again, thought = asyncio.Event(), asyncio.Event()

        async def remember() -> Sequence[Op]:
            if goes_on:
                again.set()
            return [Put(key, large) for key in keys]

        async def think() -> Sequence[Op]:
            await thought.wait()
            return []

        board = await team.operator()
        goes_on = False
        async with ada.attach(deliver=remember), bob.attach(deliver=think):
            async with under_way(board, "plan", BARRIER_MS) as taking:
                await wait_until(lambda: _has_delivered(board, "ada"))
                goes_on = True
                ops = [Put(f"public/large/{n}", large) for n in range(2)]
                going_on = asyncio.create_task(ada.commit(ops))
                with anyio.fail_after(PATIENCE_S):
                    await again.wait()
                thought.set()
                with anyio.fail_after(PATIENCE_S):
                    taken, done = await asyncio.gather(taking, going_on)
            assert len(done.results) == 2
            assert taken.revision < done.revision

    async def test_who_only_attached_again_is_not_fresh(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """It was another process that delivered; this one counts once it has, too."""
        board = await team.operator()
        async with bob.attach(), ada.attach() as me, under_way(board, "a", BARRIER_MS) as taking:
            await ada.commit([Delete(barrier_key("ada"))])
            await me.__aexit__(None, None, None)
            async with ada.attach():
                with pytest.raises(SnapshotFirst):
                    await ada.put("public/next", 1)
                await wait_until(lambda: _is_asked(board, "ada"))
                await bob.commit([Delete(barrier_key("bob"))])
                assert not taking.done()
                await ada.commit([Delete(barrier_key("ada"))])
                with anyio.fail_after(PATIENCE_S):
                    taken = await taking
        assert taken.barrier is not None
        assert taken.barrier.delivered == ("ada", "bob")

    async def test_a_process_that_attached_again_is_asked_at_once(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """With `deliver` it answers by itself."""

        async def deliver() -> Sequence[Op]:
            return [Put("private/ada/memory", encode_value("of the second one"))]

        board = await team.operator()
        async with ada.attach() as me, under_way(board, "a", BARRIER_MS) as taking:
            await me.__aexit__(None, None, None)
            with anyio.fail_after(PATIENCE_S):
                await taking
        async with (
            bob.attach(),
            ada.attach() as me,
            under_way(board, "b", BARRIER_MS) as taking,
        ):
            await me.__aexit__(None, None, None)
            async with ada.attach(deliver=deliver):
                await wait_until(lambda: _has_delivered(board, "ada"))
                await bob.commit([Delete(barrier_key("bob"))])
                with anyio.fail_after(PATIENCE_S):
                    taken = await taking
        assert taken.barrier is not None
        assert taken.barrier.delivered == ("ada", "bob")
        assert await board.get("private/ada/memory", at="b") == "of the second one"

    async def test_who_does_not_deliver_fails_it_and_is_named(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        board = await team.operator()
        async with ada.attach(), bob.attach():
            async with under_way(board, "plan", DELIVERED_MS) as taking:
                await bob.commit([Delete(barrier_key("bob"))])
                with anyio.fail_after(PATIENCE_S), pytest.raises(BarrierMissed) as missed:
                    await taking
            assert (missed.value.agents, missed.value.timeout_ms) == (["ada"], DELIVERED_MS)
            await ada.put("public/next", 1)
        assert await board.checkpoints() == ()
        assert (await board.list("system/barriers/*")).entries == ()

    async def test_or_is_marked_as_not_fresh_if_that_is_fine(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        async with ada.attach():
            with anyio.fail_after(PATIENCE_S):
                taken = await board.checkpoint("plan", barrier_ms=SHORT_MS, stale_ok=True)
            await ada.put("public/next", 1)
        assert taken.barrier is not None
        assert taken.barrier.not_fresh == ("ada",)
        assert await board.checkpoints() == (taken,)

    async def test_who_leaves_is_not_waited_for(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        async with ada.attach() as me, under_way(board, "plan", BARRIER_MS) as taking:
            await me.__aexit__(None, None, None)
            with anyio.fail_after(PATIENCE_S):
                taken = await taking
        assert taken.barrier is not None
        assert taken.barrier.not_fresh == ()

    async def test_a_barrier_does_not_cost_an_agent_its_identity(
        self, team: Team, ada: Board
    ) -> None:
        """Renewals go through it, though they tell of the agent's last step too."""
        board = await team.operator()
        async with ada.attach(ttl_ms=4_000) as me:
            await ada.put("public/a", 1)
            with anyio.fail_after(PATIENCE_S), pytest.raises(BarrierMissed):
                await board.checkpoint("plan", barrier_ms=5_000)
            await ada.put("public/a", 2)
            assert me.fences

    async def test_an_agent_may_not_answer_for_another(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        board = await team.operator()
        async with ada.attach(), under_way(board, "plan", BARRIER_MS) as taking:
            with pytest.raises(AccessDenied):
                await bob.delete(barrier_key("ada"))
            with pytest.raises(AccessDenied):
                await board.delete(barrier_key("ada"))
            assert not taking.done()

    async def test_two_barriers_at_once_are_both_answered(self, team: Team, ada: Board) -> None:
        async def deliver() -> Sequence[Op]:
            return [Put("private/ada/memory", encode_value(1))]

        board = await team.operator()
        async with ada.attach(deliver=deliver):
            with anyio.fail_after(PATIENCE_S):
                taken = await asyncio.gather(
                    *(board.checkpoint(f"c{n}", barrier_ms=BARRIER_MS) for n in range(3))
                )
        assert all(c.barrier and c.barrier.delivered == ("ada",) for c in taken)
