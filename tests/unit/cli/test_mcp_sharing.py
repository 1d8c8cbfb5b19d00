"""Processes of `blackboard mcp` on one directory, when something goes wrong at a bad moment."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from filelock import FileLock
from mcp import Client

import blackboard
from blackboard.cli import target as places
from blackboard.cli.errors import CommandError
from blackboard.cli.mcp.serving import BoardPlace, Joined, _Saved
from blackboard.cli.mcp.shared_directory import SharedDirectory
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable
from blackboard.integrations.mcp import AgentSession, OldSubscriptions, board_server
from blackboard.server import settings as config
from blackboard.server.http import serve as http
from blackboard.server.service import Service
from tests.serving import serving
from tests.unit.integrations.mcp_clients import OLD, OldClient
from tests.waiting import TIMEOUT_S, wait_until

SERVED: Any = SimpleNamespace(url="http://127.0.0.1:7421", token_path=None)


async def test_a_failure_of_any_kind_does_not_end_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has the lock: if it gave up, no other one could serve."""
    attempts, again = list[int](), asyncio.Event()

    async def serve(settings: Any, *, ready: Callable[[Any], None], **_: Any) -> None:
        attempts.append(settings.port)
        if len(attempts) == 1:
            ready(SERVED)
            raise OSError(5, "Input/output error")
        again.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(http, "serve", serve)
    shared = SharedDirectory(
        config.load({"host": "127.0.0.1", "data": str(tmp_path)}), lambda _: None, retry_s=0
    )
    with anyio.fail_after(TIMEOUT_S):
        async with shared.running():
            await again.wait()
    assert attempts == [7421, 7421]


async def test_a_signal_does_not_cut_the_ending_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MCP clients close standard input first, and send SIGTERM to who is not gone in time."""
    ending, may_end, ended = asyncio.Event(), asyncio.Event(), list[bool]()

    async def serve(_: Any, *, ready: Callable[[Any], None], **__: Any) -> None:
        ready(SERVED)
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await may_end.wait()
            ended.append(True)

    monkeypatch.setattr(http, "serve", serve)
    settings = config.load({"host": "127.0.0.1", "data": str(tmp_path)})
    shared = SharedDirectory(settings, lambda _: None)

    async def take_part() -> None:
        async with shared.running():
            pass

    running = asyncio.create_task(take_part())
    with anyio.fail_after(TIMEOUT_S):
        await ending.wait()
        running.cancel()
        await anyio.lowlevel.checkpoint()
        assert not running.done()
        assert shared._lock.is_locked
        may_end.set()
        await asyncio.wait([running])
    assert ended
    assert not shared._lock.is_locked


async def test_a_failed_look_does_not_end_the_election(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process would never take over, and nobody would know. It says so once."""
    served, failures = asyncio.Event(), [OSError(5, "Input/output error"), OSError(24, "Too many")]

    async def serve(_: Any, **__: Any) -> None:
        served.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(http, "serve", serve)
    settings = config.load({"host": "127.0.0.1", "data": str(tmp_path)})
    (tmp_path / "owner.json").write_text(json.dumps({"url": SERVED.url}))
    shared = SharedDirectory(settings, lambda _: None, retry_s=0)
    acquire = shared._lock.acquire

    def acquire_at_last(**given: Any) -> Any:
        if shared._url is not None and failures:
            raise failures.pop()
        return acquire(**given)

    monkeypatch.setattr(shared._lock, "acquire", acquire_at_last)

    async def has_failed() -> bool:
        return not failures

    owner = FileLock(tmp_path / "mcp.lock")
    with owner, anyio.fail_after(TIMEOUT_S):
        async with shared.running():
            await wait_until(has_failed)
            owner.release()
            await served.wait()
    assert [one.message for one in caplog.records if "Too many" in one.message]
    assert not [one.message for one in caplog.records if "Input/output" in one.message]


async def test_a_service_that_moved_is_asked_until_it_answers() -> None:
    """If it does not at once: it may be starting, or too busy."""
    clients, moves = [SimpleNamespace(board=lambda name: name) for _ in range(2)], list[Any]()
    told, answers = asyncio.Event(), [clients[0], None, None, clients[1]]
    moved = [told, asyncio.Event()]

    async def connect(_: str | None) -> Any:
        found = answers.pop(0)
        if found is None:
            raise Unavailable(what="the service", reason="it does not answer")
        return found

    async def once() -> str:
        await moved.pop(0).wait()
        return "http://127.0.0.1:7422"

    async def move(board: Any, leave: Any) -> None:
        moves.append((board, leave))
        following.cancel()

    shared: Any = SimpleNamespace(url="http://127.0.0.1:7422", moved=once)
    session: Any = SimpleNamespace(move=move)
    clients[0].aclose = "the old connection"
    joined = Joined(BoardPlace("main", connect, shared), retry_s=0)
    await joined.open()
    following = asyncio.create_task(joined.follow(session))
    told.set()
    with anyio.fail_after(TIMEOUT_S):
        await asyncio.wait([following])
    assert moves == [("main", "the old connection")]
    assert answers == []


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_a_subscription_goes_on_where_the_board_is_served_now(tmp_path: Path) -> None:
    """Its client gets a notification, as it may have missed changes, then one for each change."""
    uri, told, old = "blackboard://public/plan", OldClient(), OldSubscriptions()
    async with (
        Service(await SqliteStore.at(tmp_path, "memory")) as service,
        serving(service) as here,
        serving(service, secret=here.secret) as there,
        blackboard.connect(there.url, token=there.token()) as new,
    ):
        client = await blackboard.connect(here.url, token=here.token())
        session = AgentSession(client.board("team"))
        server = board_server(lambda _: session, old)
        async with Client(server, mode=OLD, message_handler=told.take) as subscriber:
            await subscriber.subscribe_resource(uri)
            await session.move(new.board("team"), client.aclose)
            assert await told.next() == uri
            await new.board("team").put("public/plan", 1)
            assert await told.next() == uri
            await subscriber.unsubscribe_resource(uri)
            await new.board("team").put("public/plan", 2)
        await old.aclose()
        assert told.uris.empty()
        await session.aclose()


def test_a_damaged_list_of_contexts_does_not_end_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other commands need --url then, and agents go on."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path))
    settings = config.load({"host": "127.0.0.1", "data": str(tmp_path / "data")})
    _Saved(settings).save(SERVED)
    [file] = [path for path in tmp_path.iterdir() if path.suffix in (".json", ".toml")]
    file.write_text("{{{ damaged")
    with pytest.raises(CommandError):
        places.load(places.config_directory())
    _Saved(settings).save(SERVED)
