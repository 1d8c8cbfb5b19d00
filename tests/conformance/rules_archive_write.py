"""What an archive takes in: once, whole, in order, from one archiver at a time."""

import asyncio
import json
from typing import Any

import pytest
from anyio import lowlevel

from blackboard.archive.base import Archive
from blackboard.core.checkpoints import Lost, Point
from blackboard.core.commit import Delete, Epoch, Head, Put, Reading
from blackboard.errors import Compacted, Corrupt, Fenced, FutureRevision, NoSuchCheckpoint
from blackboard.integrity.manifest import is_signed
from blackboard.limits import BLOB_BYTES
from blackboard.wire.codec import encode_value
from tests.conformance.rules_archive import (
    BOARD,
    ONE,
    check_digests,
    different,
    state_at,
    whole_log,
)
from tests.conformance.story import Story, listing

TTL_MS = 600_000


async def findings(archive: Archive, story: Story, board: str = BOARD) -> list[str]:
    """What verifying finds."""
    return [finding async for finding in archive.verify(Point(board, story.head))]


class WritingRules:
    """No gap, no duplicate, nothing half."""

    async def test_one_appends_at_a_time(self, archive: Archive) -> None:
        """A lease with a fence; later holders are fenced off from then on."""
        assert await archive.take(BOARD, "a", TTL_MS) == 1
        assert await archive.take(BOARD, "a", TTL_MS) == 1
        assert await archive.take(BOARD, "b", TTL_MS) is None
        await archive.give_up(BOARD, 1)
        assert await archive.take(BOARD, "b", TTL_MS) == 2
        head = Head(0, Epoch(1, "e"), 1)
        with pytest.raises(Fenced) as refused:
            await archive.join(BOARD, 1, head, listing())
        assert (refused.value.fence, refused.value.current) == (1, 2)
        assert await archive.mark(BOARD) is None
        await archive.join(BOARD, 2, head, listing())
        story = Story()
        story.tell(Put("public/a", ONE))
        with pytest.raises(Fenced):
            await archive.append(BOARD, 1, 0, story.log)
        with pytest.raises(Fenced):
            await archive.append("unknown", 1, 0, story.log)
        await archive.append(BOARD, 2, 0, story.log)

    async def test_a_lease_that_ran_out_is_taken_over(self, archive: Archive) -> None:
        """By the database's clock, with another fence."""
        assert await archive.take(BOARD, "a", 0) == 1
        assert await archive.take(BOARD, "b", TTL_MS) == 2
        assert await archive.take(BOARD, "a", TTL_MS) is None

    async def test_a_lease_of_a_clock_that_was_put_back_does_not_last(
        self, archive: Archive, place: Any
    ) -> None:
        """The holder was killed, and its lease would end in a day."""
        assert await archive.take(BOARD, "a", TTL_MS) == 1
        day_ms = 86_400_000
        await place.change("UPDATE board SET until_ms = until_ms + :day_ms", day_ms=day_ms)
        assert await archive.take(BOARD, "b", TTL_MS) == 2

    async def test_out_of_turn_is_refused(self, archive: Archive) -> None:
        """What is archived already, what leaves a gap, and what is no log."""
        story = Story()
        story.tell_some(10)
        await story.archive_into(archive, BOARD)
        before = await whole_log(archive, BOARD)
        story.tell_some(5)
        for after in (5, 9, 11, 14):
            with pytest.raises(Fenced):
                await archive.append(BOARD, 1, after, story.log[after:])
        with pytest.raises(Corrupt):
            await archive.append(BOARD, 1, 10, story.log[11:])
        assert await whole_log(archive, BOARD) == before
        assert await state_at(archive, Point(BOARD, 10)) == story.held[10]

    async def test_many_archivers_append_each_revision_once(
        self, archive: Archive, place: object
    ) -> None:
        """However often two of them try the same pages at the same time."""
        story = Story()
        story.tell_some(40)
        other: Archive = await place.open()  # type: ignore[attr-defined]
        fence = await archive.take(BOARD, "a", TTL_MS)
        assert fence == 1
        await archive.join(BOARD, fence, Head(0, story.epochs[0], 1), listing())
        refused = 0
        for start in range(0, 40, 4):
            page = story.log[start : start + 4]
            tries = [a.append(BOARD, fence, start, page) for a in (archive, other, archive)]
            outcomes = await asyncio.gather(*tries, return_exceptions=True)
            refused += sum(isinstance(outcome, Fenced) for outcome in outcomes)
        assert refused == 20
        assert await whole_log(archive, BOARD) == story.log
        assert await findings(archive, story) == []

    async def test_archivers_take_turns(self, archive: Archive, place: object, seed: int) -> None:
        """What one remembers of its last append is not true any more when it is its turn again."""
        story = Story(seed)
        others = [archive, await place.open(), await place.open()]  # type: ignore[attr-defined]
        for turn in range(12):
            story.tell_some(story.dice.randrange(1, 9))
            if turn % 4 == 3:
                story.restore(story.dice.randrange(1, story.head))
            one = story.dice.choice(others)
            await story.archive_into(one, BOARD, page=story.dice.choice((2, 100)))
            if turn == 6:
                await others[1].prune(BOARD, [], story.head // 2)
        for revision in range(story.head // 2 + 6, story.head + 1):
            assert await state_at(archive, Point(BOARD, revision)) == story.held[revision]
            await check_digests(archive, story, Point(BOARD, revision))
        assert await findings(archive, story) == []

    async def test_a_branch_of_the_middle_of_an_append(self, archive: Archive, seed: int) -> None:
        """Its digests are those of that revision, after pruning too; its parent's are as before."""
        story = Story(seed)
        story.tell_some(60)
        await story.archive_into(archive, BOARD, page=60)
        await archive.branch("child", Point(BOARD, 31))
        assert (await archive.prune(BOARD, [17], 40)).versions >= 0
        for board, revision in (("child", 31), (BOARD, 17), (BOARD, 31), (BOARD, 40), (BOARD, 50)):
            await check_digests(archive, story, Point(board, revision))
        assert await findings(archive, story) == []
        assert [f async for f in archive.verify(Point("child", 31))] == []

    async def test_a_board_is_removed_but_for_what_branches_share(
        self, archive: Archive, seed: int
    ) -> None:
        """With its earlier lives and what was set apart of it; others stay as they are."""
        story, apart, other = Story(seed), Story(seed + 1), Story(seed + 2)
        for each in (story, apart, other):
            each.tell_some(30)
        await story.archive_into(archive, BOARD)
        fence = await archive.take(BOARD, "tester", TTL_MS)
        assert fence is not None
        await archive.join(BOARD, fence, Head(0, apart.epochs[0], 1), listing(), apart=True)
        await archive.append(BOARD, fence, 0, apart.log)
        await other.archive_into(archive, "other")
        await archive.branch("child", Point(BOARD, 20))
        assert {BOARD, f"{BOARD}~1", "child", "other"} <= set(await archive.boards())
        assert await archive.remove(BOARD)
        assert await archive.boards() == ["child", "other"]
        assert await archive.mark(BOARD) is None
        with pytest.raises(FutureRevision):
            await archive.read(Point(BOARD, 20), ["public/a"])
        assert await state_at(archive, Point("child", 20)) == apart.held[20]
        assert [f async for f in archive.verify(Point("child", 20))] == []
        assert await state_at(archive, Point("other", 30)) == other.held[30]
        assert not await archive.remove("child")
        assert not await archive.remove(BOARD)
        assert await archive.boards() == ["other"]
        story = Story(seed)
        story.tell_some(5)
        await story.archive_into(archive, BOARD)
        assert await state_at(archive, Point(BOARD, 5)) == story.held[5]

    async def test_a_cancelled_append_is_whole_or_nothing(self, archive: Archive) -> None:
        """Cancelled at any moment; the next one goes on from where it is."""
        story = Story()
        await story.archive_into(archive, BOARD)
        for turn in range(12):
            story.tell_some(10)
            mark = await archive.mark(BOARD)
            assert mark is not None
            left = [entry for entry in story.log if entry.revision > mark.revision]
            task = asyncio.create_task(archive.append(BOARD, 1, mark.revision, left))
            for _ in range(turn * 4):
                await lowlevel.checkpoint()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            found = await archive.mark(BOARD)
            assert found is not None
            assert found.revision in (mark.revision, story.head)
        await story.archive_into(archive, BOARD)
        assert await whole_log(archive, BOARD) == story.log
        assert await findings(archive, story) == []

    # --- beginning --------------------------------------------------------------------------------

    async def test_joining_while_the_log_goes_on(self, archive: Archive, seed: int) -> None:
        """From pages that were listed at different revisions comes the exact state at the end of
        the listing, and everything after it."""
        story = Story(seed)
        story.tell_some(30)
        start = story.head
        pages: list[Reading] = []
        keys = sorted({key for held in story.held.values() for key in held})
        for part in range(0, len(keys) + 20, 3):
            names = keys[part : part + 3]
            held = story.held[story.head]
            entries = tuple(held[key] for key in names if key in held)
            pages.append(Reading(story.head, "", entries))
            if part < len(keys) - 3:
                story.tell_some(2)
                story.tell(Delete(story.dice.choice(keys)), Put(story.dice.choice(keys), ONE))
        scanned = story.head
        new = {key for key in story.held[scanned] if key not in keys}
        extra = tuple(story.held[scanned][key] for key in sorted(new))
        pages.append(Reading(scanned, "", extra))
        story.tell_some(20)
        fence = await archive.take(BOARD, "a", TTL_MS)
        assert fence is not None
        head = Head(start, story.epochs[start], start - 5)
        mark = await archive.join(BOARD, fence, head, listing(*pages), items=[("public/list", 99)])
        assert (mark.oldest, mark.revision) == (scanned, start)
        for after in range(start, story.head, 9):
            mark = await archive.append(BOARD, fence, after, story.log[after : after + 9])
        for revision in range(scanned, story.head + 1, 4):
            assert await state_at(archive, Point(BOARD, revision)) == story.held[revision]
            await check_digests(archive, story, Point(BOARD, revision))
        with pytest.raises(Compacted):
            await archive.read(Point(BOARD, scanned - 1), [])
        assert await whole_log(archive, BOARD, scanned) == story.log[scanned:]
        assert ("public/list", 99) in await archive.items(Point(BOARD, story.head))
        assert await findings(archive, story) == []

    async def test_another_history_under_the_same_name_keeps_the_old_one(
        self, archive: Archive, seed: int
    ) -> None:
        """The old one has a name of its own from then on: all of it, and who branched off it."""
        old = Story(seed)
        old.tell_some(20)
        old.checkpoint("old")
        await old.archive_into(archive, BOARD)
        await archive.branch("child", Point(BOARD, 15))
        for number in (1, 2):
            new = Story(seed + number)
            new.tell_some(10)
            await archive.join(BOARD, 1, Head(0, new.epochs[0], 1), listing())
            await new.archive_into(archive, BOARD)
            assert await whole_log(archive, BOARD) == new.log
            assert not await archive.checkpoints(BOARD)
            assert await findings(archive, new) == []
            apart = f"{BOARD}~{number}"
            assert await whole_log(archive, apart) == old.log
            for revision in (5, 9, old.head):
                assert await state_at(archive, Point(apart, revision)) == old.held[revision]
            assert await findings(archive, old, apart) == []
            old = new
        assert [c.name for c in await archive.checkpoints(f"{BOARD}~1")] == ["old"]
        assert await archive.boards() == ["child", BOARD, f"{BOARD}~1", f"{BOARD}~2"]
        mark = await archive.mark("child")
        assert mark is not None
        assert mark.origin == Point(BOARD, 15)
        assert await archive.lost(BOARD) is None

    async def test_a_branch_takes_no_name_from_what_is_archived(self, archive: Archive) -> None:
        """That gets a name of its own; what a branch that failed left does not."""
        story = Story()
        story.tell_some(12)
        await story.archive_into(archive, BOARD)
        await story.archive_into(archive, "other")
        await archive.branch("other", Point(BOARD, 9))
        assert not await archive.holds("other")
        assert await archive.holds("other~1")
        await archive.branch("other", Point(BOARD, 7))
        assert await archive.boards() == [BOARD, "other", "other~1"]
        assert await state_at(archive, Point("other~1", 12)) == story.held[12]
        assert await findings(archive, story, "other~1") == []

    async def test_what_comes_after_a_gap_is_the_same_board(self, archive: Archive) -> None:
        """The log was cut before it was archived: nothing goes, the gap is no moment, and verifying
        names it, until what lies before it was pruned."""
        old = Story()
        old.tell_some(10)
        await old.archive_into(archive, BOARD)
        old.tell_some(10)
        head = Head(20, old.epochs[20], 18)
        entries = tuple(sorted(old.held[20].values(), key=lambda entry: entry.key))
        await archive.join(BOARD, 1, head, listing(Reading(20, "", entries)))
        old.tell_some(10)
        await old.archive_into(archive, BOARD)
        for revision in (1, 10, 20, 25, 30):
            assert await state_at(archive, Point(BOARD, revision)) == old.held[revision]
        for revision in (11, 19):
            with pytest.raises(Compacted):
                await archive.read(Point(BOARD, revision), [])
        missing = "revisions 11 to 20 are missing: the log was cut before it was archived"
        assert await findings(archive, old) == [missing]
        assert [finding async for finding in archive.verify(Point(BOARD, 10))] == []
        await archive.branch("saved", Point(BOARD, 25))
        assert [finding async for finding in archive.verify(Point("saved", 25))] == [missing]
        assert await archive.boards() == [BOARD, "saved"]
        await archive.prune(BOARD, (), 5)
        assert await findings(archive, old) == [missing]
        await archive.prune(BOARD, (), 22)
        assert await findings(archive, old) == []

    async def test_what_an_engine_lost_stays(
        self, archive: Archive, place: object, seed: int
    ) -> None:
        """Each revision is read as it was, its checkpoints too; what followed does not hold it."""
        story = Story(seed)
        story.tell_some(20)
        story.checkpoint("kept")
        story.tell_some(19)
        story.tell(Put("public/only", ONE))
        story.checkpoint("lost")
        await story.archive_into(archive, BOARD)
        await archive.branch("saved", Point(BOARD, 38))
        mended = story.lose(30)
        mended.tell_some(20)
        mended.checkpoint("new")
        await mended.archive_into(archive, BOARD)
        assert await whole_log(archive, BOARD) == mended.log
        for revision in (10, 30, 30 + 1_000, mended.head):
            assert await state_at(archive, Point(BOARD, revision)) == mended.held[revision]
            await check_digests(archive, mended, Point(BOARD, revision))
        for revision in (31, 40, story.head):
            assert await state_at(archive, Point(BOARD, revision)) == story.held[revision]
            await check_digests(archive, story, Point(BOARD, revision))
            between = await archive.differences(
                Point(BOARD, revision), Point(BOARD, mended.head), limit=1000
            )
            expected = different(story.held[revision], mended.held[mended.head])
            assert {each.key: (each.before, each.after) for each in between} == expected
        for revision in (story.head + 1, 500, 1_029):
            with pytest.raises(Compacted):
                await archive.read(Point(BOARD, revision), [])
        told = [(c.name, c.lost) for c in await archive.checkpoints(BOARD)]
        assert told == [("kept", False), ("lost", True), ("new", False)]
        only = await archive.history(Point(BOARD, mended.head), "public/only", limit=9)
        assert [version.revision for version in only] == [41]
        assert await archive.at_time(BOARD, story.log[39].time_ms) == 40
        assert await archive.lost(BOARD) == Lost(30, story.head, 1_030)
        assert await state_at(archive, Point("saved", 38)) == story.held[38]
        assert await findings(archive, mended) == []
        wrong = "UPDATE version SET content = :c WHERE revision = 41"
        await place.change(wrong, c=encode_value(7))  # type: ignore[attr-defined]
        [found] = [f for f in await findings(archive, mended) if "chain" in f]
        assert found == "revision 41 is not what was archived: the hash chain breaks"

    async def test_what_an_engine_lost_is_pruned_as_all_else(
        self, archive: Archive, place: object, seed: int
    ) -> None:
        """But for what is asked for, is pinned, or a branch began with; once its end is too old."""
        story = Story(seed)
        story.tell_some(30)
        story.checkpoint("pinned")
        story.tell_some(9)
        await story.archive_into(archive, BOARD)
        await archive.pin(BOARD, "pinned", pinned=True)
        await archive.branch("saved", Point(BOARD, 35))
        mended = story.lose(20)
        mended.tell_some(10)
        await mended.archive_into(archive, BOARD)
        assert (await archive.prune(BOARD, [], 34)).versions > 0
        for revision in (31, 35, 40):
            assert await state_at(archive, Point(BOARD, revision)) == story.held[revision]
        with pytest.raises(Compacted):
            await archive.read(Point(BOARD, 33), [])
        assert await archive.lost(BOARD) == Lost(20, 40, 1_020)
        await archive.prune(BOARD, [38], mended.head)
        for revision in (20, 31, 35, 38):  # the board itself goes on from 20
            assert await state_at(archive, Point(BOARD, revision)) == story.held[revision]
        for revision in (19, 34, 36, 39, 40):
            with pytest.raises(Compacted):
                await archive.read(Point(BOARD, revision), [])
        assert await archive.lost(BOARD) is None
        assert await state_at(archive, Point("saved", 35)) == story.held[35]
        head = Point(BOARD, mended.head)
        assert await state_at(archive, head) == mended.held[mended.head]
        assert [f async for f in archive.verify(head)] == []
        left = "SELECT revision FROM version WHERE revision IN (39, 40)"
        assert await place.ask(left) == []  # type: ignore[attr-defined]

    async def test_an_engine_that_loses_again_and_again(self, archive: Archive, seed: int) -> None:
        """Everything, a part, or what it went on with: each history stays, and can be
        distinguished."""
        first = Story(seed)
        first.tell_some(20)
        await first.archive_into(archive, BOARD)
        second = first.lose(0)
        second.tell_some(10)
        await second.archive_into(archive, BOARD)
        third = first.lose(20, jump=5_000)  # its own file came back: what went on is lost instead
        third.tell_some(5)
        await third.archive_into(archive, BOARD)
        fourth = third.lose(third.head - 2, jump=9_000)
        fourth.tell_some(5)
        await fourth.archive_into(archive, BOARD)
        for story, revisions in (
            (first, (1, 20)),
            (second, (1_000, second.head)),
            (third, (5_020, third.head)),
            (fourth, (fourth.head,)),
        ):
            for revision in revisions:
                at = Point(BOARD, revision)
                assert await state_at(archive, at) == story.held[revision]
                assert [f async for f in archive.verify(at)] == []
        assert await whole_log(archive, BOARD) == fourth.log
        assert await archive.lost(BOARD) == Lost(
            third.head - 2, third.head, fourth.log[-6].revision
        )

    async def test_notes_come_back_as_they_were_written(self, archive: Archive) -> None:
        """Any text: a character that a database cannot keep must not end the archive of a board."""
        story = Story()
        notes = [
            "a\0b",
            "\0",
            "\0\0x",
            "",
            "%_'\"\\",
            "\ufdd0",
            "\ufdd0\0",
            "\uffff\U0010ffff",
            "é",
        ]
        for note in notes:
            story.tell(Put("public/k", ONE), note=note)
        await story.archive_into(archive, BOARD)
        assert await whole_log(archive, BOARD) == story.log
        assert [
            entry.note for entry in await archive.log(BOARD, 0, until=story.head, limit=9)
        ] == notes
        assert await findings(archive, story) == []

    # --- large values -----------------------------------------------------------------------------

    async def test_large_values_lie_among_the_blobs(self, archive: Archive, place: object) -> None:
        """One byte above the limit, and not at it; the same content once."""
        story = Story()
        at = b"\xc6" + (BLOB_BYTES - 5).to_bytes(4) + story.dice.randbytes(BLOB_BYTES - 5)
        above = b"\xc6" + (BLOB_BYTES - 4).to_bytes(4) + story.dice.randbytes(BLOB_BYTES - 4)
        story.tell(Put("public/at", at), Put("public/above", above), Put("public/too", above))
        await story.archive_into(archive, BOARD)
        files = [p for p in place.blobs.rglob("*") if p.is_file()]  # type: ignore[attr-defined]
        assert [file.read_bytes() for file in files] == [above]
        assert await state_at(archive, Point(BOARD, 1)) == story.held[1]

    # --- checkpoints ------------------------------------------------------------------------------

    async def test_a_checkpoint_is_sealed_with_its_revision(
        self, archive: Archive, seed: int
    ) -> None:
        """Its manifest says what the board held then, and names the one before it."""
        story = Story(seed)
        story.tell(Put("public/~declared/ada", encode_value({"schema": 3})))
        story.tell_some(10)
        first = story.checkpoint("first")
        story.tell_some(5)
        story.tell(Put("public/~declared/bo", ONE), Delete("public/~declared/ada"))
        second = story.checkpoint("second", kind="automatic")
        await story.archive_into(archive, BOARD)
        stored = await archive.checkpoints(BOARD)
        assert [(c.name, c.revision, c.kind) for c in stored] == [
            ("first", first, "named"),
            ("second", second, "automatic"),
        ]
        said = [json.loads(c.manifest) for c in stored]
        declared = [each["declared"] for each in said]
        assert declared == [{"ada": {"schema": 3}}, {"bo": 1}]
        assert [each["board"] for each in said] == [BOARD, BOARD]
        assert said[0]["previous"] == ""
        assert said[1]["previous"] != ""
        for checkpoint, each in zip(stored, said, strict=True):
            at = Point(BOARD, checkpoint.revision)
            facts, mark = await archive.facts_at(at), await archive.mark_at(at)
            assert await archive.digests_at(at) == facts.digests
            assert each["digests"] == {n: d.hex() for n, d in facts.digests.items()}
            assert each["agents"] == {name: list(step) for name, step in facts.steps.items()}
            assert each["chain"] == mark.chain.hex()
            public = bytes.fromhex(each["key"])
            assert is_signed(checkpoint.manifest, checkpoint.signature, public)
        assert await findings(archive, story) == []

    async def test_a_checkpoint_knows_agents_of_narrowed_tokens(self, archive: Archive) -> None:
        """By their names, whatever the account; also those of the origin of a branch."""
        story = Story()
        story.tell(Put("public/a", ONE), agent="buyer.me", account="buyer")
        story.tell(Put("public/b", ONE), agent="buyer.me.too", account="buyer.me")
        story.tell(Put("public/b", ONE), agent="buyer.me.too")
        story.checkpoint("one")
        await story.archive_into(archive, BOARD)
        assert await findings(archive, story) == []
        steps = (await archive.facts_at(Point(BOARD, story.head))).steps
        assert {name: step[0] for name, step in steps.items()} == {
            "buyer.me": 1,
            "buyer.me.too": 3,
            "~system": 4,
        }
        await archive.branch("two", Point(BOARD, 3))
        branch = story.lose(3, jump=1)
        branch.tell(Put("public/a", ONE), agent="buyer.me.too", account="buyer")
        branch.checkpoint("two")
        await branch.archive_into(archive, "two")
        assert await findings(archive, branch, "two") == []
        steps = (await archive.facts_at(Point("two", branch.head))).steps
        assert (steps["buyer.me"][0], steps["buyer.me.too"][0]) == (1, 5)

    async def test_pages_do_not_show_in_manifests(self, archive: Archive, seed: int) -> None:
        """The same log makes the same manifests, however it was cut into pages."""
        story = Story(seed)
        for number in range(6):
            story.tell_some(4)
            story.checkpoint(f"c{number}")
        found = []
        for page in (1, 3, 100):
            await story.archive_into(archive, BOARD, page=page)
            found.append([(c.manifest, c.signature) for c in await archive.checkpoints(BOARD)])
            fence = await archive.take(BOARD, "tester", TTL_MS)
            assert fence is not None
            await archive.join(BOARD, fence, Head(0, story.epochs[0], 1), listing())
        assert found[0] == found[1] == found[2]

    async def test_pins_and_forgetting(self, archive: Archive) -> None:
        """A checkpoint can be pinned, and let go of; the next manifest's previous one stays."""
        story = Story()
        first = story.checkpoint("a")
        story.checkpoint("b")
        await story.archive_into(archive, BOARD)
        await archive.pin(BOARD, "a", pinned=True)
        assert [c.pinned for c in await archive.checkpoints(BOARD)] == [True, False]
        await archive.pin(BOARD, "a", pinned=False)
        with pytest.raises(NoSuchCheckpoint):
            await archive.pin(BOARD, "c", pinned=True)
        await archive.forget(BOARD, "a", first + 1)
        await archive.forget(BOARD, "never", first)
        assert [c.name for c in await archive.checkpoints(BOARD)] == ["a", "b"]
        await archive.forget(BOARD, "a", first)
        assert [c.name for c in await archive.checkpoints(BOARD)] == ["b"]
        assert await findings(archive, story) == []

    # --- pruning ----------------------------------------------------------------------------------

    async def test_pruning_keeps_what_is_needed(self, archive: Archive, seed: int) -> None:
        """Revisions that were asked for, pinned checkpoints, branches and everything newer."""
        story = Story(seed)
        story.tell_some(30)
        pinned = story.checkpoint("pinned")
        story.tell_some(30)
        story.checkpoint("gone")
        story.tell_some(20)
        story.restore(20)
        await story.archive_into(archive, BOARD)
        await archive.branch("child", Point(BOARD, 45))
        await archive.pin(BOARD, "pinned", pinned=True)
        counters = await archive.items(Point(BOARD, story.head))
        dry = await archive.prune(BOARD, [12], 75, dry_run=True)
        assert await archive.prune(BOARD, [12], 75, dry_run=True) == dry
        for revision in (11, 44, story.head):
            assert await state_at(archive, Point(BOARD, revision)) == story.held[revision]
        assert await archive.prune(BOARD, [12], 75) == dry
        assert dry.versions > 10
        assert dry.value_bytes > dry.versions
        for revision in (12, pinned, 45, 75, 76, story.head):
            assert await state_at(archive, Point(BOARD, revision)) == story.held[revision]
            await check_digests(archive, story, Point(BOARD, revision))
            assert (await archive.mark_at(Point(BOARD, revision))).epoch == story.epochs[revision]
        assert await state_at(archive, Point("child", 45)) == story.held[45]
        for revision in (11, 13, 44, 74):
            with pytest.raises(Compacted):
                await archive.read(Point(BOARD, revision), [])
        assert await archive.items(Point(BOARD, story.head)) == counters
        assert await findings(archive, story) == []
        await archive.pin(BOARD, "pinned", pinned=False)
        assert (await archive.prune(BOARD, [], 80)).versions > 0
        with pytest.raises(Compacted):
            await archive.read(Point(BOARD, pinned), [])
        assert await state_at(archive, Point("child", 45)) == story.held[45]
        assert await state_at(archive, Point(BOARD, 80)) == story.held[80]
        story.tell_some(10)
        await story.archive_into(archive, BOARD)
        assert await findings(archive, story) == []
        assert (await archive.prune("unknown", [], 9)).versions == 0

    async def test_the_newest_commits_that_have_so_many_bytes(self, archive: Archive) -> None:
        """Each counts what its keys and values take before compression, and less than 1 KB more."""
        story = Story()
        for number in range(1, 9):
            story.tell(Put("public/a", encode_value("x" * 10_000 * number)))
        await story.archive_into(archive, BOARD)
        assert await archive.since_bytes(BOARD, 1_000_000) == 0
        for newest in range(1, 8):
            total = sum(10_000 * number for number in range(9 - newest, 9))
            assert await archive.since_bytes(BOARD, total + 1_000 * newest) == 8 - newest
        assert await archive.since_bytes(BOARD, 0) == 8
        assert await archive.since_bytes("unknown", 0) == 0

    async def test_pruning_forgets_removed_keys(self, archive: Archive, place: object) -> None:
        """A board on which tasks come and go does not grow for ever."""
        story = Story()
        for number in range(50):
            story.tell(Put(f"public/task{number}", ONE))
            story.tell(Delete(f"public/task{number}"))
        story.tell(Put("public/a", ONE))
        await story.archive_into(archive, BOARD)
        assert (await archive.prune(BOARD, [], story.head)).versions == 100
        [row] = await place.ask("SELECT COUNT(*) FROM version")  # type: ignore[attr-defined]
        assert row[0] == 1
        [row] = await place.ask("SELECT COUNT(*) FROM commit_log")  # type: ignore[attr-defined]
        assert row[0] == 1
        assert await findings(archive, story) == []

    async def test_pruning_keeps_the_digest_of_where_it_ends(self, archive: Archive) -> None:
        """In the middle of an append, with nothing left of what changed since the last digest."""
        story = Story()
        story.tell(Put("public/a", ONE), Put("public/b", ONE))
        await story.archive_into(archive, BOARD)
        story.tell(Delete("public/b"))
        story.tell(Put("public/c", ONE))
        await story.archive_into(archive, BOARD)
        assert (await archive.prune(BOARD, [], 2)).versions == 2
        await check_digests(archive, story, Point(BOARD, 2))
        assert await findings(archive, story) == []

    async def test_settling_says_how_far(self, archive: Archive) -> None:
        """What is archived by then outlives a power loss."""
        story = Story()
        story.tell_some(3)
        assert await archive.settle(BOARD) == 0
        await story.archive_into(archive, BOARD)
        assert await archive.settle(BOARD) == 3
