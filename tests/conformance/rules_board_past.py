"""Looking back: reading at a moment, comparing two of them, the history of a key."""

from datetime import UTC, datetime, timedelta

import pytest

from blackboard.client.board import Board
from blackboard.client.diff import KeyChange
from blackboard.core.checkpoints import RetentionPolicy
from blackboard.errors import AccessDenied, FutureRevision, InvalidRequest, NoSuchCheckpoint
from blackboard.limits import READ_KEYS_MAX, REVISION_MAX
from tests.conformance.rules_board_checkpoint import board_of, keeper_of_checkpoints
from tests.conformance.team import Team

LARGE = 10**30
"""More than any engine or encoding has."""
SECRET = "private/ada/secret"
HIDDEN = "swordfish"
POEM = "roses are red\nviolets are blue\nsugar is sweet"


def told(changes: object) -> list[tuple[str, str]]:
    """What kind of change each key had."""
    assert hasattr(changes, "__iter__")
    return [(change.kind, change.key) for change in changes]


class PastRules:
    """What was is what was read then."""

    async def test_every_revision_stays_readable(self, team: Team, ada: Board) -> None:
        revisions = [(await ada.put("public/n", number)).revision for number in range(5)]
        await ada.delete("public/n")
        for number, revision in enumerate(revisions):
            entry = await ada.entry("public/n", at=revision)
            assert entry is not None
            assert (entry.value, entry.mod_revision, entry.author) == (number, revision, "ada")
        assert await ada.get("public/n", at="now") is None
        assert await ada.get("public/n", at=0) is None

    async def test_a_listing_at_a_moment_is_of_that_moment(self, team: Team, ada: Board) -> None:
        async with ada.step() as step:
            for number in range(5):
                step.put(f"public/list/{number}", number)
        await (await team.operator()).checkpoint("five")
        await ada.delete_prefix("public/list")
        await ada.put("public/list/9", 9)
        page = await ada.list("public/list/*", at="five", limit=3)
        assert [entry.value for entry in page.entries] == [0, 1, 2]
        rest = await ada.list("public/list/*", at="five", after=page.next_key)
        assert [entry.value for entry in rest.entries] == [3, 4]
        assert [e.value async for e in ada.scan("public/**", at="five")] == [0, 1, 2, 3, 4]
        assert [e.value for e in (await ada.list("public/list/2", at="five")).entries] == [2]

    async def test_a_time_is_the_newest_revision_by_then(self, team: Team, ada: Board) -> None:
        first = await ada.put("public/n", 1)
        second = await ada.put("public/n", 2)
        at = datetime.fromtimestamp(first.time_ms / 1000, UTC)
        expected = 2 if second.time_ms == first.time_ms else 1
        assert await ada.get("public/n", at=at) == expected
        assert await ada.get("public/n", at=at - timedelta(days=1)) is None
        assert await ada.get("public/n", at=at + timedelta(days=1)) == 2

    async def test_moments_that_are_none_are_refused(self, ada: Board) -> None:
        await ada.put("public/n", 1)
        with pytest.raises(FutureRevision):
            await ada.get("public/n", at=2)
        bad_times = (datetime(2026, 1, 1), datetime(1, 1, 1, tzinfo=UTC))  # noqa: DTZ001
        bad_numbers = (-1, -LARGE, REVISION_MAX + 1, LARGE, 10**5000)
        for bad in (*bad_numbers, *bad_times, True, 1.5, "a/b", "", "12", b"x"):
            with pytest.raises(InvalidRequest) as refused:
                await ada.get("public/n", at=bad)  # type: ignore[arg-type]
            assert refused.value.field in ("at", "checkpoint")

    async def test_numbers_that_no_engine_has_are_refused(self, team: Team, ada: Board) -> None:
        """Whether they reach a service or not."""
        await ada.put("public/n", 1)
        board = await team.operator()
        for number in (LARGE, -LARGE):
            for asked, field in (
                (ada.history("public/n", before=number), "before"),
                (ada.history("public/n", limit=number), "limit"),
                (ada.list("public/**", limit=number), "limit"),
                (board.prune(RetentionPolicy(history_ms=number)), "history_ms"),
                (board.prune(RetentionPolicy(history_bytes=number)), "history_bytes"),
            ):
                with pytest.raises(InvalidRequest) as refused:
                    await asked
                assert refused.value.field == field

    # --- diff -------------------------------------------------------------------------------------

    async def test_a_diff_tells_what_was_added_changed_and_removed(self, ada: Board) -> None:
        await ada.put("public/a", 1)
        await ada.put("public/b", 1)
        before = (await ada.put("public/same", 1)).revision
        await ada.put("public/b", 2)
        await ada.delete("public/a")
        await ada.put("public/c", 1)
        await ada.put("public/same", 2)
        await ada.put("public/same", 1)
        forward = await ada.diff(before)
        assert told(forward) == [
            ("removed", "public/a"),
            ("changed", "public/b"),
            ("added", "public/c"),
        ]
        assert (forward.a, forward.b, forward.more) == (before, before + 5, False)
        assert told(await ada.diff("now", before)) == [
            ("added", "public/a"),
            ("changed", "public/b"),
            ("removed", "public/c"),
        ]
        assert not await ada.diff("now", "now")

    async def test_a_diff_shows_lines_of_texts_and_parts_of_values(self, ada: Board) -> None:
        before = (await ada.put("public/poem", {"text": POEM, "n": [1, 2]})).revision
        await ada.put("public/poem", {"text": POEM.replace("blue", "green"), "n": [1, 3, 4]})
        [change] = await ada.diff(before)
        places = [(part.path, part.before, part.after) for part in change.parts[:2]]
        assert places == [("n[1]", 2, 3), ("n[2]", None, 4)]
        assert change.parts[2].text[1:] == (
            " roses are red",
            "-violets are blue",
            "+violets are green",
            " sugar is sweet",
        )

    async def test_a_diff_goes_by_namespace_and_pattern(self, team: Team, ada: Board) -> None:
        await ada.put("public/a", 1)
        await ada.put("private/ada/a", 1)
        board = await team.operator()
        found = await board.diff(0)
        assert {name: len(each) for name, each in found.namespaces.items()} == {
            "public": 1,
            "private/ada": 1,
        }
        assert told(await board.diff(0, pattern="private/**")) == [("added", "private/ada/a")]

    async def test_long_diffs_come_page_by_page(self, ada: Board) -> None:
        async with ada.step() as step:
            for number in range(600):
                step.put(f"public/{number:04}", number)
        found: list[KeyChange] = [change async for change in ada.differences(0)]
        assert [change.key for change in found] == [f"public/{n:04}" for n in range(600)]
        part = await ada.diff(0, limit=10)
        assert (len(part), part.more) == (10, True)

    # --- history ----------------------------------------------------------------------------------

    async def test_a_history_of_large_values_comes_in_several_answers(self, ada: Board) -> None:
        """All of it, though one answer has no room for it."""
        for number in range(6):
            await ada.put("public/report", f"{number}" + "x" * 900_000)
        found = await ada.history("public/report")
        assert [version.value[0] for version in found] == ["5", "4", "3", "2", "1", "0"]
        some = await ada.history("public/report", before=found[0].revision, limit=4)
        assert [version.value[0] for version in some] == ["4", "3", "2", "1"]

    async def test_a_history_has_every_version_the_newest_first(self, ada: Board) -> None:
        await ada.put("public/a", 1)
        await ada.put("public/b", 1)
        await ada.delete("public/a")
        await ada.put("public/a", 2)
        versions = await ada.history("public/a")
        assert [(v.revision, v.value) for v in versions] == [(4, 2), (3, None), (1, 1)]
        assert [v.entry is None for v in versions] == [False, True, False]
        assert [v.revision for v in await ada.history("public/a", limit=1)] == [4]
        assert [v.revision for v in await ada.history("public/a", before=4)] == [3, 1]
        assert await ada.history("public/nothing") == ()

    async def test_what_an_author_did_since_a_moment(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """Of a key and of the whole board; a moment may be a revision, a checkpoint or a time."""
        kid = await team.account("ada", "ada.kid")
        operator = await team.operator()
        await ada.put("public/a", 1)  # 1
        await bob.put("public/a", 2)
        await kid.put("public/a", 3)
        await operator.checkpoint("middle")  # 4
        await bob.delete("public/a")
        await kid.put("public/b", 1)
        last = await ada.put("public/a", 4)  # 7
        early, late = datetime.fromtimestamp(0, UTC), datetime.now(UTC) + timedelta(hours=1)
        for since, expected in (
            (None, [7, 5, 3, 2, 1]),
            (0, [7, 5, 3, 2, 1]),
            (3, [7, 5]),
            ("middle", [7, 5]),
            (early, [7, 5, 3, 2, 1]),
            (late, []),
            ("now", []),
        ):
            versions = await ada.history("public/a", since=since)
            assert [v.revision for v in versions] == expected
            events = await ada.log(since=since, pattern="public/a")
            assert [e.revision for e in events] == expected[::-1]
        for author, since, expected in (
            ("ada", None, [7, 1]),
            ("bob", None, [5, 2]),
            ("bob", "middle", [5]),
            ("ada.kid", 0, [3]),
            ("ada.kid", "middle", []),
            ("stranger", None, []),
        ):
            versions = await ada.history("public/a", author=author, since=since)
            assert [v.revision for v in versions] == expected
            events = await ada.log(author=author, since=since, pattern="public/a")
            assert [e.revision for e in events] == expected[::-1]
        assert [e.revision for e in await ada.log(author="ada.kid", since="middle")] == [6]
        assert [e.revision for e in await ada.log(after=5, since=1)] == [6, 7]
        two = await ada.history("public/a", author="ada", limit=1)
        assert [v.revision for v in two] == [7]
        rest = await ada.history("public/a", author="ada", limit=1, before=7)
        assert [v.revision for v in rest] == [1]
        assert await ada.history("public/a", since=last.revision + 99) == ()
        with pytest.raises(FutureRevision):
            await ada.log(since=last.revision + 99)
        with pytest.raises(InvalidRequest):
            await ada.history("public/a", author="not a name")
        with pytest.raises(InvalidRequest):
            await ada.log(author="not a name")
        with pytest.raises(NoSuchCheckpoint):
            await ada.history("public/a", since="never-made")

    # --- private stays private --------------------------------------------------------------------

    async def test_the_past_of_others_is_as_private_as_their_present(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """For an agent, and for a principal that may checkpoint and restore the board."""
        await ada.put(SECRET, HIDDEN)
        await (await team.operator()).checkpoint("plan")
        await ada.put(SECRET, "other")
        keeper = await board_of(team, keeper_of_checkpoints())
        for who in (bob, keeper):
            for refused in (
                who.get(SECRET, at="plan"),
                who.entries(["public/a", SECRET], at=1),
                who.history(SECRET),
                who.history("private/ada/absent"),
            ):
                with pytest.raises(AccessDenied) as told_of:
                    await refused
                assert HIDDEN not in str(told_of.value)
            assert (await who.list("**", at=1)).entries == ()
            assert not await who.diff(0)
            assert not await who.diff("plan", pattern=SECRET)
            assert "private/ada" not in (await who.show("plan")).digests
            with pytest.raises(AccessDenied):
                await who.verify()

    async def test_who_restores_does_not_thereby_read(self, team: Team, ada: Board) -> None:
        await ada.put(SECRET, HIDDEN)
        keeper = await board_of(team, keeper_of_checkpoints())
        await keeper.checkpoint("plan")
        await ada.put(SECRET, "other")
        async with keeper.watch("private/**") as watch:
            restored = await keeper.restore("plan")
            [seen] = await watch.wait_for(restored.revision)
        assert seen.changes == ()
        assert seen.epoch is not None
        assert HIDDEN not in repr((restored, seen, await keeper.log()))
        assert await ada.get(SECRET) == HIDDEN
        other = await keeper.branch(f"{keeper.name}-b", "plan")
        with pytest.raises(AccessDenied):
            await other.get(SECRET)

    async def test_as_many_keys_as_ever_are_read_at_a_moment(self, ada: Board) -> None:
        await ada.put("public/a", 1)
        keys = ["public/a"] + [f"public/k{number}" for number in range(READ_KEYS_MAX - 1)]
        assert list(await ada.entries(keys, at=1)) == ["public/a"]
