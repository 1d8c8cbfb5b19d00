"""The client: what a user sees of a service that comes, goes, refuses and lags."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sized
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from blackboard.client.client import Client
from blackboard.client.contexts import BOARD_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE
from blackboard.client.remote import stream
from blackboard.client.remote.connect import Address
from blackboard.client.remote.link import RemoteTransport, connect
from blackboard.client.watch import Watch
from blackboard.core import access
from blackboard.core.commit import Commit, CommitId, Put
from blackboard.errors import (
    AccessDenied,
    Compacted,
    InvalidRequest,
    LimitExceeded,
    LocalProtocolError,
    OutcomeUnknown,
    Unauthenticated,
    Unavailable,
)
from blackboard.limits import WATCHES_PER_CONNECTION_MAX, Limits
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.ports import free_port
from tests.serving import Served, serving
from tests.source_tree import ROOT
from tests.unit.server.http.conversation import PATIENCE_S
from tests.unit.server.http.line import Line
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test says counts."""
    for name in (URL_VARIABLE, TOKEN_VARIABLE, BOARD_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def line(served: Served) -> AsyncIterator[Line]:
    """A line to the service that can be cut."""
    async with Line(served.port) as line:
        yield line


@pytest.fixture
async def client(served: Served, line: Line, limits: Limits) -> AsyncIterator[Client]:
    """The operator, over that line."""
    async with connect(line.url, token=served.token(), patience_ms=60_000, limits=limits) as client:
        yield client


async def take(watch: Watch, count: int) -> list[int]:
    """The values of the next `count` revisions, one change each."""
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        async for revised in watch:
            found += [change.value for change in revised.changes]
            if len(found) >= count:
                break
    return found


# --- connecting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "websocket"),
    [
        ("ws://localhost:7420", "ws://localhost:7420/v1"),
        ("http://localhost:7420/", "ws://localhost:7420/v1"),
        ("https://example.org/board/", "wss://example.org/board/v1"),
        ("wss://example.org/v1", "wss://example.org/v1"),
        ("http://[::1]:7420", "ws://[::1]:7420/v1"),
        ("ws://localhost:7420/?token=x#y", "ws://localhost:7420/v1"),
    ],
)
def test_addresses(url: str, websocket: str) -> None:
    """Whatever people copy from a banner or a browser; a query is not passed on."""
    assert Address(url).websocket == websocket


@pytest.mark.parametrize(
    "url",
    [
        "localhost",
        "localhost:7420",
        "redis://localhost",
        "ws://",
        "http:///x",
        "ws://localhost:99999",
        "ws://localhost:0",
        "ws://localhost:-1",
        "ws://localhost:port",
        "ws://[::1",
        "ws://board..example.org",
        f"ws://{'a' * 64}.example.org",
    ],
)
async def test_what_is_no_address_is_refused(url: str) -> None:
    """Before anything is connected."""
    with pytest.raises(InvalidRequest, match="url"):
        async with connect(url, token="t"):
            pass


@pytest.mark.parametrize("patience_ms", [0, -1])
async def test_a_patience_in_which_no_answer_can_come_is_refused(
    served: Served, patience_ms: int
) -> None:
    """Every request would be given up as it is sent."""
    with pytest.raises(InvalidRequest, match="patience_ms"):
        async with connect(served.url, token=served.token(), patience_ms=patience_ms):
            pass


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ws://localhost", True),
        ("ws://127.1.2.3:1", True),
        ("ws://[::1]", True),
        ("ws://example.org", False),
        ("ws://10.0.0.1", False),
    ],
)
def test_this_machine_is_known(url: str, expected: bool) -> None:
    """No proxy is asked for it."""
    assert Address(url).is_loopback is expected


async def test_nobody_there() -> None:
    """A first connection fails at once: people have mistyped the port."""
    async with Line(1) as line:
        line.kill()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(PATIENCE_S), connect(line.url, token="t"):
                pass
        assert line.connections == 1


async def test_a_token_that_is_not_valid(served: Served) -> None:
    """Unauthenticated; also without any."""
    for token in ("nonsense", None):
        with pytest.raises(Unauthenticated):
            async with connect(served.url, token=token):
                pass


