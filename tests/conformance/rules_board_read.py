"""Board, reading: entries, listings, the log, reasons."""

import asyncio
from typing import Any

import pytest

from blackboard.client import board as board_module
from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.access import Principal, Right
from blackboard.core.commit import Delete, Directory, Grant, Put
from blackboard.errors import (
    AccessDenied,
    Compacted,
    FutureRevision,
    InvalidRequest,
    LimitExceeded,
    NoSuchBoard,
)
from blackboard.limits import (
    DEFAULT,
    LIST_ENTRIES_MAX,
    LOG_ENTRIES_MAX,
    OPERATIONS_MAX,
    READ_KEYS_MAX,
)
from blackboard.wire.codec import encode_value
from tests.conformance.team import Team

ONE = encode_value(1)


class BoardReadRules:
    """What a board shows."""

    async def test_a_board_begins_when_it_is_first_used(self, team: Team, ada: Board) -> None:
        assert await ada.get("public/a") is None
        assert (await ada.list("**")).entries == ()
        head = await ada.head()
        assert (head.revision, head.oldest, head.log_entries) == (0, 1, 0)
        assert (head.epoch.number, head.epoch.cause) == (1, "created")
        assert await ada.log() == ()
        assert team.name in await (await team.client(access.agent("ada"))).boards()

    async def test_reading_begins_no_board(self, team: Team, ada: Board) -> None:
        """A name that was misspelt shows nothing, and leaves nothing."""
        operator = await team.operator()
        for board in (ada, operator):
            assert await board.get("public/a") is None
            assert await board.entries(["public/a", "public/b"]) == {}
            assert (await board.list("**")).entries == ()
            assert await board.log() == ()
            assert await board.leases("**") == ()
            assert not await board.why("public/a")
            assert await board.checkpoints() == ()
        assert team.name not in await team.service.host.store.boards()
        with pytest.raises(NoSuchBoard) as refused:
            await operator.restore(1)
        assert refused.value.board == team.name
        assert team.name not in await team.service.host.store.boards()
        await ada.put("public/a", 1)
        assert await operator.get("public/a") == 1
        assert team.name in await team.service.host.store.boards()

    async def test_who_may_only_read_begins_no_board(self, team: Team) -> None:
        """Whatever is asked, watches and documents included."""
        reader = Principal("reader", (access.AccessGrant("**", frozenset({Right.READ})),))
        board = (await team.client(reader)).board(team.name)
        with pytest.raises(NoSuchBoard):
            await board.head()
        with pytest.raises(NoSuchBoard):
            async with board.watch("public/**"):
                pass
        with pytest.raises((NoSuchBoard, AccessDenied)):  # the close code says "forbidden"
            await board.document("public/memo")
        assert team.name not in await team.service.host.store.boards()

    async def test_an_entry_knows_its_revisions_and_its_author(
        self, ada: Board, bob: Board
    ) -> None:
        await ada.put("public/a", 1)
        second = await bob.put("public/a", 2)
        entry = await ada.entry("public/a")
        assert entry is not None
        assert (entry.create_revision, entry.mod_revision) == (1, 2)
        assert (entry.author, entry.time_ms, entry.expires_at_ms) == ("bob", second.time_ms, None)
        await bob.delete("public/a")
        await ada.put("public/a", 3)
        entry = await ada.entry("public/a")
        assert entry is not None
        assert (entry.create_revision, entry.mod_revision) == (4, 4)

    async def test_an_entry_says_when_it_was_created(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """Live, in the past, on a branch, in a watch, and again after a restore; a key that comes
        back is a new one."""
        operator = await team.operator()
        first = second = await ada.put("public/a", 0)
        while second.time_ms == first.time_ms:
            second = await bob.put("public/a", second.revision)
        async with ada.watch("public/**", snapshot=True) as watch:
            third = await ada.put("public/a", "last")
            await anext(watch)
            states = [watch.state["public/a"]]
        states += (await bob.list("public/**")).entries
        states += (await bob.list("public/**", at=second.revision, keys_only=True)).entries
        states += (await ada.entries(["public/a"])).values()
        await ada.delete("public/a")
        await operator.restore(first.revision)
        back = await bob.entry("public/a")
        other = await operator.branch("beside", third.revision)
        states += (await other.list("public/**")).entries
        await other.put("public/a", "there")
        states += (await other.list("public/**")).entries
        assert [entry.created_ms for entry in states] == len(states) * [first.time_ms]
        assert len({entry.mod_revision for entry in states}) == 3
        assert back is not None
        assert back.created_ms == back.time_ms >= third.time_ms

    async def test_entries_leaves_absent_keys_out(self, ada: Board) -> None:
        await ada.put("public/a", 1)
        await ada.put("private/ada/b", 2)
        found = await ada.entries(["private/ada/b", "public/absent", "public/a"])
        assert {key: entry.value for key, entry in found.items()} == {
            "public/a": 1,
            "private/ada/b": 2,
        }
        assert await ada.entries([]) == {}
        with pytest.raises(LimitExceeded) as refused:
            await ada.entries(["public/a"] * (READ_KEYS_MAX + 1))
        assert refused.value.limit == "READ_KEYS_MAX"

    async def test_what_was_answered_is_read_by_everybody(self, ada: Board, bob: Board) -> None:
        for number in range(20):
            await (ada if number % 2 else bob).put("public/a", number)
            assert await (bob if number % 2 else ada).get("public/a") == number

    @pytest.mark.parametrize(
        ("pattern", "keys"),
        [
            ("public/**", ["public/a", "public/plan/a", "public/plan/a/b", "public/plan2"]),
            ("public/plan/**", ["public/plan/a", "public/plan/a/b"]),
            ("public/*", ["public/a", "public/plan2"]),
            ("public/*/a", ["public/plan/a"]),
            ("*/*/a", ["private/ada/a", "public/plan/a"]),
            ("**", ["private/ada/a", "public/a", "public/plan/a"]),
            ("public/a", ["public/a"]),
            ("public/absent", []),
        ],
    )
    async def test_a_listing_shows_what_matches_in_the_order_of_keys(
        self, ada: Board, pattern: str, keys: list[str]
    ) -> None:
        names = ["public/plan2", "public/plan/a/b", "public/plan/a", "public/a", "private/ada/a"]
        await ada.commit([Put(name, ONE) for name in names])
        listing = await ada.list(pattern)
        assert [entry.key for entry in listing.entries][: len(keys)] == keys
        assert (listing.revision, listing.next_key) == (1, None)

    @pytest.mark.parametrize("pattern", ["", "public/**/a", "public//a", "/", "public/"])
    async def test_what_is_no_pattern_is_refused(self, ada: Board, pattern: str) -> None:
        with pytest.raises(InvalidRequest):
            await ada.list(pattern)

    async def test_pages_of_a_listing_join_without_gap_or_overlap(self, ada: Board) -> None:
        names = [f"public/{kind}/{i}" for kind in "ab" for i in range(7)]
        await ada.commit([Put(name, ONE) for name in names])
        for limit in (1, 3, 7, 8):
            found: list[str] = []
            after: str | None = None
            while True:
                page = await ada.list("public/*/*", after=after, limit=limit)
                assert len(page.entries) <= limit
                found += [entry.key for entry in page.entries]
                after = page.next_key
                if after is None:
                    break
            assert found == names
        for limit in (0, LIST_ENTRIES_MAX + 1):
            with pytest.raises(InvalidRequest):
                await ada.list("public/**", limit=limit)

    async def test_a_listing_goes_backwards_and_leaves_values_out(
        self, ada: Board, bob: Board
    ) -> None:
        """Now and at a moment, page by page; of what bob may not read he sees nothing."""
        names = [f"{space}/{i}" for space in ("private/ada", "public/a") for i in range(7)]
        head = (await ada.commit([Put(name, ONE) for name in names])).revision
        for at in (None, head):
            for limit in (1, 3, 7, 15):
                found: list[str] = []
                after: str | None = None
                while True:
                    page = await ada.list("**", after=after, limit=limit, at=at, reverse=True)
                    found += [entry.key for entry in page.entries]
                    assert {entry.value for entry in page.entries} == {1}
                    after = page.next_key
                    if after is None:
                        break
                assert found == names[::-1]
            [last] = (await bob.list("**", limit=1, at=at, reverse=True)).entries
            assert last.key == "public/a/6"
            scan = bob.scan("public/**", at=at, reverse=True, keys_only=True)
            shown = [(entry.key, entry.value, entry.mod_revision) async for entry in scan]
            assert shown == [(name, None, head) for name in names[:6:-1]]
            for after, one in (("public/a/5", ["public/a/4"]), ("public/a/4", [])):
                page = await ada.list("public/a/4", after=after, at=at, reverse=True)
                assert [e.key for e in page.entries] == one
            [only] = (await ada.list("public/a/4", at=at, keys_only=True)).entries
            assert (only.key, only.value, only.author) == ("public/a/4", None, "ada")

    async def test_a_listing_by_directory(self, ada: Board) -> None:
        """Present and past: what lies directly below, and how many keys lie deeper, page by
        page."""
        names = ["a", "d", "d-x", "d/1", "d/2/x", "d/2/y", "e/1", "f"]
        await ada.commit([Put(f"public/{name}", ONE) for name in names])
        head = (await ada.head()).revision
        await ada.put("private/ada/draft", 1)
        last = (await ada.head()).revision
        directories = (Directory("public/d", 3), Directory("public/e", 1))
        for at in (None, head):
            whole = await ada.list("public/**", at=at, delimiter="/")
            assert [(e.key, e.value) for e in whole.entries] == [
                (f"public/{name}", 1) for name in ("a", "d", "d-x", "f")
            ]
            assert (whole.directories, whole.next_key) == (directories, None)
            assert [each.count for each in whole.directories] == ["3", "1"]
            found: list[str] = []
            after = None
            for _ in range(6):
                page = await ada.list(
                    "public/**", at=at, delimiter="/", limit=1, reverse=True, after=after
                )
                found += [*(e.key for e in page.entries), *(d.prefix for d in page.directories)]
                after = page.next_key
            assert (found, after) == (
                [f"public/{n}" for n in ("f", "e", "d", "d-x", "d", "a")],
                None,
            )
        top = await ada.list("**", at=last, delimiter="/", keys_only=True)
        assert top.directories == (Directory("private", 1), Directory("public", 8))
        assert (await ada.list("public/none/**", delimiter="/")).directories == ()

    @pytest.mark.parametrize(
        ("pattern", "delimiter", "field"),
        [
            ("public/*", "/", "pattern"),
            ("public/a", "/", "pattern"),
            ("*/ada/**", "/", "pattern"),
            ("public/**", "-", "delimiter"),
            ("public/**", "//", "delimiter"),
        ],
    )
    async def test_what_is_not_listed_by_directory(
        self, ada: Board, pattern: str, delimiter: Any, field: str
    ) -> None:
        """Another pattern than of a subtree, another delimiter than the one that keys have."""
        await ada.put("public/a", 1)
        for at in (None, 1):
            with pytest.raises(InvalidRequest) as refused:
                await ada.list(pattern, at=at, delimiter=delimiter)
            assert refused.value.field.rpartition(".")[2] == field

    async def test_scan_goes_through_all_pages(self, ada: Board) -> None:
        names = sorted(f"public/{i:04}/x" for i in range(LIST_ENTRIES_MAX + 50))
        await ada.commit([Put(name, ONE) for name in names[:OPERATIONS_MAX]])
        await ada.commit([Put(name, ONE) for name in names[OPERATIONS_MAX:]])
        assert [entry.key async for entry in ada.scan("public/**")] == names
        assert [entry.key async for entry in ada.scan("public/*/y")] == []

    # --- the log ----------------------------------------------------------------------------------

    async def test_the_log_tells_every_revision_whole(self, ada: Board, bob: Board) -> None:
        first = await ada.commit([Put("public/a", ONE), Put("public/b", ONE)], note="begin")
        second = await bob.commit([Delete("public/b")], based_on=[("public/a", first.revision)])
        one, two = await ada.log()
        assert [(c.kind, c.key, c.value) for c in one.changes] == [
            ("put", "public/a", 1),
            ("put", "public/b", 1),
        ]
        assert (one.revision, one.author, one.note) == (1, "ada", "begin")
        assert (two.revision, two.author, two.based_on) == (2, "bob", (("public/a", 1),))
        assert [(c.kind, c.key, c.value) for c in two.changes] == [("delete", "public/b", None)]
        assert (one.time_ms, two.time_ms) == (first.time_ms, second.time_ms)

    async def test_the_log_is_read_on_from_any_revision(self, ada: Board) -> None:
        for _ in range(9):
            await ada.increment("public/n")
        assert [r.revision for r in await ada.log(after=6)] == [7, 8, 9]
        assert [r.revision for r in await ada.log(after=2, limit=3)] == [3, 4, 5]
        assert await ada.log(after=9) == ()
        with pytest.raises(FutureRevision) as refused:
            await ada.log(after=10)
        assert refused.value.head == 9

    async def test_the_log_is_filtered_by_pattern_and_author(self, ada: Board, bob: Board) -> None:
        """With a pattern, of each revision only the changes that match; leases match as keys do."""
        await ada.commit([Put("public/plan/a", ONE), Put("public/x", ONE)])
        await bob.put("public/plan/b", 1)
        await ada.delete("public/plan/a")
        await ada.commit([Grant("public/plan/a", "ada", 60_000)])
        plan = await ada.log(pattern="public/plan/*")
        assert [r.revision for r in plan] == [1, 2, 3, 4]
        assert [change.key for r in plan for change in r.changes].count("public/x") == 0
        assert [r.revision for r in await ada.log(author="ada")] == [1, 3, 4]
        assert [r.revision for r in await ada.log(pattern="public/x", author="ada")] == [1]
        assert [r.revision for r in await ada.log(author="ada", after=1, limit=1)] == [3]
        assert await ada.log(author="nobody") == ()
        with pytest.raises(InvalidRequest):
            await ada.log(pattern="public//x")

    async def test_a_filtered_log_is_looked_through_page_by_page(
        self, team: Team, ada: Board, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A request looks through so many revisions, however few of them match."""
        for number in range(9):
            await ada.put("public/odd" if number % 4 == 3 else "public/n", number)
        link = ada._link
        page = await link.log(team.name, 0, limit=3, pattern="public/odd")
        assert (page.entries, page.through) == ((), 3)
        page = await link.log(team.name, 3, limit=3, author="bob")
        assert (page.entries, page.through) == ((), 6)
        monkeypatch.setattr(board_module, "LOG_ENTRIES_MAX", 3)
        assert [r.revision for r in await ada.log(pattern="public/odd", limit=9)] == [4, 8]

    async def test_more_of_the_log_than_one_request_gives(self, ada: Board) -> None:
        for _ in range(12):
            await asyncio.gather(*(ada.increment("public/n") for _ in range(100)))
        for limit in (LOG_ENTRIES_MAX, LOG_ENTRIES_MAX + 1, 1_200, 5_000):
            found = await ada.log(limit=limit)
            assert [r.revision for r in found] == [*range(1, min(limit, 1_200) + 1)]

    async def test_a_trimmed_log_is_read_on_from_the_archive(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        for number in range(9):
            await ada.put("private/ada/n" if number % 3 else "public/n", number, note="counted")
        before = {board.agent: await board.log() for board in (ada, bob)}
        await ada.history("public/n")  # the archive has it all now
        await team.service.host.store.compact(team.name, 5)
        assert (await ada.head()).oldest == 5
        for board in (ada, bob):
            assert await board.log() == before[board.agent]
        assert [r.revision for r in await ada.log(after=2, limit=4)] == [3, 4, 5, 6]
        assert [r.revision for r in await bob.log(after=1)] == [4, 7]

    async def test_a_log_that_nobody_has_any_more_says_where_it_begins(
        self, team: Team, ada: Board
    ) -> None:
        for number in range(9):
            await ada.put("public/n", number)
        await ada.history("public/n")  # the archive has it all now
        host = team.service.host
        assert host.archive is not None
        await host.archive.prune(team.name, [], 6)
        await host.store.compact(team.name, 8)
        with pytest.raises(Compacted) as refused:
            await ada.log(after=3)
        assert refused.value.revision == 3
        assert 3 < refused.value.oldest <= 8
        revisions = [r.revision for r in await ada.log(after=refused.value.oldest - 1)]
        assert revisions == list(range(refused.value.oldest, 10))

    # --- why --------------------------------------------------------------------------------------

    async def test_why_walks_back_through_what_commits_were_based_on(
        self, ada: Board, bob: Board
    ) -> None:
        await ada.put("public/sales", 1, note="counted")
        async with bob.step(note="valued") as step:
            step.put("public/value", await step.get("public/sales") + 1)
        async with ada.step(note="planned") as step:
            await step.get("public/value")
            await step.get("public/sales")
            step.put("public/plan", "expand")
        causes = await bob.why("public/plan")
        assert [(c.key, c.revision, c.depth, c.author, c.note) for c in causes] == [
            ("public/plan", 3, 0, "ada", "planned"),
            ("public/value", 2, 1, "bob", "valued"),
            ("public/sales", 1, 1, "ada", "counted"),
        ]
        assert causes[0].based_on == (("public/value", 2), ("public/sales", 1))
        assert await ada.why("public/absent") == []

    async def test_why_says_what_it_cannot_show(self, team: Team, ada: Board) -> None:
        """Grounds are what a writer claims: of a trimmed past, of the future, of another key."""
        await ada.put("public/old", 1)
        await ada.put("public/other", 1)
        claims = [("public/old", 1), ("public/old", 2), ("public/old", 99), ("public/old", 0)]
        await ada.commit([Put("public/plan", ONE)], based_on=claims)
        await ada.history("public/plan")  # the archive has it all now
        host = team.service.host
        assert host.archive is not None
        await host.archive.prune(team.name, [], 2)
        await host.store.compact(team.name, 2)
        causes = await ada.why("public/plan")
        assert [(c.revision, c.missing) for c in causes] == [
            (3, ""),
            (1, "compacted"),
            (2, "not written there"),
            (99, "not written there"),
            (0, "not written there"),
        ]

    async def test_why_ends(self, ada: Board) -> None:
        """A counter that is based on itself, hundreds of times."""
        for number in range(40):
            async with ada.step() as step:
                await step.get("public/n")
                step.put("public/n", number)
        causes = await ada.why("public/n")
        assert [c.depth for c in causes] == list(range(33))
        assert len(causes) <= DEFAULT.checkpoints.why_commits_max
