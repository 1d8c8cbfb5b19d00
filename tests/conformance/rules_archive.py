"""What an archive answers, compared with a board in memory of which every state is remembered."""

import itertools
import random
from collections import Counter
from functools import partial

import pytest

from blackboard.archive.base import Archive
from blackboard.core import digest
from blackboard.core.checkpoints import Point
from blackboard.core.commit import (
    Directory,
    Entry,
    ListOptions,
    LogEntry,
    Put,
    without_value,
)
from blackboard.core.history import Tally
from blackboard.core.path import (
    EVERYTHING,
    Ranges,
    directory_of,
    range_below,
    range_of,
    ranges_of,
)
from blackboard.errors import Compacted, FutureRevision, InvalidRequest
from blackboard.units import Key, Revision
from blackboard.wire.codec import encode_value
from tests.conformance.story import Story

BOARD = "main"
ONE = encode_value(1)


async def whole_log(archive: Archive, board: str, after: Revision = 0) -> list[LogEntry]:
    """The archived log, page by page."""
    found: list[LogEntry] = []
    while page := await archive.log(board, after, until=2**50, limit=5):
        found += page
        after = page[-1].revision
    return found


async def state_at(archive: Archive, at: Point, prefix: str = "") -> dict[Key, Entry]:
    """What was held, page by page."""
    found: dict[Key, Entry] = {}
    after = None
    while True:
        page = await archive.list(at, prefix, after=after, limit=5)
        assert page.revision == at.revision
        keys = [entry.key for entry in page.entries]
        assert keys == sorted(keys)
        found |= {entry.key: entry for entry in page.entries}
        after = page.next_key
        if after is None:
            return found


async def check_digests(archive: Archive, story: Story, at: Point) -> bool:
    """The digests and sums of a point, computed or kept, are those of its content; returns whether
    they are kept."""
    expected = story.digests(at.revision)
    assert (await archive.facts_at(at)).digests == expected
    kept = await archive.digests_at(at)
    assert kept in (None, expected)
    names = [*expected, "private/nobody"]
    sums = await archive.sums_at(at, names)
    assert {name: digest.digest_of(total) for name, total in sums.items()} == {
        **expected,
        "private/nobody": digest.EMPTY_DIGEST,
    }
    return kept is not None


def _within(ranges: Ranges, held: dict[Key, Entry]) -> dict[Key, Entry]:
    """What of `held` lies in `ranges`."""
    return {k: e for k, e in held.items() if any(first <= k < last for first, last in ranges)}


def _lies_in(ranges: Ranges, key: Key) -> bool:
    return any(first <= key < last for first, last in ranges)


