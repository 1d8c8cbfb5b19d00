"""One reader, many watchers: what happens when the log, the ring or the engine misbehaves."""

import asyncio
import gc
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from msgpack import packb

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.commit import RESTORE, Commit, Committed, Epoch, LogEntry, LogPage, PutBack
from blackboard.core.history import LARGE_CHANGES, LargeEntry
from blackboard.core.path import parse_patterns
from blackboard.core.view import View
from blackboard.core.watch import Position, WatchState
from blackboard.errors import Compacted, Corrupt, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.server import feed as feed_module
from blackboard.server.commit_queue import system_id
from blackboard.server.feed import Feed, Watcher
from blackboard.server.service import Service
from blackboard.wire.codec import prepare
from tests.unit.server.hooked import HookedStore, client_of, service_over
from tests.waiting import wait_until

PATIENCE_S = 60.0
READER = access.operator()
EVERYTHING = View(parse_patterns(["**"]), READER.grants)


@pytest.fixture
async def parts(tmp_path: Path, limits: Limits) -> AsyncIterator[tuple[Service, HookedStore]]:
    """A service over an engine that can be broken."""
    async with service_over(tmp_path, limits) as parts:
        yield parts


@pytest.fixture
def store(parts: tuple[Service, HookedStore]) -> HookedStore:
    """The engine."""
    return parts[1]


@pytest.fixture
def board(parts: tuple[Service, HookedStore]) -> Board:
    """The board."""
    return client_of(parts[0]).board("main")


@pytest.fixture
async def feed(parts: tuple[Service, HookedStore], board: Board) -> Feed:
    """Its feed."""
    return (await parts[0].boards.use("main")).feed


async def entries(watcher: Watcher, until: int) -> list[LogEntry]:
    """What a watcher tells up to revision `until`."""
    found: list[LogEntry] = []
    with anyio.fail_after(PATIENCE_S):
        while watcher.position.revision < until:
            found += (await anext(watcher)).revisions
    return found


async def revisions(watcher: Watcher, until: int) -> list[int]:
    """The revisions of it."""
    return [entry.revision for entry in await entries(watcher, until)]


async def start(board: Board) -> Position:
    """The beginning of the log."""
    return Position((await board.head()).epoch.id, 0)


async def test_a_watcher_reads_the_log_until_it_has_caught_up(feed: Feed, board: Board) -> None:
    for _ in range(10):
        await board.increment("public/n")
    async with feed.watch(EVERYTHING, await start(board)) as watcher:
        states = [watcher.state]
        assert await revisions(watcher, 10) == list(range(1, 11))
        await board.increment("public/n")
        assert await revisions(watcher, 11) == [11]
        states.append(watcher.state)
        assert states == [WatchState.UNSYNCED, WatchState.SYNCED]


@pytest.mark.limits(watch_queue_changes_max=5)
async def test_who_falls_out_of_the_ring_reads_the_log_and_misses_nothing(
    feed: Feed, board: Board
) -> None:
    async with feed.watch(EVERYTHING, None) as slow, feed.watch(EVERYTHING, None) as quick:
        for _ in range(50):
            await board.increment("public/n")
        assert await revisions(quick, 50) == list(range(1, 51))

        async def ring_is_full() -> bool:
            return [entry.revision for entry in feed.ready(46) or []] == [47, 48, 49, 50]

        await wait_until(ring_is_full)
        assert feed.ready(10) is None
        assert await revisions(slow, 50) == list(range(1, 51))


@pytest.mark.limits(watch_queue_changes_max=5)
async def test_a_watcher_behind_a_trimmed_log_learns_where_it_begins(
    feed: Feed, board: Board, store: HookedStore
) -> None:
    async with feed.watch(EVERYTHING, None) as slow, feed.watch(EVERYTHING, None) as quick:
        for _ in range(50):
            await board.increment("public/n")
        await revisions(quick, 50)
        await store.compact("main", 40)
        for _ in range(2):
            with pytest.raises(Compacted) as told:
                await anext(slow)
            assert (told.value.revision, told.value.oldest) == (0, 40)
        assert slow.state is WatchState.CANCELLED


async def test_watchers_with_the_same_view_share_their_deliveries(feed: Feed, board: Board) -> None:
    other = View(parse_patterns(["public/**"]), READER.grants)
    async with (
        feed.watch(EVERYTHING, None) as first,
        feed.watch(EVERYTHING, None) as second,
        feed.watch(other, None) as third,
    ):
        await board.increment("public/n")
        with anyio.fail_after(PATIENCE_S):
            one, two, three = [await anext(watcher) for watcher in (first, second, third)]
    assert one is two
    assert one is not three
    assert one.revisions == three.revisions


