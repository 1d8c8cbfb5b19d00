"""What a command says when nobody answers: soon, and with what to do."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from blackboard.archive.sql import archive_beside
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.limits import COMMAND_PATIENCE_MS
from blackboard.server.service import Service
from blackboard.wire.frames import MSGPACK, SUBPROTOCOLS
from blackboard.wire.session import HelloReceived, ServerSession
from tests.acceptance.shell import Shell
from tests.redis_process import RedisProcess
from tests.serving import serving
from tests.unit.server.http.line import CuttingStore, Line

UNAVAILABLE, UNKNOWN = 6, 1
COMMANDS = (("get", "public/a"), ("set", "public/a", "2"))


async def each_told(shell: Shell, *commands: tuple[str, ...]) -> list[str]:
    """What commands that cannot reach anybody say; they run at the same time."""
    running = [asyncio.to_thread(shell.run, *each, code=UNAVAILABLE) for each in commands]
    return [done.stderr for done in await asyncio.gather(*running)]


async def test_a_command_does_not_wait_long_for_a_service_that_is_silent(tmp_path: Path) -> None:
    """It tells for how long it waited: not for as long as a program does."""
    shell = Shell(tmp_path)
    async with silence() as shell.environ["BLACKBOARD_URL"]:
        for told in await each_told(shell, *COMMANDS):
            assert f"no answer in {COMMAND_PATIENCE_MS} ms" in told


async def test_a_restore_whose_answer_is_lost_is_not_said_to_be_undone(tmp_path: Path) -> None:
    """It took effect: the command says that it may have, and how to find out."""
    store = await CuttingStore.at(tmp_path / "boards")
    shell = Shell(tmp_path)
    async with (
        Service(store, archive=await archive_beside(tmp_path / "boards")) as service,
        serving(service) as served,
        Line(served.port) as line,
    ):
        board = Client(service.link(access.operator())).board("b")
        await board.put("public/a", 1)
        await board.checkpoint("base")
        await board.put("public/a", 2)
        shell.environ |= {"BLACKBOARD_URL": line.url, "BLACKBOARD_TOKEN": served.token()}
        shell.environ["BLACKBOARD_BOARD"] = "b"
        store.cut = line.kill
        command = ("restore", "base", "--yes")
        told = (await asyncio.to_thread(shell.run, *command, code=UNKNOWN)).stderr
        assert await board.get("public/a") == 1
        assert "it may have been done or not" in told
        assert "cannot reach" not in told
        shell.environ["BLACKBOARD_URL"] = served.url
        [key] = re.findall("system/restores/[0-9a-f]+", told)
        assert await asyncio.to_thread(shell.json, "get", key)


@asynccontextmanager
async def silence() -> AsyncIterator[str]:
    """The address of a service that greets everybody, and answers nothing."""

    async def greet(connection: ServerConnection) -> None:
        session = ServerSession(MSGPACK, now_ms=0)
        async for frame in connection:
            assert isinstance(frame, bytes)
            for event in session.receive(frame):
                if isinstance(event, HelloReceived):
                    session.welcome(event.id, {"agent": "operator"})
            for answer in session.bytes_to_send():
                await connection.send(answer)

    async with serve(
        greet, "127.0.0.1", 0, subprotocols=[Subprotocol(n) for n in SUBPROTOCOLS]
    ) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


async def test_a_command_says_that_perhaps_the_engine_is_away(tmp_path: Path) -> None:
    """Where a service is there, and answers late, or that it cannot."""
    shell = Shell(tmp_path)
    async with RedisProcess() as redis:
        with shell.service("--engine", redis.url) as service:
            shell.environ["BLACKBOARD_URL"] = service.url
            shell.run("set", "public/a", "1")
            await redis.kill()
            for told in await each_told(shell, *COMMANDS):
                assert "its engine may be down" in told
                assert "blackboard doctor" in told