class ReadingRules:
    """The history is as it was."""

    @pytest.fixture
    def story(self, seed: int) -> Story:
        """A board with every kind of change, two restores among them."""
        story = Story(seed)
        story.tell_some(40)
        story.checkpoint("first")
        story.tell_some(20)
        story.restore(story.dice.randrange(1, 40))
        story.tell_some(15)
        story.restore(30)
        return story

    async def test_the_log_comes_out_as_it_went_in(self, archive: Archive, story: Story) -> None:
        """Every field of every log entry: changes in order, leases, grounds, results, epochs."""
        await story.archive_into(archive, BOARD)
        assert await whole_log(archive, BOARD) == story.log
        some = await archive.log(BOARD, 10, until=13, limit=100)
        assert list(some) == story.log[10:13]

    async def test_commits_are_counted(self, archive: Archive, story: Story, seed: int) -> None:
        """Along any span and within any keys: what a reader of the whole log would count."""
        await story.archive_into(archive, BOARD)
        dice = random.Random(seed)
        spans = [(0, story.head), *(sorted(dice.sample(range(story.head), 2)) for _ in range(4))]
        for after, until in spans:
            for within in (EVERYTHING, (range_below("public"),), (range_below("private/ada"),), ()):
                parts = dice.randrange(1, 9)
                found, wanted = (Tally(after, until, parts) for _ in range(2))
                assert await archive.count(BOARD, within, found) == until
                for entry in story.log[after:until]:
                    wanted.take(entry, partial(_lies_in, within))
                assert found.activity(until).authors == wanted.activity(until).authors
                if within:
                    assert found.activity(until) == wanted.activity(until)
        assert await archive.count("nowhere", EVERYTHING, Tally(3, 9, 2)) == 3

    async def test_commits_are_counted_by_name(self, archive: Archive) -> None:
        """Whatever the account: as in the log, which counts what is not archived yet."""
        story, mine = Story(), Tally(0, 3, 1)
        story.tell(Put("public/a", ONE), agent="buyer.me", account="buyer")
        story.tell(Put("public/a", ONE), agent="buyer.me")
        await story.archive_into(archive, BOARD)
        story.tell(Put("public/a", ONE), agent="buyer.me", account="buyer")
        await archive.count(BOARD, EVERYTHING, mine)
        mine.take(story.log[-1], lambda key: True)
        assert [(a.author, a.commits) for a in mine.activity(3).authors] == [("buyer.me", (3,))]

    async def test_every_state_is_reported(self, archive: Archive, story: Story, seed: int) -> None:
        """Entries with all that belongs to them, at any revision, whole and below a prefix."""
        await story.archive_into(archive, BOARD)
        dice = random.Random(seed)
        for revision in (0, 1, *dice.sample(range(story.head + 1), 12), story.head):
            at, held = Point(BOARD, revision), story.held[revision]
            assert await state_at(archive, at) == held
            first, last = range_below("private/ada")
            mine = {key: entry for key, entry in held.items() if first <= key < last}
            assert await state_at(archive, at, "private/ada") == mine
            keys = [*held, "public/never"]
            dice.shuffle(keys)
            reading = await archive.read(at, keys)
            assert list(reading.entries) == [held[key] for key in keys if key in held]
            assert reading.epoch == story.epochs[revision].id
            assert dict(await archive.items(at)) == story.counters[revision]

    async def test_digests_are_those_of_the_content(self, archive: Archive, story: Story) -> None:
        """At every revision, against digests computed from nothing; and each agent's last step."""
        await story.archive_into(archive, BOARD)
        kept = []
        for revision in range(0, story.head + 1, 3):
            kept.append(await check_digests(archive, story, Point(BOARD, revision)))
            facts = await archive.facts_at(Point(BOARD, revision))
            last = {e.author: e for e in story.log if e.revision <= revision}
            steps = {
                name: (e.revision, e.id.incarnation, e.id.lane, e.id.step)
                for name, e in last.items()
            }
            assert facts.steps == steps
        assert set(kept) == {True, False}

    async def test_differences_are_all_of_them(
        self, archive: Archive, story: Story, seed: int
    ) -> None:
        """Between any two revisions, either way round, page by page."""
        await story.archive_into(archive, BOARD)
        dice = random.Random(seed)
        for _ in range(8):
            a, b = dice.randrange(story.head + 1), dice.randrange(story.head + 1)
            found: dict[Key, tuple[Entry | None, Entry | None]] = {}
            after = None
            while page := await archive.differences(
                Point(BOARD, a), Point(BOARD, b), after=after, limit=4
            ):
                found |= {each.key: (each.before, each.after) for each in page}
                after = page[-1].key
            assert found == different(story.held[a], story.held[b])

    async def test_listings_go_backwards_and_leave_values_out(
        self, archive: Archive, story: Story, seed: int
    ) -> None:
        """At any revision, page by page, as a whole and within ranges."""
        await story.archive_into(archive, BOARD)
        dice = random.Random(seed)
        ranges = (range_below("inbox/bo"), range_of("public/k1"), range_below("public/list"))
        for within, keys_only in ((EVERYTHING, False), (ranges, True), (EVERYTHING, True)):
            revision = dice.randrange(story.head + 1)
            held = _within(within, story.held[revision]).values()
            expected = [without_value(entry) if keys_only else entry for entry in held]
            expected.sort(key=lambda entry: entry.key, reverse=True)
            found: list[Entry] = []
            at, after = Point(BOARD, revision), None
            while len(found) < len(expected):
                page = await archive.list(
                    at, within, after=after, limit=3, reverse=True, keys_only=keys_only
                )
                assert len(page.entries) == min(3, len(expected) - len(found))
                found += page.entries
                after = page.next_key
            assert (found, after) == (expected, None)

    async def test_listings_by_directory(self, archive: Archive, story: Story, seed: int) -> None:
        """At any revision, in both directions, page by page, as a whole and within ranges."""
        await story.archive_into(archive, BOARD)
        dice = random.Random(seed)
        parts = (range_below("inbox/bo"), range_of("public/k1"), range_below("public/list"))
        for within, prefix, reverse in itertools.product(
            (EVERYTHING, parts), ("", "public", "inbox"), (False, True)
        ):
            revision = dice.randrange(story.head + 1)
            whole = ranges_of(prefix) if prefix else EVERYTHING
            ranges = tuple(part for part in within if part[0].startswith(prefix)) or whole
            held = _within(ranges, story.held[revision])
            places = [directory_of(prefix, key) for key in held]
            counts = Counter(place for place in places if place is not None)
            direct = [e for e, place in zip(held.values(), places, strict=True) if place is None]
            entries: list[Entry] = []
            directories: list[Directory] = []
            at, after = Point(BOARD, revision), None
            for _ in range(-(-(len(counts) + len(direct)) // 2) or 1):
                page = await archive.children(
                    at, ranges, prefix, after=after, limit=2, options=ListOptions(reverse)
                )
                entries += page.entries
                directories += page.directories
                after = page.next_key
            direct.sort(key=lambda entry: entry.key, reverse=reverse)
            names = sorted(counts, key=lambda name: f"{name}/", reverse=reverse)
            assert (entries, after) == (direct, None)
            assert directories == [Directory(name, counts[name]) for name in names]

    async def test_ranges_are_listed_and_compared_alone(
        self, archive: Archive, story: Story, seed: int
    ) -> None:
        """At any revision, page by page: what lies between them neither shows nor counts."""
        await story.archive_into(archive, BOARD)
        dice = random.Random(seed)
        ranges = (range_below("inbox/bo"), range_of("public/k1"), range_below("public/list"))
        for _ in range(4):
            a, b = dice.randrange(story.head + 1), dice.randrange(story.head + 1)
            held = [_within(ranges, story.held[revision]) for revision in (a, b)]
            listed: dict[Key, Entry] = {}
            after: Key | None = None
            while len(listed) < len(held[0]):
                page = await archive.list(Point(BOARD, a), ranges, after=after, limit=3)
                assert len(page.entries) == min(3, len(held[0]) - len(listed))
                listed |= {entry.key: entry for entry in page.entries}
                after = page.next_key
            assert (listed, after) == (held[0], None)
            found: dict[Key, tuple[Entry | None, Entry | None]] = {}
            points = Point(BOARD, a), Point(BOARD, b)
            while differ := await archive.differences(*points, ranges, after=after, limit=2):
                found |= {each.key: (each.before, each.after) for each in differ}
                after = differ[-1].key
            assert found == different(*held)

    async def test_a_key_has_a_history(self, archive: Archive, story: Story) -> None:
        """The newest version first, removals too, continued where it was left."""
        await story.archive_into(archive, BOARD)
        for key in ("public/k1", "public/count", "inbox/bo/k3"):
            expected = [
                (e.revision, e.author, e.time_ms, change.value)
                for e in reversed(story.log)
                for change in e.changes
                if change.key == key and change.lease is None
            ]
            found: list[tuple[int, str, int, bytes | None]] = []
            before = None
            while page := await archive.history(
                Point(BOARD, story.head), key, before=before, limit=3
            ):
                found += [
                    (v.revision, v.author, v.time_ms, v.entry.value if v.entry else None)
                    for v in page
                ]
                before = page[-1].revision
            assert found == expected
            for author, after in itertools.product(sorted({row[1] for row in expected}), (0, 9)):
                mine = [row[0] for row in expected if row[1] == author and row[0] > after]
                page = await archive.history(
                    Point(BOARD, story.head), key, author=author, after=after, limit=99
                )
                assert [version.revision for version in page] == mine

    async def test_a_time_is_a_revision(self, archive: Archive, story: Story) -> None:
        """The newest one that was committed then or before."""
        await story.archive_into(archive, BOARD)
        for entry in story.log[::7]:
            assert await archive.at_time(BOARD, entry.time_ms) == entry.revision
            before = [e.revision for e in story.log if e.time_ms <= entry.time_ms - 1]
            assert await archive.at_time(BOARD, entry.time_ms - 1) == max(before, default=0)
        assert await archive.at_time("unknown", 10**15) == 0

    async def test_marks_tell_how_far_it_reaches(self, archive: Archive, story: Story) -> None:
        """The newest revision and the epoch, sealed by a chain that depends on all before."""
        assert await archive.mark(BOARD) is None
        mark = await story.archive_into(archive, BOARD)
        assert mark == await archive.mark(BOARD)
        assert (mark.oldest, mark.revision, mark.epoch) == (0, story.head, story.state.epoch)
        chains = {(await archive.mark_at(Point(BOARD, r))).chain for r in range(story.head + 1)}
        assert len(chains) == story.head + 1
        assert await archive.boards() == [BOARD]

    async def test_what_is_not_there_is_refused(self, archive: Archive) -> None:
        """The future, an unknown board, and boards that have nothing in common."""
        story = Story()
        story.tell(Put("public/a", ONE))
        await story.archive_into(archive, BOARD)
        with pytest.raises(FutureRevision) as refused:
            await archive.read(Point(BOARD, 2), ["public/a"])
        assert (refused.value.revision, refused.value.head) == (2, 1)
        with pytest.raises(FutureRevision):
            await archive.list(Point("unknown", 0), "", limit=1)
        await story.archive_into(archive, "other")
        with pytest.raises(InvalidRequest):
            await archive.differences(Point(BOARD, 1), Point("other", 1), limit=1)
        assert await archive.log("unknown", 0, until=9, limit=9) == ()

    async def test_a_branch_has_its_origins_past(self, archive: Archive, story: Story) -> None:
        """Up to where it began, it is that board; but its checkpoints are not the branch's."""
        await story.archive_into(archive, BOARD)
        r = 55
        mark = await archive.branch("other", Point(BOARD, r))
        assert (mark.revision, mark.origin) == (r, Point(BOARD, r))
        assert mark == await archive.mark("other")
        for revision in (20, r):
            assert await state_at(archive, Point("other", revision)) == story.held[revision]
            await check_digests(archive, story, Point("other", revision))
        assert await whole_log(archive, "other") == story.log[:r]
        assert not await archive.checkpoints("other")

    async def test_records_of_the_service_are_those_of_one_board(self, archive: Archive) -> None:
        """A branch shares no record of its origin, nor the versions that such a record had."""
        story, key = Story(), "system/origin"
        story.tell(Put(key, ONE), agent="~system")
        story.tell(Put("public/a", ONE))
        await story.archive_into(archive, BOARD)
        branch = story.lose(2, jump=1)
        mine = [branch.tell(Put(key, encode_value(n)), agent="~system") for n in (2, 3)]
        await archive.branch("other", Point(BOARD, 2))
        await branch.archive_into(archive, "other")
        at = Point("other", branch.head)
        versions = await archive.history(at, key, limit=9)
        assert [version.revision for version in versions] == mine[::-1]
        assert len(await archive.history(at, "public/a", limit=9)) == 1

    async def test_a_branch_goes_its_own_way(self, archive: Archive, story: Story) -> None:
        """What either does is not seen by the other, and what differs is reported."""
        await story.archive_into(archive, BOARD)
        r = 35
        branch = story.lose(r, jump=1)
        branch.tell_some(20)
        branch.tell(Put("public/mine", ONE))
        await archive.branch("other", Point(BOARD, r))
        await branch.archive_into(archive, "other")
        for revision in (r, r + 1, r + 10, branch.head):
            other = Point("other", revision)
            assert await state_at(archive, other) == branch.held[revision]
            backwards = await archive.list(other, "", limit=1_000, reverse=True)
            assert [e.key for e in backwards.entries] == sorted(branch.held[revision])[::-1]
            inside = [key for key in branch.held[revision] if key.startswith("public/")]
            whole = await archive.children(other, EVERYTHING, "", limit=9)
            assert Directory("public", len(inside)) in (*whole.directories, Directory("public", 0))
            await check_digests(archive, branch, other)
        assert await state_at(archive, Point(BOARD, story.head)) == story.held[story.head]
        assert await whole_log(archive, "other") == branch.log
        a, b = Point(BOARD, story.head), Point("other", branch.head)
        found = await archive.differences(a, b, limit=1000)
        theirs = {k: e for k, e in story.held[story.head].items() if not k.startswith("system/")}
        expected = different(theirs, branch.held[branch.head])
        assert {each.key: (each.before, each.after) for each in found} == expected
        mine = await archive.history(b, "public/mine", limit=10)
        assert [version.revision for version in mine] == [branch.head]

    async def test_a_log_that_was_cut_is_compacted(self, archive: Archive) -> None:
        """Before the known part there is nothing."""
        story = Story()
        story.tell(Put("public/a", ONE))
        await story.archive_into(archive, BOARD)
        story.tell_some(10)
        await story.archive_into(archive, BOARD)
        await archive.prune(BOARD, [3], 8)
        for revision in (0, 1, 2, 4, 7):
            with pytest.raises(Compacted):
                await archive.read(Point(BOARD, revision), ["public/a"])
        with pytest.raises(Compacted):
            await archive.log(BOARD, 7, until=11, limit=9)
        assert await state_at(archive, Point(BOARD, 3)) == story.held[3]
        assert list(await archive.log(BOARD, 8, until=11, limit=9)) == story.log[8:11]


def different(
    a: dict[Key, Entry], b: dict[Key, Entry]
) -> dict[Key, tuple[Entry | None, Entry | None]]:
    """Keys that two states do not hold alike."""

    def content(entry: Entry | None) -> object:
        return entry and (entry.value, entry.expires_at_ms)

    return {
        key: (a.get(key), b.get(key))
        for key in sorted(a.keys() | b.keys())
        if content(a.get(key)) != content(b.get(key))
    }
