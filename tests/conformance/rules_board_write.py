"""Board, writing: single operations, commits, exactly once, many at once, cancellation."""

import asyncio
import contextlib
import math
from typing import Any

import anyio
import msgpack
import pytest

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.commit import (
    ABSENT,
    PRESENT,
    Append,
    Commit,
    CommitId,
    Condition,
    Delete,
    DeletePrefix,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Op,
    PrefixUnchanged,
    Put,
    Release,
    Renew,
)
from blackboard.core.path import updates_prefix
from blackboard.errors import (
    Conflict,
    Fenced,
    InvalidRequest,
    LeaseHeld,
    LimitExceeded,
    StaleEpoch,
    StepSuperseded,
    TypeMismatch,
)
from blackboard.limits import (
    LANES_MAX,
    NOTE_BYTES_MAX,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    VALUE_DEPTH_MAX,
    VALUE_INLINE_BYTES_MAX,
)
from blackboard.wire.codec import encode_value
from tests.conformance.team import PATIENCE_S, Team, take

ONE = encode_value(1)
HOUR_MS = 3_600_000
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**53 + 1,
    -(2**63),
    2**64 - 1,
    1.5,
    "",
    "text ☃ \x00 \U0001f600",
    b"",
    b"\x00\xff",
    [],
    {},
    {"a": [1, {"b": b"\x80", "": None}], "ü": -0.0},
    "x" * (VALUE_INLINE_BYTES_MAX + 1),
    b"\x00" * (VALUE_BYTES_MAX - 5),
]
NO_VALUES: list[Any] = [
    float("nan"),
    float("inf"),
    2**64,
    {1: 2},
    {"$bytes": "AA=="},
    object(),
    {1, 2},
    "\ud800",
]


async def put_many(board: Board) -> list[str]:
    """Put more keys than one commit removes; returns them."""
    keys = [f"public/many/{number:04}" for number in range(2 * OPERATIONS_MAX + 3)]
    for at in range(0, len(keys), OPERATIONS_MAX):
        await board.commit([Put(key, ONE) for key in keys[at : at + OPERATIONS_MAX]])
    return keys


