"""Watches: what is delivered, when, in which order, and from where one resumes."""

import asyncio

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.core.commit import Grant, Put
from blackboard.errors import (
    Compacted,
    FutureRevision,
    InvalidRequest,
    LimitExceeded,
    LocalProtocolError,
    RolledBack,
)
from blackboard.limits import DEFAULT, LIST_ENTRIES_MAX, OPERATIONS_MAX, PATTERNS_MAX
from blackboard.wire.codec import encode_value
from tests.conformance.team import PATIENCE_S, Team, take

ONE = encode_value(1)


class WatchRules:
    """What a watcher receives."""

    async def test_a_watch_tells_what_happens_from_now_on(self, ada: Board, bob: Board) -> None:
        await ada.put("public/before", 1)
        async with bob.watch("public/**") as watch:
            receipt = await ada.put("public/a", {"x": 1}, note="look")
            [revised] = await take(watch, 1)
        assert (revised.revision, revised.author, revised.note) == (2, "ada", "look")
        assert revised.time_ms == receipt.time_ms
        assert [(c.kind, c.key, c.value) for c in revised.changes] == [
            ("put", "public/a", {"x": 1})
        ]

    async def test_changes_of_a_revision_come_together_and_filtered(
        self, ada: Board, bob: Board
    ) -> None:
        async with bob.watch("public/a/*", "public/b") as watch:
            keys = ["public/a/1", "public/a/1/2", "public/b", "public/c", "private/ada/x"]
            await ada.commit([Put(key, ONE) for key in keys])
            [revised] = await take(watch, 1)
        assert [change.key for change in revised.changes] == ["public/a/1", "public/b"]

    async def test_revisions_with_nothing_to_see_are_left_out(self, ada: Board) -> None:
        async with ada.watch("public/b") as watch:
            await ada.put("public/a", 1)
            await ada.put("public/b", 2)
            [revised] = await take(watch, 1)
        assert revised.revision == 2

    async def test_deletions_and_leases_are_delivered(self, ada: Board) -> None:
        async with ada.watch("public/**") as watch:
            await ada.put("public/a", 1)
            await ada.delete("public/a")
            await ada.commit([Grant("public/lock", "ada", 60_000)])
            _, second, third = await take(watch, 3)
        assert [(c.kind, c.key, c.value) for c in second.changes] == [("delete", "public/a", None)]
        [granted] = third.changes
        assert granted.lease is not None
        assert (granted.kind, granted.lease.holder, granted.lease.fence) == ("grant", "ada", 3)

    async def test_a_watch_from_a_revision_tells_everything_after_it(self, ada: Board) -> None:
        count = DEFAULT.watch.watch_batch_revisions_max + 50
        await asyncio.gather(*[ada.increment("public/n") for _ in range(count)])
        async with ada.watch("public/**", after=7) as watch:
            await ada.increment("public/n")
            found = await take(watch, count - 6)
        assert [revised.revision for revised in found] == list(range(8, count + 2))
        assert [revised.changes[0].value for revised in found] == list(range(8, count + 2))

    async def test_a_watch_goes_on_from_the_token_of_any_revision(self, ada: Board) -> None:
        async with ada.watch("public/**") as watch:
            for _ in range(6):
                await ada.increment("public/n")
            first = await take(watch, 3)
            token = watch.position
        assert token == first[-1].position
        await ada.increment("public/n")
        for position, expected in ((token, [4, 5, 6, 7]), (first[0].position, [2, 3, 4, 5, 6, 7])):
            async with ada.watch("public/**", after=position) as watch:
                found = await take(watch, len(expected))
            assert [revised.revision for revised in found] == expected

    async def test_the_rest_of_a_delivery_survives_leaving_the_loop(self, ada: Board) -> None:
        """Many revisions come at once; a reader that breaks out of the loop continues with the next
        one."""
        for _ in range(9):
            await ada.increment("public/n")
        found: list[int] = []
        async with ada.watch("public/**", after=0) as watch:
            with anyio.fail_after(PATIENCE_S):
                while len(found) < 9:
                    async for revised in watch:
                        found.append(revised.revision)
                        break
        assert found == list(range(1, 10))

    async def test_a_time_out_around_a_watch_does_not_end_it(self, ada: Board) -> None:
        async with ada.watch("public/**") as watch:
            for number in range(3):
                with anyio.move_on_after(0.01):
                    await anext(watch)
                await ada.put("public/a", number)
                [revised] = await take(watch, 1)
                assert revised.changes[0].value == number

    async def test_a_quiet_watch_moves_its_position(self, ada: Board) -> None:
        async with ada.watch("public/quiet") as watch:
            for _ in range(5):
                await ada.increment("public/n")
            with anyio.fail_after(PATIENCE_S):
                assert await watch.wait_for(5) == []
            token = watch.position
            await ada.put("public/quiet", 1)
            [revised] = await take(watch, 1)
        assert token.split(":")[1] == "5"
        assert revised.revision == 6

    async def test_waiting_returns_what_came_on_the_way(self, ada: Board) -> None:
        async with ada.watch("public/**") as watch:
            for _ in range(5):
                await ada.increment("public/n")
            with anyio.fail_after(PATIENCE_S):
                found = await watch.wait_for(5)
            await ada.increment("public/n")
            [later] = await take(watch, 1)
        assert [revised.revision for revised in found] == [1, 2, 3, 4, 5]
        assert later.revision == 6

    # --- snapshots --------------------------------------------------------------------------------

    async def test_a_snapshot_is_the_state_and_then_what_follows(self, ada: Board) -> None:
        await ada.put("public/a", 1)
        await ada.put("public/gone", 1)
        await ada.delete("public/gone")
        async with ada.watch("public/**", snapshot=True) as watch:
            await ada.put("public/a", 2)
            [revised] = await take(watch, 1)
        assert {key: entry.value for key, entry in watch.state.items()} == {"public/a": 1}
        assert (watch.revision, revised.revision) == (3, 4)

    @pytest.mark.parametrize("coalesce", [False, True])
    async def test_a_snapshot_under_load_has_no_gap(
        self, ada: Board, bob: Board, coalesce: bool
    ) -> None:
        """The state, and what follows applied on top of it, is the board: bit for bit."""
        keys = [f"public/{i:04}" for i in range(OPERATIONS_MAX)]
        await ada.commit([Put(key, ONE) for key in keys])
        await ada.commit([Put(f"public/x/{i}", ONE) for i in range(LIST_ENTRIES_MAX)])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_write, bob, keys)
            async with ada.watch("public/**", snapshot=True, coalesce=coalesce) as watch:
                state = {key: (e.value, e.mod_revision) for key, e in watch.state.items()}
                at = watch.revision
                last = 2 + 150
                with anyio.fail_after(PATIENCE_S):
                    found = await watch.wait_for(last) if at < last else []
        for revised in found:
            assert revised.revision > at
            for change in revised.changes:
                if change.kind == "delete":
                    state.pop(change.key, None)
                else:
                    state[change.key] = (change.value, revised.revision)
        board = {e.key: e.value async for e in ada.scan("public/**")}
        assert {key: value for key, (value, _) in state.items()} == board
        if not coalesce:
            revisions = {e.key: e.mod_revision async for e in ada.scan("public/**")}
            assert {key: revision for key, (_, revision) in state.items()} == revisions

    # --- coalescing -------------------------------------------------------------------------------

    async def test_who_allows_it_gets_less_when_behind_and_never_less_than_the_newest(
        self, ada: Board
    ) -> None:
        await asyncio.gather(*[ada.increment("public/n") for _ in range(100)])
        async with ada.watch("public/**", after=0, coalesce=True) as watch:
            with anyio.fail_after(PATIENCE_S):
                found = await watch.wait_for(100)
            assert len(found) < 100
            assert (found[-1].revision, found[-1].changes[-1].value) == (100, 100)
            assert watch.position.split(":")[1] == "100"

    async def test_the_state_of_one_that_allows_it_is_that_of_the_board(
        self, ada: Board, bob: Board
    ) -> None:
        """Each entry with its own revision and author, although the changes come as one."""
        await ada.put("public/a", 1)
        await bob.put("public/a", 2)
        await ada.put("public/b", 1)
        await ada.delete("public/b")
        await ada.put("public/b", 2)
        await bob.put("public/c", 1)
        async with ada.watch("public/**", after=0, snapshot=True, coalesce=True) as watch:
            assert watch.state == {entry.key: entry async for entry in ada.scan("public/**")}
            assert watch.revision == 6
            await bob.put("public/c", 2)
            [revised] = await take(watch, 1)
        assert (revised.revision, revised.changes[0].value) == (7, 2)

    # --- where it cannot begin --------------------------------------------------------------------

    async def test_a_watch_from_a_trimmed_past_learns_where_the_log_begins(
        self, team: Team, ada: Board
    ) -> None:
        async with ada.watch("public/**") as watch:
            for _ in range(9):
                await ada.increment("public/n")
            token = (await take(watch, 3))[2].position
        await team.service.host.store.compact(team.name, 6)
        for after in (0, 4, token):
            with pytest.raises(Compacted) as told:
                async with ada.watch("public/**", after=after) as watch:
                    await take(watch, 1)
            assert told.value.oldest == 6
        async with ada.watch("public/**", after=5) as watch:
            assert [r.revision for r in await take(watch, 4)] == [6, 7, 8, 9]

    async def test_a_watch_from_the_future_is_refused(self, ada: Board) -> None:
        await ada.put("public/a", 1)
        with pytest.raises(FutureRevision) as told:
            async with ada.watch("public/**", after=2) as watch:
                await take(watch, 1)
        assert told.value.head == 1

    async def test_a_token_of_another_history_is_refused(self, ada: Board) -> None:
        await ada.put("public/a", 1)
        epoch = (await ada.head()).epoch.id
        with pytest.raises(RolledBack) as told:
            async with ada.watch("public/**", after=f"{epoch}:1:{'0' * 16}") as watch:
                await take(watch, 1)
        assert (told.value.revision, told.value.head) == (1, 1)
        with pytest.raises(RolledBack):
            async with ada.watch("public/**", after=f"another:7:{'0' * 16}") as watch:
                await take(watch, 1)

    @pytest.mark.parametrize("token", ["", "x", "x:y:z", "x:-1:"])
    async def test_what_is_no_token_is_refused_at_once(self, ada: Board, token: str) -> None:
        with pytest.raises(InvalidRequest):
            ada.watch("public/**", after=token)

    @pytest.mark.parametrize("patterns", [[], ["public//a"], ["public/*"] * (PATTERNS_MAX + 1)])
    async def test_what_cannot_be_watched_is_refused(self, ada: Board, patterns: list[str]) -> None:
        with pytest.raises((InvalidRequest, LimitExceeded)):
            async with ada.watch(*patterns):
                pass

    # --- lifetime ---------------------------------------------------------------------------------

    async def test_a_watch_is_used_inside_its_block_only(self, ada: Board) -> None:
        watch = ada.watch("public/**")
        with pytest.raises(LocalProtocolError):
            _ = watch.position
        with pytest.raises(LocalProtocolError):
            await anext(watch)
        async with watch:
            pass
        with pytest.raises(LocalProtocolError):
            await anext(watch)

    @pytest.mark.own_service
    async def test_a_closed_watch_leaves_nothing_behind(self, team: Team, ada: Board) -> None:
        for _ in range(3):
            async with ada.watch("public/**"), ada.watch("public/a"):
                assert team.service.statistics().watchers == 2
        with anyio.fail_after(PATIENCE_S):
            while team.service.statistics().watchers:
                await anyio.lowlevel.checkpoint()

    @pytest.mark.own_service
    async def test_a_watch_that_cannot_begin_leaves_nothing_behind(
        self, team: Team, ada: Board
    ) -> None:
        await ada.put("public/a", 1)
        with pytest.raises(InvalidRequest):
            async with ada.watch("public", snapshot=True):
                pass
        with anyio.fail_after(PATIENCE_S):
            while team.service.statistics().watchers:
                await anyio.lowlevel.checkpoint()

    async def test_many_watchers_all_get_the_same(self, ada: Board, bob: Board) -> None:
        found: list[list[int]] = []

        async def follow(board: Board) -> None:
            async with board.watch("public/**", after=0) as watch:
                found.append([revised.revision for revised in await take(watch, 30)])

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(follow, (ada, bob)[number % 2])
            for _ in range(30):
                await ada.increment("public/n")
        assert found == [list(range(1, 31))] * 10


async def _write(board: Board, keys: list[str]) -> None:
    """150 revisions: puts and deletes, all over the keys."""
    for number in range(150):
        key = keys[(number * 131) % len(keys)]
        if number % 3:
            await board.put(key, number)
        else:
            await board.commit([Put("public/steady", ONE), Put(key, ONE)])