async def test_url_token_and_board_may_be_in_the_environment(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each under its name; an argument precedes it."""
    monkeypatch.setenv(URL_VARIABLE, served.url)
    monkeypatch.setenv(TOKEN_VARIABLE, served.token())
    monkeypatch.setenv(BOARD_VARIABLE, "expansion")
    async with connect() as client:
        assert (client.board().name, client.board("b").agent) == ("expansion", "operator")
    async with connect(served.url, token=served.token(access.agent("ada"))) as client:
        assert client.board("b").agent == "ada"


async def test_acting_as_somebody_else(served: Served) -> None:
    """An operator may be any agent; an agent only itself."""
    async with connect(served.url, token=served.token(), agent="ada") as client:
        board = client.board("b")
        assert board.agent == "ada"
        await board.put("private/ada/x", 1)
        with pytest.raises(AccessDenied):
            await board.get("private/bob/x")
        assert await board.as_agent("bob").get("private/bob/x") is None
    with pytest.raises(AccessDenied):
        async with connect(served.url, token=served.token(access.agent("ada")), agent="bob"):
            pass


async def test_a_client_that_was_closed_is_closed(served: Served) -> None:
    """Calls and watches end; closing again is fine."""
    async with connect(served.url, token=served.token()) as client:
        board = client.board("b")
        async with board.watch("public/**") as watch:
            ending = asyncio.create_task(take(watch, 1))
            await asyncio.wait([ending], timeout=0.01)
            await client.aclose()
            with pytest.raises(Unavailable):
                await ending
        with pytest.raises(Unavailable):
            await board.get("public/a")
        await client.aclose()


async def test_requests_of_one_turn_share_a_frame(served: Served) -> None:
    """Both ways."""
    async with connect(served.url, token=served.token()) as client:
        board = client.board("b")
        await board.head()
        before = served.gate.traffic.frames_in
        await asyncio.gather(*(board.get(f"public/{n}") for n in range(100)))
        assert served.gate.traffic.frames_in == before + 1


def test_a_client_loads_nothing_of_a_server() -> None:
    """A command that asks one question should not take half a second to begin."""
    program = "import sys, blackboard.client.remote.link; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert "websockets" in loaded
    assert not loaded & {"pydantic", "starlette", "uvicorn", "redis", "jwt", "sqlite3"}


# --- a connection that breaks ---------------------------------------------------------------------


async def test_reads_do_not_notice(client: Client, line: Line) -> None:
    """They are asked again on the next connection."""
    board = client.board("b")
    await board.put("public/a", 1)
    line.hush()
    reading = asyncio.create_task(board.get("public/a"))
    await asyncio.wait([reading], timeout=0.05)
    line.cut()
    line.speak()
    assert await asyncio.wait_for(reading, PATIENCE_S) == 1
    assert line.connections == 2


async def test_commits_are_carried_out_once(client: Client, line: Line, service: Service) -> None:
    """A board sends a commit again whose answer was lost."""
    board = client.board("b")
    await board.increment("public/n", 1)
    for expected in range(2, 6):
        line.hush()
        writing = asyncio.create_task(board.increment("public/n", 1))
        await wait_until(partial(reached, service, expected))
        line.cut()
        line.speak()
        assert await asyncio.wait_for(writing, PATIENCE_S) == expected
    assert (await board.head()).revision == 5


async def reached(service: Service, revision: int) -> bool:
    """Whether board b is at `revision`, seen from behind the line."""
    return (await service.host.store.open("b")).revision >= revision


async def test_a_lost_commit_says_what_is_known(
    client: Client, line: Line, service: Service
) -> None:
    """OutcomeUnknown, with its id, if it was sent; Unavailable if it was not."""
    board = client.board("b")
    await board.put("public/a", 0)
    epoch = (await board.head()).epoch.id
    commit = Commit(CommitId("operator", 0, "i", 1), epoch, (Put("public/a", encode_value(1)),))
    line.hush()
    writing = asyncio.create_task(client.link.commit("b", commit))
    await wait_until(partial(reached, service, 2))
    line.kill()
    line.speak()
    with pytest.raises(OutcomeUnknown) as caught:
        await asyncio.wait_for(writing, PATIENCE_S)
    assert (caught.value.agent, caught.value.incarnation, caught.value.step) == ("operator", "i", 1)
    line.revive()
    receipt = await client.link.commit("b", commit)
    assert (receipt.revision, receipt.duplicate) == (2, True)


@pytest.mark.limits(connect_pauses_ms=(0, 3_600_000))
async def test_patience_ends(served: Served, line: Line, limits: Limits) -> None:
    """Nothing waits for ever for a service that does not come back; nothing of it is applied."""
    async with connect(line.url, token=served.token(), patience_ms=60_000, limits=limits) as client:
        assert isinstance(client.link, RemoteTransport)
        board, held = client.board("b"), client.link._channel
        async with board.watch("public/**") as watch:
            held.patience_ms = 300
            line.kill()
            for attempt in (
                board.get("public/a"),
                client.link.commit("b", Commit(CommitId("operator", 0, "i", 1), "e", ())),
                anext(aiter(watch)),
            ):
                with pytest.raises(Unavailable):
                    await asyncio.wait_for(attempt, PATIENCE_S)
        line.revive()
        held.patience_ms = 60_000
        assert await board.get("public/a", 7) == 7  # a new request does not wait out a pause


async def test_a_slow_service_is_a_lost_answer(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that takes too long is given up; its late answer harms nobody."""
    release = asyncio.Event()
    commit = RequestHandler.commit

    async def slow(link: RequestHandler, board: str, wanted: Commit) -> Any:
        await release.wait()
        return await commit(link, board, wanted)

    monkeypatch.setattr(RequestHandler, "commit", slow)
    async with connect(served.url, token=served.token()) as client:
        wanted = Commit(CommitId("operator", 0, "i", 1), "e", (Put("public/a", b"\x01"),))
        with monkeypatch.context() as hasty:
            hasty.setattr(RemoteTransport, "_answer_ms", 50)
            with pytest.raises(OutcomeUnknown, match="no answer"):
                await client.link.commit("b", wanted)
        release.set()
        assert await client.boards() == []


async def test_a_token_that_expires(served: Served) -> None:
    """The calls after it say so, and so does a watch."""
    async with connect(served.url, token=served.token(access.agent("ada"))) as client:
        board = client.board("b")
        async with board.watch("public/**") as watch:
            (held,) = served.gate._open
            held._expire_at(0)
            with pytest.raises(Unauthenticated):
                await take(watch, 1)
        with pytest.raises(Unauthenticated):
            await board.get("public/a")


async def test_a_service_that_restarts(service: Service) -> None:
    """On the same port: the client finds it again, and its watch has missed nothing."""
    async with AsyncExitStack() as first:
        port = free_port()
        served = await first.enter_async_context(serving(service, port=port))
        secret = served.secret
        async with connect(served.url, token=served.token()) as client:
            board = client.board("b")
            async with board.watch("public/**") as watch:
                await board.put("public/a", 1)
                assert await take(watch, 1) == [1]
                await first.aclose()
                async with serving(service, port=port, secret=secret):
                    await board.put("public/a", 2)
                    assert await take(watch, 1) == [2]


# --- watches --------------------------------------------------------------------------------------


async def test_a_watch_does_not_notice_cuts(client: Client, line: Line, served: Served) -> None:
    """Every change once, in order, however often the line is cut."""
    async with connect(served.url, token=served.token()) as writer:
        source, seen = writer.board("b"), client.board("b")
        async with seen.watch("public/**") as watch:
            found: list[int] = []
            for number in range(40):
                await source.put("public/a", number)
                if number % 7 == 3:
                    await seen.head()  # it is connected again: there is something to cut
                    line.cut()
                if number % 10 == 9:
                    found += await take(watch, number + 1 - len(found))
            assert found == list(range(40))
    assert line.connections > 6


async def test_a_watch_that_begins_now_begins_there_after_a_cut(
    client: Client, line: Line, served: Served
) -> None:
    """Its place was fixed when it was opened, though nothing had come yet."""
    board = client.board("b")
    await board.put("public/a", 0)
    async with connect(served.url, token=served.token()) as writer, board.watch("**") as watch:
        line.kill()
        await writer.board("b").put("public/a", 1)
        line.revive()
        assert await take(watch, 1) == [1]


async def test_a_mark_that_was_asked_for_comes_after_a_cut(client: Client, line: Line) -> None:
    """A caller that waits for a revision is not left waiting."""
    board = client.board("b")
    async with board.watch("public/none/**") as watch:
        revision = (await board.put("public/a", 1)).revision
        line.hush()
        waiting = asyncio.create_task(watch.wait_for(revision))
        await asyncio.wait([waiting], timeout=0.05)
        line.cut()
        line.speak()
        assert await asyncio.wait_for(waiting, PATIENCE_S) == []


@pytest.mark.limits(watch_queue_changes_max=10)
async def test_a_slow_watcher_costs_little_and_misses_nothing(client: Client) -> None:
    """Its buffer is bounded, other calls go on, and later it gets everything from the log."""
    board = client.board("b")
    async with board.watch("public/**") as watch:
        held = watch._stream  # what the test is about has no public face
        assert isinstance(held, stream.RemoteStream)
        for number in range(100):
            await board.put("public/a", number)
            assert len(held._buffer) <= 11
        await wait_until(lambda: _has(held._buffer, 11))
        assert await take(watch, 100) == list(range(100))


async def _has(buffer: Sized, count: int) -> bool:
    return len(buffer) == count


async def test_a_watch_of_what_is_gone(client: Client, service: Service) -> None:
    """A reason that does not pass ends the iteration."""
    board = client.board("b")
    start = None
    async with board.watch("public/**") as watch:
        start = watch.position
    for number in range(5):
        await board.put("public/a", number)
    await service.host.store.compact("b", 4)
    with pytest.raises(Compacted):
        async with board.watch("public/**", after=start):
            pass


async def test_a_watch_ends_with_its_block(client: Client, served: Served) -> None:
    """On both sides; it cannot be iterated any more, and its place is free again."""
    board = client.board("b")
    async with board.watch("public/**") as watch:
        deliveries = watch._stream
        assert deliveries is not None
        assert served.service.statistics().watchers == 1
    await wait_until(lambda: _no_watchers(served))
    with pytest.raises(LocalProtocolError):
        await anext(aiter(deliveries))


async def _no_watchers(served: Served) -> bool:
    return served.service.statistics().watchers == 0


async def test_more_watches_than_a_connection_has(client: Client) -> None:
    """The limit is named in the error."""
    board = client.board("b")
    async with AsyncExitStack() as watches:
        for _ in range(WATCHES_PER_CONNECTION_MAX):
            await watches.enter_async_context(board.watch("public/**"))
        with pytest.raises(LimitExceeded, match="WATCHES_PER_CONNECTION_MAX"):
            await watches.enter_async_context(board.watch("public/**"))