async def test_a_delivery_is_shared_only_until_something_else_happens(
    feed: Feed, board: Board
) -> None:
    """A watcher that starts later at the same position gets everything up to then at once."""
    async with feed.watch(EVERYTHING, None) as early:
        begun = early.position
        await board.increment("public/n")
        assert await revisions(early, 1) == [1]
        for _ in range(2):
            await board.increment("public/n")
        assert await revisions(early, 3) == [2, 3]
        async with feed.watch(EVERYTHING, begun) as late:
            delivery = await anext(late)
    assert [entry.revision for entry in delivery.revisions] == [1, 2, 3]


async def test_every_watcher_gets_the_failure_of_the_reader(
    feed: Feed, board: Board, store: HookedStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def corrupt() -> None:
        raise Corrupt("log", "a flipped bit")

    async with feed.watch(EVERYTHING, None) as first, feed.watch(EVERYTHING, None) as second:
        store.hook("before log", corrupt)
        await board.increment("public/n")
        for watcher in (first, second):
            with pytest.raises(Corrupt) as told:
                await revisions(watcher, 99)
            assert told.value.reason == "a flipped bit"
    assert "feed of main ended" in caplog.text


async def test_a_log_with_a_gap_is_passed_on_to_nobody(
    feed: Feed, board: Board, store: HookedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise watchers would take it for the complete log."""
    async with feed.watch(EVERYTHING, None) as watcher:
        monkeypatch.setattr(store, "log", torn(store))
        for _ in range(3):
            await board.increment("public/n")
        with pytest.raises(Corrupt, match="revision 3 follows 1"):
            await revisions(watcher, 3)


async def test_a_log_with_a_gap_is_passed_on_to_nobody_who_catches_up(
    feed: Feed, board: Board, store: HookedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who resumes reads the log, and not what the feed has checked."""
    for _ in range(3):
        await board.increment("public/n")
    monkeypatch.setattr(store, "log", torn(store))
    async with feed.watch(EVERYTHING, await start(board)) as watcher:
        with pytest.raises(Corrupt, match="revision 3 follows 1"):
            await revisions(watcher, 3)


def torn(store: HookedStore) -> Callable[..., Awaitable[LogPage]]:
    """Reads the log of an engine without revision 2."""
    read = store.log

    async def without(name: str, after: int, *, limit: int, wait_ms: int = 0) -> LogPage:
        await anyio.lowlevel.checkpoint()
        page = await read(name, after, limit=limit, wait_ms=wait_ms)
        return LogPage(page.head, tuple(e for e in page.entries if e.revision != 2))

    return without


async def test_a_failing_reader_ends_watchers_that_missed_what_came(
    feed: Feed, board: Board, store: HookedStore
) -> None:
    """A sleeper whom nothing concerned is behind the head, and the ring is empty: it must not look
    for ever for what the ring does not have."""

    async def corrupt() -> None:
        raise Corrupt("log", "a flipped bit")

    asleep = View(parse_patterns(["public/other"]), READER.grants)
    async with feed.watch(asleep, None) as sleeper, feed.watch(EVERYTHING, None) as awake:
        waiting = asyncio.ensure_future(anext(sleeper))
        await board.increment("public/n")
        assert await revisions(awake, 1) == [1]
        store.hook("before log", corrupt)
        await board.increment("public/n")
        with pytest.raises(Corrupt):
            await asyncio.wait_for(waiting, PATIENCE_S)


async def test_a_bug_in_the_reader_is_reported_and_a_new_watch_works_again(
    feed: Feed, board: Board, store: HookedStore
) -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    async with feed.watch(EVERYTHING, None) as watcher:
        store.hook("before log", bug)
        await board.increment("public/n")
        with pytest.raises(Unavailable):
            await revisions(watcher, 99)
    store.hooks.clear()
    async with feed.watch(EVERYTHING, watcher.position) as watcher:
        await board.increment("public/n")
        at = watcher.position.revision
        assert await revisions(watcher, 2) == list(range(at + 1, 3))


async def test_an_engine_that_is_away_for_a_while_is_waited_for(
    feed: Feed, board: Board, store: HookedStore
) -> None:
    failures = iter(range(2))

    async def away() -> None:
        if next(failures, None) is not None:
            raise Unavailable("engine", "away")

    async with feed.watch(EVERYTHING, None) as watcher:
        store.hook("before log", away)
        await board.increment("public/n")
        assert await revisions(watcher, 1) == [1]
    assert next(failures, None) is None


async def test_a_reader_that_survives_its_end_tells_nothing_twice(
    feed: Feed, board: Board, store: HookedStore
) -> None:
    """A driver that swallows a cancellation left two readers over one ring."""
    swallowed = anyio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            swallowed.set()

    store.hook("before log", stubborn)
    async with feed.watch(EVERYTHING, None):
        await anyio.wait_all_tasks_blocked()
    store.hooks.clear()
    async with feed.watch(EVERYTHING, None) as watcher:
        with anyio.fail_after(PATIENCE_S):
            await swallowed.wait()
        for _ in range(20):
            await board.increment("public/n")
        assert await revisions(watcher, 20) == list(range(1, 21))


async def test_a_reader_that_is_over_does_not_wait_for_the_collector(
    feed: Feed, board: Board
) -> None:
    """Which comes to what is old once in days: it holds a page, and a connection to Redis."""
    readers: list[weakref.ref[asyncio.Task[object]]] = []
    gc.disable()
    try:
        for _ in range(3):
            async with feed.watch(EVERYTHING, await start(board)) as watcher:
                await board.increment("public/n")
                await revisions(watcher, (await board.head()).revision)
                tasks = asyncio.all_tasks()
                found = [weakref.ref(one) for one in tasks if one.get_name() == "feed of main"]
                del tasks
                assert found
                readers += found

        async def gone() -> bool:
            return not any(reader() for reader in readers)

        await wait_until(gone)
    finally:
        gc.enable()


async def test_a_watcher_learns_that_the_service_stops(tmp_path: Path) -> None:
    told: list[BaseException] = []

    async def follow(board: Board, started: anyio.Event) -> None:
        async with board.watch("**") as watch:
            started.set()
            try:
                await anext(watch)
            except Unavailable as error:
                told.append(error)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks, service_over(tmp_path) as (service, _):
            started = anyio.Event()
            tasks.start_soon(follow, client_of(service).board("main"), started)
            await started.wait()
    assert len(told) == 1


async def test_requested_progress_comes_after_everything_before_it(
    feed: Feed, board: Board
) -> None:
    narrow = View(parse_patterns(["public/x"]), READER.grants)
    async with feed.watch(narrow, None) as watcher:
        await board.increment("public/n")
        await board.put("public/x", 1)
        await board.increment("public/n")
        await watcher.request_progress()
        told = [await anext(watcher)]
        with anyio.fail_after(PATIENCE_S):
            while told[-1].position.revision < 3:
                told.append(await anext(watcher))
    assert [[entry.revision for entry in d.revisions] for d in told] in ([[2], []], [[2]])
    assert told[-1].position.revision == 3


no_marks = pytest.mark.limits(tail_wait_ms=10**9)
"""Nobody is woken because time has passed."""
NARROW = View(parse_patterns(["public/x"]), READER.grants)


@no_marks
@pytest.mark.limits(watch_queue_changes_max=2)
async def test_what_a_watcher_does_not_see_does_not_wake_it_and_is_passed(
    feed: Feed, board: Board
) -> None:
    """Though it slept, it is not behind the ring, which holds two entries."""
    told: list[int] = []

    async def follow(watcher: Watcher) -> None:
        told.extend(await revisions(watcher, 6))

    async with feed.watch(NARROW, None) as watcher, anyio.create_task_group() as tasks:
        tasks.start_soon(follow, watcher)
        await anyio.wait_all_tasks_blocked()
        for _ in range(5):
            await board.increment("public/n")
        async with feed.watch(EVERYTHING, Position(watcher.position.epoch, 0)) as other:
            assert await revisions(other, 5) == [1, 2, 3, 4, 5]
        assert watcher.position.revision == 0
        await board.put("public/x", 1)
    assert told == [6]
    assert watcher.state is WatchState.SYNCED


@no_marks
async def test_an_idle_watcher_learns_of_a_gap_that_the_reader_skips(
    feed: Feed, board: Board, store: HookedStore
) -> None:
    """What follows the gap does not concern the view, which must not pass the gap with it."""
    released = anyio.Event()
    store.hook("before log", released.wait)
    async with feed.watch(NARROW, None) as watcher:
        told = asyncio.ensure_future(anext(watcher))
        await board.put("public/x", 1)
        for _ in range(9):
            await board.increment("public/n")
        await store.compact("main", 8)
        async with feed.watch(EVERYTHING, Position(watcher.position.epoch, 7)) as other:
            released.set()
            assert await revisions(other, 10) == [8, 9, 10]
        await board.put("public/x", 2)
        with pytest.raises(Compacted), anyio.fail_after(PATIENCE_S):
            await told


async def restored(store: HookedStore, board: Board, count: int) -> int:
    """Put so many keys back, as a restore does; returns the revision."""
    revision = (await board.put("public/n", count)).revision
    head = await store.open("main")
    epoch = Epoch(head.epoch.number + 1, str(revision), RESTORE, revision, revision + 1)
    ops = tuple(PutBack(f"public/x/{number}", packb(number), None) for number in range(count))
    commit = Commit(system_id(), head.epoch.id, ops, begins=epoch, known=revision)
    [outcome] = await store.commit("main", [prepare(commit)])
    assert isinstance(outcome, Committed)
    await board.refresh()
    return outcome.revision


@pytest.mark.limits(watch_queue_changes_max=1)
async def test_a_large_restore_is_sorted_once_for_all_watchers(
    feed: Feed, board: Board, store: HookedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each watcher gets its part. For a smaller entry it would not pay. Afterwards nothing keeps
    it."""
    made: list[LogEntry] = []

    class Counted(LargeEntry):
        def __init__(self, entry: LogEntry) -> None:
            made.append(entry)
            super().__init__(entry)

    monkeypatch.setattr(feed_module, "LargeEntry", Counted)
    views = [View(parse_patterns([f"public/x/{number}"]), READER.grants) for number in range(4)]
    for count, expected in ((LARGE_CHANGES - 1, 0), (LARGE_CHANGES, 1)):
        async with AsyncExitStack() as stack:
            watchers = [await stack.enter_async_context(feed.watch(view, None)) for view in views]
            revision = await restored(store, board, count)
            for number, watcher in enumerate(watchers):
                [told] = await entries(watcher, revision)
                assert [change.key for change in told.changes] == [f"public/x/{number}"]
            assert len(made) == expected
            await board.put("public/x/0", 1)
            assert await revisions(watchers[0], revision + 1) == [revision + 1]
            assert feed._large is None


@no_marks
async def test_who_asks_for_progress_is_woken_by_what_it_does_not_see(
    feed: Feed, board: Board, store: HookedStore
) -> None:
    released = anyio.Event()
    store.hook("before log", released.wait)
    async with feed.watch(NARROW, None) as watcher:
        await board.increment("public/n")
        await watcher.request_progress()
        told = asyncio.ensure_future(anext(watcher))
        await anyio.wait_all_tasks_blocked()
        released.set()
        with anyio.fail_after(PATIENCE_S):
            delivery = await told
    assert (delivery.revisions, delivery.position.revision) == ((), 1)


@no_marks
@pytest.mark.limits(progress_interval_ms=0)
async def test_a_mark_comes_while_only_other_things_happen(
    feed: Feed, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:

    async with feed.watch(NARROW, None) as watcher:
        told = asyncio.ensure_future(anext(watcher))
        await anyio.wait_all_tasks_blocked()
        monkeypatch.setattr(feed, "_poked_s", float("-inf"))
        await board.increment("public/n")
        with anyio.fail_after(PATIENCE_S):
            delivery = await told
    assert (delivery.revisions, delivery.position.revision) == ((), 1)


@pytest.mark.limits(progress_interval_ms=0)
@pytest.mark.parametrize("alike", [True, False])
async def test_so_many_marks_come_in_a_second(
    feed: Feed, board: Board, monkeypatch: pytest.MonkeyPatch, alike: bool
) -> None:
    """PROGRESS_MARKS_PER_S_MAX, whether the watchers have one view or each its own; nobody is
    left out."""
    count = 2 * DEFAULT.watch.progress_marks_per_s_max + 3
    views = [view_of(READER, f"public/x/{0 if alike else number}") for number in range(count)]
    async with AsyncExitStack() as stack:
        watchers = [await stack.enter_async_context(feed.watch(view, None)) for view in views]
        monkeypatch.setattr(feed, "_poked_s", float("inf"))  # no second passes by itself
        waiting = [asyncio.ensure_future(anext(watcher)) for watcher in watchers]
        try:
            await board.put("public/other", 1)
            told = []
            for _ in range(4):
                await anyio.wait_all_tasks_blocked()
                told.append(sum(each.done() for each in waiting))
                monkeypatch.setattr(feed, "_poked_s", float("-inf"))
                feed._wake_due()
                monkeypatch.setattr(feed, "_poked_s", float("inf"))
            most = DEFAULT.watch.progress_marks_per_s_max
            assert told == [0, most, 2 * most, count]
            assert {each.result().revisions for each in waiting} == {()}
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


# --- what others watch ----------------------------------------------------------------------------


def view_of(reader: access.Principal, *patterns: str) -> View:
    """What a reader with the grants of `reader` watches."""
    return View(parse_patterns(patterns), reader.grants)


async def calls_to_tell(feed: Feed, board: Board, views: list[View]) -> int:
    """How many functions run while the feed takes in one commit beside sleepers with `views`."""
    async with AsyncExitStack() as stack:
        sleeping = []
        for view in views:
            watcher = await stack.enter_async_context(feed.watch(view, None))
            sleeping.append(asyncio.ensure_future(anext(watcher)))
        watcher = await stack.enter_async_context(feed.watch(EVERYTHING, None))
        revision = await board.increment("public/n")
        await revisions(watcher, (await board.head()).revision)
        last = feed.ready(0) or feed.ready((await board.head()).revision - 1)
        assert last
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        feed._poked_s = asyncio.get_running_loop().time()
        gc.disable()  # others have callbacks there, whose calls would count
        sys.setprofile(count)
        try:
            feed._tell((last[-1],))
        finally:
            sys.setprofile(None)
            gc.enable()
        assert revision
        assert not any(waiting.done() for waiting in sleeping)
        for waiting in sleeping:
            waiting.cancel()
        await asyncio.gather(*sleeping, return_exceptions=True)
    return calls


async def test_watches_that_match_nothing_cost_a_commit_nothing(feed: Feed, board: Board) -> None:
    """However many there are, with whatever patterns, of readers with and without the right."""
    narrow = access.Principal("rita", (access.parse_grant("public/zzz/**=read"),))

    def views(count: int) -> list[View]:
        return [
            view_of(reader, *(f"public/*/{n}-{i}" for i in range(3)), f"private/*/{n}")
            for reader in (narrow, READER)
            for n in range(count)
        ]

    assert await calls_to_tell(feed, board, views(2)) == await calls_to_tell(feed, board, views(60))


async def test_a_pattern_that_no_grant_meets_wakes_nobody(feed: Feed, board: Board) -> None:
    """Its watcher moves on all the same: its next mark is at the head."""
    narrow = access.Principal("rita", (access.parse_grant("public/zzz/**=read"),))
    assert view_of(narrow, "public/a/**", "private/**").meets == ()
    async with (
        feed.watch(view_of(narrow, "public/a/**"), None) as blind,
        feed.watch(view_of(narrow, "**"), None) as reader,
    ):
        waiting = asyncio.ensure_future(anext(blind))
        for key in ("public/a/x", "public/zzz/x"):
            await board.put(key, 1)
        head = (await board.head()).revision
        assert await revisions(reader, head) == [head]
        assert not waiting.done()
        await blind.request_progress()
        delivery = await asyncio.wait_for(waiting, PATIENCE_S)
        assert (delivery.revisions, delivery.position.revision) == ((), head)


async def test_asking_where_one_is_wakes_nobody_else(feed: Feed, board: Board) -> None:
    """Else one client could keep all watchers of a board busy."""
    await board.put("public/a", 1)
    other = view_of(READER, "public/other")
    async with feed.watch(other, None) as idle, feed.watch(EVERYTHING, None) as asking:
        waiting = asyncio.ensure_future(anext(idle))
        await asyncio.wait([waiting], timeout=0)
        [asleep] = feed._sleeping[other].woken
        await asking.request_progress()
        await asyncio.wait_for(anext(asking), PATIENCE_S)
        assert not asleep.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert other not in feed._sleeping or not feed._sleeping[other].woken


async def test_views_of_what_nobody_may_read_are_one(feed: Feed) -> None:
    """They keep no patterns, and have nothing in the index; epochs they show all the same."""
    narrow = access.Principal("rita", (access.parse_grant("public/zzz/**=read"),))
    wanted = [parse_patterns([f"public/a/{n}", "private/**"]) for n in range(3)]
    blind = {View.of(patterns, narrow.grants, coalesce=False) for patterns in wanted}
    assert blind == {View((), ())}
    some = View.of(parse_patterns(["public/a/*", "public/*/b"]), narrow.grants, coalesce=False)
    assert [pattern.text for pattern in some.patterns] == ["public/zzz/b"]
    async with feed.watch(View((), ()), None):
        assert feed._index._root.is_empty


async def test_watchers_at_one_position_share_their_mark(feed: Feed, board: Board) -> None:
    """Of what nobody has seen there is one delivery, whatever they watch."""
    head = await start(board)
    mark = feed.mark(head)
    assert (mark.revisions, mark.position) == ((), head)
    assert feed.mark(Position(head.epoch, head.revision, head.digest)) is mark
    later = (await board.put("public/x", 1)).revision
    assert feed.mark(Position(head.epoch, later)).position.revision == later