class BoardWriteRules:
    """What changes a board, and what does not."""

    # --- put --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
    async def test_what_is_put_is_what_is_got(self, ada: Board, value: Any) -> None:
        await ada.put("public/a", value)
        found = await ada.get("public/a", default="absent")
        assert (found, type(found)) == (value, type(value))

    async def test_a_touch_changes_when_an_entry_expires(self, ada: Board, bob: Board) -> None:
        first = await ada.put("public/a", {"x": b"y"}, ttl_ms=HOUR_MS)
        touched = await bob.touch("public/a", ttl_ms=3 * HOUR_MS)
        entry = await ada.entry("public/a")
        assert entry is not None
        assert (entry.value, entry.author) == ({"x": b"y"}, "bob")
        assert (entry.create_revision, entry.mod_revision) == (first.revision, touched.revision)
        assert entry.expires_at_ms == touched.time_ms + 3 * HOUR_MS
        await ada.touch("public/a", ttl_ms=None)
        entry = await ada.entry("public/a")
        assert entry is not None
        assert entry.expires_at_ms is None
        with pytest.raises(Conflict) as refused:
            await ada.touch("public/none", ttl_ms=1)
        assert (refused.value.key, refused.value.expected) == ("public/none", PRESENT)
        assert await ada.entry("public/none") is None

    async def test_touches_and_changes_of_others_lose_nothing(self, ada: Board, bob: Board) -> None:
        await ada.put("public/n", 0)

        async def count() -> None:
            for _ in range(20):
                await ada.increment("public/n")

        async def touch() -> None:
            for _ in range(20):
                with contextlib.suppress(Conflict):
                    await bob.touch("public/n", ttl_ms=HOUR_MS)

        await asyncio.gather(count(), touch(), touch())
        assert await ada.get("public/n") == 20

    async def test_a_prefix_of_any_size_is_deleted(self, ada: Board, bob: Board) -> None:
        """Also more than one commit can remove; what lies beside it stays."""
        keys = await put_many(ada)
        await bob.put("public/many.beside", 1)
        assert await bob.delete_prefix("public/many") == tuple(keys)
        assert [entry.key async for entry in ada.scan("public/**")] == ["public/many.beside"]
        assert await bob.delete_prefix("public/many") == ()

    async def test_a_large_delete_tells_how_far_it_is(self, ada: Board) -> None:
        keys = await put_many(ada)
        seen: list[int] = []
        await ada.delete_prefix("public/many", progress=seen.append)
        assert seen == sorted(seen)
        assert 0 < seen[-1] < len(keys)

    async def test_a_large_delete_takes_documents_as_wholes(self, boss: Board, ada: Board) -> None:
        """Their parts are nobody's to remove one by one."""
        await put_many(ada)
        part = f"{updates_prefix('public/many/0000-memo')}/0000000000"
        await boss.put(part, {"update": b"\x00\x00"})
        assert part in await ada.delete_prefix("public/many")
        assert [entry.key async for entry in ada.scan("public/**")] == []

    @pytest.mark.parametrize("value", NO_VALUES, ids=lambda value: repr(value)[:20])
    async def test_what_is_no_value_is_refused(self, ada: Board, value: Any) -> None:
        with pytest.raises(InvalidRequest) as refused:
            await ada.put("public/a", value)
        assert refused.value.field == "value"
        assert (await ada.head()).revision == 0

    async def test_a_value_that_is_too_large_is_refused(self, ada: Board) -> None:
        with pytest.raises(LimitExceeded) as refused:
            await ada.put("public/a", b"\x00" * VALUE_BYTES_MAX)
        assert refused.value.limit == "VALUE_BYTES_MAX"

    @pytest.mark.parametrize("key", ["", "public", "public//a", "public/a b", "x/y", "public/.."])
    async def test_what_is_no_key_is_refused(self, ada: Board, key: str) -> None:
        for attempt in (ada.put(key, 1), ada.delete(key), ada.increment(key), ada.get(key)):
            with pytest.raises(InvalidRequest):
                await attempt
        assert (await ada.head()).revision == 0

    async def test_a_receipt_says_when_and_how_durable(self, ada: Board) -> None:
        first, second = await ada.put("public/a", 1), await ada.put("public/a", 2)
        assert (first.revision, second.revision) == (1, 2)
        assert first.time_ms <= second.time_ms
        assert first.level in ("disk", "second", "replica", "memory")
        assert (first.results, first.duplicate) == ((None,), False)

    async def test_a_put_may_expect_what_it_replaces(self, ada: Board) -> None:
        first = await ada.put("public/a", "one", expected=ABSENT)
        second = await ada.put("public/a", "two", expected=first.revision)
        assert await ada.get("public/a") == "two"
        await ada.put("public/a", "three", expected=PRESENT)
        with pytest.raises(Conflict):
            await ada.put("public/a", "four", expected=second.revision)
        with pytest.raises(Conflict):
            await ada.put("public/b", "one", expected=PRESENT)
        assert await ada.get("public/a") == "three"

    async def test_a_conflict_has_key_author_revision_and_current_value(
        self, ada: Board, bob: Board
    ) -> None:
        await ada.put("public/a", {"usd_bn": 1})
        theirs = await bob.put("public/a", {"usd_bn": 2})
        await bob.put("public/elsewhere", 0)
        with pytest.raises(Conflict) as refused:
            await ada.put("public/a", {"usd_bn": 3}, expected=1)
        assert refused.value.fields() == {
            "key": "public/a",
            "expected": 1,
            "actual": theirs.revision,
            "by": "bob",
            "at_revision": theirs.revision,
            "head": 3,
            "current": {"usd_bn": 2},
        }

    async def test_a_conflict_names_the_agent_that_deleted_the_key(
        self, ada: Board, bob: Board
    ) -> None:
        first = await ada.put("public/a", 1)
        await bob.delete("public/a")
        with pytest.raises(Conflict) as refused:
            await ada.put("public/a", 2, expected=first.revision)
        told = refused.value
        assert (told.actual, told.by, told.at_revision, told.current) == (ABSENT, "bob", 2, None)

    async def test_a_conflict_leaves_a_large_value_out(self, ada: Board) -> None:
        await ada.put("public/a", "x" * (VALUE_INLINE_BYTES_MAX + 1))
        with pytest.raises(Conflict) as refused:
            await ada.put("public/a", 1, expected=ABSENT)
        assert (refused.value.actual, refused.value.current) == (1, None)

    async def test_an_entry_expires_and_watchers_see_it(self, team: Team, ada: Board) -> None:
        async with ada.watch("public/**", after=0) as watch:
            await ada.put("public/long", 1, ttl_ms=HOUR_MS)
            await ada.put("public/short", 1, ttl_ms=1)  # the last one, as it may go at once
            expired = (await take(watch, 3))[2]
        assert (expired.note, expired.author) == ("expired", "~system")
        assert [(c.kind, c.key) for c in expired.changes] == [("delete", "public/short")]
        assert [entry.key for entry in (await ada.list("public/**")).entries] == ["public/long"]
        entry = await ada.entry("public/long")
        assert entry is not None
        assert entry.expires_at_ms == entry.time_ms + HOUR_MS

    # --- the other operations ---------------------------------------------------------------------

    async def test_delete_says_whether_there_was_something(self, ada: Board) -> None:
        first = await ada.put("public/a", 1)
        assert await ada.delete("public/absent") is False
        with pytest.raises(Conflict):
            await ada.delete("public/a", expected=first.revision + 1)
        assert await ada.delete("public/a", expected=first.revision) is True
        assert await ada.get("public/a", default="gone") == "gone"

    async def test_deleting_an_absent_key_is_announced_to_nobody(self, ada: Board) -> None:
        await ada.put("public/a", 1)
        head = await ada.head()
        async with ada.watch("**") as watch:
            assert await ada.delete("public/absent") is False
            assert await ada.delete_prefix("public/none") == ()
            assert (await ada.head()).revision == head.revision
            async with ada.step() as step:
                step.delete("public/absent")
            assert step.receipt is not None
            assert step.receipt.revision == head.revision
            await ada.put("public/a", 2)
            [revised] = await take(watch, 1)
        assert revised.revision == head.revision + 1
        assert [revised.revision for revised in await ada.log()] == [1, 2]

    async def test_who_is_there_has_done_nothing_by_deleting_nothing(
        self, ada: Board, bob: Board
    ) -> None:
        """Its presence tells of the last revision that it made."""
        async with ada.attach() as me:
            await bob.put("public/a", 1)
            before = me.committed
            await me.board.delete("public/absent")
            assert me.committed == before
            receipt = await me.board.put("public/b", 1)
            assert me.committed == receipt.revision

    async def test_a_whole_prefix_is_deleted_at_once(self, ada: Board) -> None:
        for key in ("public/d/a", "public/d/b/c", "public/dd", "public/e"):
            await ada.put(key, 1)
        assert await ada.delete_prefix("public/d") == ("public/d/a", "public/d/b/c")
        assert [e.key for e in (await ada.list("public/**")).entries] == ["public/dd", "public/e"]

    async def test_a_prefix_that_is_too_large_is_not_deleted_at_once(self, ada: Board) -> None:
        await ada.commit([Put(f"public/d/{i}", ONE) for i in range(OPERATIONS_MAX)])
        await ada.put("public/d/more", 1)
        with pytest.raises(LimitExceeded) as refused:
            await ada.commit([DeletePrefix("public/d")])
        assert refused.value.limit == "OPERATIONS_MAX"

    async def test_appending_numbers_the_items_and_never_again(self, ada: Board) -> None:
        first, second = await ada.append("public/log", "a"), await ada.append("public/log", "b")
        assert (first, second) == ("public/log/0000000000", "public/log/0000000001")
        await ada.delete(second)
        assert await ada.append("public/log", "c", ttl_ms=HOUR_MS) == "public/log/0000000002"
        assert [e.value for e in (await ada.list("public/log/*")).entries] == ["a", "c"]

    async def test_increment_counts_and_refuses_what_is_no_integer(self, ada: Board) -> None:
        assert [await ada.increment("public/n", by) for by in (1, 41, -2)] == [1, 42, 40]
        assert await ada.get("public/n") == 40
        await ada.put("public/text", "forty")
        with pytest.raises(TypeMismatch) as refused:
            await ada.increment("public/text")
        found = refused.value
        assert (found.key, found.wanted, found.found) == ("public/text", "integer", "string")

    async def test_merge_patches_and_returns_the_result(self, ada: Board) -> None:
        assert await ada.merge("public/m", {"a": 1, "b": {"c": 2}}) == {"a": 1, "b": {"c": 2}}
        assert await ada.merge("public/m", {"a": None, "b": {"d": 3}}) == {"b": {"c": 2, "d": 3}}
        assert await ada.get("public/m") == {"b": {"c": 2, "d": 3}}

    async def test_merges_of_several_agents_are_all_there(self, ada: Board, bob: Board) -> None:
        async with anyio.create_task_group() as tasks:
            for i in range(4):
                tasks.start_soon(ada.merge, "public/m", {f"ada{i}": i})
                tasks.start_soon(bob.merge, "public/m", {f"bob{i}": i})
        merged = {f"{who}{i}": i for who in ("ada", "bob") for i in range(4)}
        assert await ada.get("public/m") == merged

    async def test_a_large_value_is_merged_too(self, ada: Board, bob: Board) -> None:
        """It is left out of a conflict, so that it must be read again."""
        await ada.put("public/m", {"text": "x" * VALUE_INLINE_BYTES_MAX})
        async with anyio.create_task_group() as tasks:
            for who, board in (("ada", ada), ("bob", bob)):
                tasks.start_soon(board.merge, "public/m", {who: 1})
        found = await ada.get("public/m")
        assert (found["ada"], found["bob"], len(found)) == (1, 1, 3)

    # --- commits ----------------------------------------------------------------------------------

    async def test_a_commit_is_one_revision_with_a_result_for_each_operation(
        self, ada: Board
    ) -> None:
        await ada.put("public/old", 1)
        ops: list[Op] = [
            Put("public/a", ONE),
            Append("public/l", ONE),
            Increment("public/n", 3),
            Delete("public/old"),
            Grant("public/lock", "ada", HOUR_MS),
        ]
        receipt = await ada.commit(ops, note="five at once")
        assert receipt.revision == 2
        lease = ("ada", 2, receipt.time_ms + HOUR_MS)
        assert receipt.results == (None, "public/l/0000000000", 3, 1, lease)
        [revised] = await ada.log(after=1)
        assert (revised.note, len(revised.changes)) == ("five at once", 5)

    async def test_a_commit_whose_condition_fails_changes_nothing(self, ada: Board) -> None:
        await ada.put("public/a", 1)
        ops: list[Op] = [Put("public/b", ONE), Increment("public/n", 1)]
        for condition in (
            KeyAt("public/a", 7),
            KeyAt("public/a", ABSENT),
            KeyAt("public/absent", PRESENT),
            PrefixUnchanged("public", 0),
        ):
            with pytest.raises(Conflict):
                await ada.commit(ops, conditions=[KeyAt("public/a", 1), condition])
        assert (await ada.head()).revision == 1
        holds: list[Condition] = [KeyAt("public/a", 1), PrefixUnchanged("public", 1)]
        assert (await ada.commit(ops, conditions=holds)).revision == 2

    async def test_a_commit_whose_last_operation_fails_changes_nothing(self, ada: Board) -> None:
        await ada.put("public/text", "x")
        with pytest.raises(TypeMismatch):
            await ada.commit([Put("public/a", ONE), Increment("public/text", 1)])
        assert await ada.entry("public/a") is None

    async def test_a_commit_relies_on_a_lease_only_while_it_is_held(
        self, ada: Board, bob: Board
    ) -> None:
        fence = (await ada.commit([Grant("public/lock", "ada", HOUR_MS)])).revision
        held = HeldFence("public/lock", "ada", fence)
        await ada.commit([Put("public/a", ONE)], fences=[held])
        with pytest.raises(LeaseHeld) as taken:
            await bob.commit([Grant("public/lock", "bob", HOUR_MS)])
        assert (taken.value.holder, taken.value.fence) == ("ada", fence)
        await ada.commit([Renew("public/lock", "ada", fence, HOUR_MS)])
        await ada.commit([Release("public/lock", "ada", fence)])
        theirs = (await bob.commit([Grant("public/lock", "bob", HOUR_MS)])).revision
        with pytest.raises(Fenced) as refused:
            await ada.commit([Put("public/a", ONE)], fences=[held])
        found = refused.value
        assert (found.fence, found.current, found.holder) == (fence, theirs, "bob")

    async def test_limits_of_a_commit(self, ada: Board) -> None:
        with pytest.raises(InvalidRequest):
            await ada.commit([])
        with pytest.raises(LimitExceeded) as refused:
            await ada.commit([Put("public/a", ONE)] * (OPERATIONS_MAX + 1))
        assert (refused.value.limit, refused.value.maximum) == ("OPERATIONS_MAX", OPERATIONS_MAX)
        with pytest.raises(LimitExceeded) as refused:
            await ada.put("public/a", 1, note="x" * (NOTE_BYTES_MAX + 1))
        assert refused.value.limit == "NOTE_BYTES_MAX"
        with pytest.raises(InvalidRequest):
            await ada.commit([Put("public/a", b"\xc1")])
        assert (await ada.head()).revision == 0

    @pytest.mark.parametrize(
        "value",
        [
            msgpack.packb({b"a": 1}),
            msgpack.packb({1: 2}),
            msgpack.packb({"$bytes": ""}),
            msgpack.packb([math.nan]),
            msgpack.packb(msgpack.ExtType(1, b"")),
            b"\x82\xa1a\x01\xa1a\x02",
            b"\x91" * (VALUE_DEPTH_MAX + 1) + ONE,
            b"",
        ],
        ids=["bytes", "integer", "reserved", "nan", "extension", "twice", "deep", "empty"],
    )
    async def test_bytes_that_are_the_form_of_no_value_are_refused(
        self, ada: Board, value: bytes
    ) -> None:
        """In its own process as over a connection: others could not read the entry."""
        for op in (Put("public/a", value), Append("public/l", value)):
            with pytest.raises((InvalidRequest, LimitExceeded)):
                await ada.commit([Put("public/first", ONE), op])
        assert (await ada.head()).revision == 0

    async def test_a_value_in_a_longer_form_is_kept_in_its_only_one(
        self, team: Team, ada: Board
    ) -> None:
        await ada.commit([Put("public/a", b"\xd3" + bytes(7) + b"\x01")])
        link = (await team.client(access.agent("ada"))).link
        [entry] = (await link.read(team.name, ["public/a"])).entries
        assert entry.value == ONE

    # --- exactly once -----------------------------------------------------------------------------

    async def test_a_commit_sent_again_is_applied_once_and_answered_as_at_first(
        self, team: Team, ada: Board
    ) -> None:
        link = (await team.client(access.agent("ada"))).link
        epoch = (await ada.head()).epoch.id
        name = CommitId("ada", 5, "an-incarnation", 1)
        commit = Commit(name, epoch, (Increment("public/n", 1), Append("public/l", ONE)))
        first = await link.commit(team.name, commit)
        again = await link.commit(team.name, commit)
        assert (first.duplicate, again.duplicate) == (False, True)
        assert (again.revision, again.results) == (first.revision, first.results)
        later = Commit(CommitId("ada", 5, "an-incarnation", 2), epoch, commit.ops)
        assert (await link.commit(team.name, later)).results == (2, "public/l/0000000001")
        with pytest.raises(StepSuperseded) as refused:
            await link.commit(team.name, commit)
        assert (refused.value.step, refused.value.last_step) == (1, 2)

    async def test_a_commit_of_another_epoch_is_refused_with_all_that_is_to_know(
        self, team: Team, ada: Board
    ) -> None:
        link = (await team.client(access.agent("ada"))).link
        await ada.put("public/a", 1)
        head = await ada.head()
        name = CommitId("ada", 5, "an-incarnation", 1)
        with pytest.raises(StaleEpoch) as refused:
            await link.commit(team.name, Commit(name, "abandoned", (Put("public/a", ONE),)))
        told = refused.value
        assert (told.yours, told.current, told.number) == ("abandoned", head.epoch.id, 1)
        assert (told.cause, told.head) == ("created", 1)

    async def test_refresh_keeps_a_board_usable(self, ada: Board) -> None:
        await ada.put("public/a", 1)
        await ada.refresh()
        assert (await ada.put("public/a", 2)).revision == 2

    # --- many at once, and cancelled --------------------------------------------------------------

    async def test_more_commits_at_once_than_lanes(self, ada: Board) -> None:
        sums = await asyncio.gather(*[ada.increment("public/n") for _ in range(3 * LANES_MAX)])
        assert sorted(sums) == list(range(1, 3 * LANES_MAX + 1))
        assert (await ada.head()).revision == 3 * LANES_MAX

    async def test_a_refusal_among_many_hurts_nobody_else(self, ada: Board) -> None:
        puts = [ada.put("public/a", i, expected=ABSENT) for i in range(LANES_MAX + 1)]
        found = await asyncio.gather(*puts, return_exceptions=True)
        refusals = [outcome for outcome in found if isinstance(outcome, BaseException)]
        assert [type(refusal) for refusal in refusals] == [Conflict] * LANES_MAX
        assert len({id(refusal) for refusal in refusals}) == LANES_MAX
        assert (await ada.head()).revision == 1

    async def test_cancelled_commits_leave_the_board_usable(self, ada: Board) -> None:
        """Each of them happened or did not; none happened twice, and no lane is lost."""
        await ada.increment("public/n")
        rounds = 40
        for turn in range(rounds):
            task = asyncio.create_task(ada.increment("public/n"))
            for _ in range(turn % 8):
                await anyio.lowlevel.checkpoint()
            task.cancel()
            await asyncio.wait([task])
        with anyio.fail_after(PATIENCE_S):
            sums = await asyncio.gather(*[ada.increment("public/n") for _ in range(LANES_MAX)])
        assert len(set(sums)) == LANES_MAX
        assert LANES_MAX + 1 <= max(sums) <= LANES_MAX + 1 + rounds
        listing = await ada.list("public/n")  # a cancelled commit may still be on its way
        assert [entry.value for entry in listing.entries] == [listing.revision]

    async def test_two_processes_of_one_agent_do_not_disturb_each_other(self, team: Team) -> None:
        first, second = [await team.board("ada"), await team.board("ada")]
        sums = await asyncio.gather(
            *[board.increment("public/n") for board in (first, second) for _ in range(LANES_MAX)]
        )
        assert sorted(sums) == list(range(1, 2 * LANES_MAX + 1))
