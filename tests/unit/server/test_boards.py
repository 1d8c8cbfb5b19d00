"""What a process keeps of its boards."""

import asyncio
from pathlib import Path

import pytest

from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import READ_ALL
from blackboard.core.commit import Committed, Put
from blackboard.core.path import parse_patterns
from blackboard.core.view import View
from blackboard.errors import LimitExceeded, NoSuchBoard, Unavailable
from blackboard.limits import Limits
from blackboard.server.boards import OpenBoard
from blackboard.wire.codec import encode_value, prepare
from tests.conformance.writer import Writer
from tests.lowered import lowered
from tests.unit.server.hooked import client_of, service_over


async def test_a_board_has_one_queue_and_one_feed_however_many_ask_at_once(tmp_path: Path) -> None:
    async with service_over(tmp_path) as (service, _):
        opened = await asyncio.gather(*[service.boards.use("main") for _ in range(10)])
        assert len({id(board.queue) for board in opened}) == 1
        assert len({id(board.feed) for board in opened}) == 1
        assert [board.name for board in service.boards] == ["main"]


async def test_a_board_is_opened_once_for_its_first_callers(tmp_path: Path) -> None:
    """However many they are, and whichever of them is cancelled meanwhile."""
    async with service_over(tmp_path) as (service, store):
        times, opened, may_open = 0, asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            nonlocal times
            times += 1
            opened.set()
            await may_open.wait()

        store.hook("before open", hold)
        tasks = [asyncio.create_task(service.boards.use("main")) for _ in range(50)]
        await opened.wait()
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        may_open.set()
        assert len(set(map(id, await asyncio.gather(*tasks[1:])))) == 1
        assert times == 1


async def test_all_first_callers_learn_why_a_board_does_not_open(tmp_path: Path) -> None:
    """And the next one tries again."""
    async with service_over(tmp_path) as (service, store):

        async def fail() -> None:
            raise Unavailable(what="engine", reason="the disk is away")

        store.hook("before open", fail)
        attempts = [service.boards.use("main") for _ in range(5)]
        answers = await asyncio.gather(*attempts, return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        del store.hooks["before open"]
        assert (await service.boards.use("main")).name == "main"


async def test_a_service_closes_after_what_is_being_opened(tmp_path: Path) -> None:
    """Also if nobody waits for it any more."""
    async with service_over(tmp_path) as (service, store):
        opened, may_open = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            opened.set()
            await may_open.wait()

        store.hook("before open", hold)
        task = asyncio.create_task(service.boards.use("main"))
        await opened.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_open.set()
    async with service_over(tmp_path) as (service, _):
        assert (await client_of(service).board("main").put("public/x", 1)).revision


@pytest.mark.limits(boards_max=2)
async def test_the_number_of_open_boards_is_bounded(tmp_path: Path, limits: Limits) -> None:
    async with service_over(tmp_path, limits) as (service, _):
        client = client_of(service)
        for name in ("a", "b", "a"):
            await client.board(name).head()
        assert await client.board("c").get("public/a") is None
        for attempt in (client.board("c").put("public/a", 1), client.board("c").head()):
            with pytest.raises(LimitExceeded) as refused:
                await attempt
            assert (refused.value.limit, refused.value.maximum) == ("BOARDS_MAX", 2)
        assert await client.boards() == ["a", "b"]


async def test_the_number_of_boards_of_an_engine_is_bounded(tmp_path: Path) -> None:
    """Also of those that no process has open just now; they themselves can be used."""
    async with service_over(tmp_path) as (service, _):
        for name in ("a", "b"):
            await client_of(service).board(name).put("public/x", name)
    async with service_over(tmp_path, lowered(boards_max=2)) as (service, _):
        with pytest.raises(LimitExceeded) as refused:
            await client_of(service).board("c").put("public/x", 1)
        assert (refused.value.limit, refused.value.value) == ("BOARDS_MAX", 3)
        assert await client_of(service).board("b").get("public/x") == "b"
        assert await client_of(service).board("a").get("public/x") == "a"


@pytest.mark.limits(boards_per_principal_max=2)
async def test_one_principal_cannot_take_all_boards(tmp_path: Path, limits: Limits) -> None:
    """Nor does it help to ask for many at once; boards that are open stay open to all."""
    async with service_over(tmp_path, limits) as (service, _):
        mallory, bob = (Client(service.link(access.agent(name))) for name in ("mallory", "bob"))
        asked = [mallory.board(name).head() for name in "abcde"]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, LimitExceeded)]
        assert [(r.limit, r.maximum) for r in refused] == [("BOARDS_PER_PRINCIPAL_MAX", 2)] * 3
        taken = await mallory.boards()  # whichever came first
        assert len(taken) == 2
        [other, *_] = sorted(set("abcde") - set(taken))
        await bob.board(other).put("public/x", 1)
        assert await mallory.board(other).get("public/x") == 1
        for name in "defg":
            await client_of(service).board(name).head()


async def test_a_board_that_ended_refuses_what_still_holds_it(tmp_path: Path) -> None:
    """Its queued commits are carried out; the next board of that name is another one."""
    async with service_over(tmp_path) as (service, store):
        main = await service.boards.use("main")
        writer = await Writer.open(store, "main")
        waiting = main.queue.submit(prepare(writer.make(Put("public/a", encode_value(1)))))
        await service.boards.remove("main")
        assert isinstance(await waiting, Committed)
        assert service.boards.get("main") is None
        with pytest.raises(NoSuchBoard):
            await main.commit(writer.make(Put("public/a", encode_value(2))))
        with pytest.raises(NoSuchBoard):
            await service.boards.use("main")
        again = await service.boards.use("main", again=True)
        assert again is not main
        with pytest.raises(NoSuchBoard):
            await main.commit_as_system([Put("system/tests/a", encode_value(3))])
        assert (await again.read(["public/a", "system/tests/a"])).entries == ()


@pytest.mark.limits(boards_per_principal_max=1)
async def test_a_board_that_began_again_counts_for_its_opener(
    tmp_path: Path, limits: Limits
) -> None:
    """Also if another call asked at the same time for the board that was removed."""
    async with service_over(tmp_path, limits) as (service, _):
        boards = service.boards
        await boards.use("main")
        await boards.remove("main")
        calls = [boards.use("main", "mallory", again=again) for again in (True, False)]
        opened, refused = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(opened, OpenBoard)
        # As the threads go, it comes before the board is made, meanwhile, or afterwards.
        assert refused is opened or isinstance(refused, NoSuchBoard | Unavailable)
        async with opened.feed.watch(View(parse_patterns(("public/*",)), READ_ALL), None):
            with pytest.raises(LimitExceeded):
                await boards.use("other", "mallory")
