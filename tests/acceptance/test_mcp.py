"""`blackboard mcp` as coding agents use it: real processes over standard input and output.

Each agent has a client of its own (the SDK's), which starts a server of its own, as the clients of
coding agents do.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client import stdio
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from blackboard.cli.mcp.shared_directory import PORTS, announced_url
from tests.acceptance.shell import COMMAND, TIMEOUT_S, Shell
from tests.ports import free_port
from tests.unit.integrations.mcp_clients import Caller
from tests.waiting import wait_until

FILE = "public/files/src/app.py"
# After 2 s, the SDK would end a server that a busy machine ends more slowly.
stdio.PROCESS_TERMINATION_TIMEOUT = TIMEOUT_S


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A user of this machine, whose directory was last served at a port of this test's own: at
    another one, which tests beside it may take in the meantime, claims end."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "owner.json").write_text(json.dumps({"url": f"http://127.0.0.1:{free_port()}"}))
    return Shell(tmp_path)


@asynccontextmanager
async def agent(
    shell: Shell, *arguments: str, mode: str = "auto", **variables: str
) -> AsyncIterator[Caller]:
    """A coding agent, whose client starts `blackboard mcp`."""
    with (shell.home / "stderr").open("a") as errors:
        parameters = StdioServerParameters(
            command=COMMAND[0],
            args=[*COMMAND[1:], "mcp", *arguments],
            env={**shell.environ, **variables},
            cwd=shell.home,
        )
        transport = stdio_client(parameters, errlog=errors)
        async with Client(transport, mode=mode) as client:
            yield Caller(client)


def server_processes(shell: Shell) -> list[int]:
    """The processes of servers of this user."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environ = (entry / "environ").read_bytes()
            is_running = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            continue
        if is_running and os.fsencode(shell.environ["BLACKBOARD_DATA"]) in environ:
            found.append(int(entry.name))
    return found


def owner(shell: Shell) -> Any:
    """Who serves the data directory: the process, and the URL."""
    return json.loads((shell.home / "data" / "owner.json").read_text())


async def test_agents_that_start_their_own_servers_share_a_board(shell: Shell) -> None:
    """Each has a name of its own; a service is found by other commands; nothing stays."""
    async with agent(shell) as one, agent(shell, mode="legacy") as other:
        assert [(await each("list"))["you"] for each in (one, other)] == ["agent-1", "agent-2"]
        await one("write", key="public/plan", value={"step": 1})
        error = await other.fails("write", key="public/plan", value=2, expected_revision=0)
        assert (error["by"], error["current"]) == ("agent-1", {"step": 1})
        await one("claim", key=FILE)
        assert (await other.fails("claim", key=FILE))["holder"] == "agent-1"
        assert shell.json("get", "public/plan") == {"step": 1}
        await other("checkpoint", name="one")
        preview = await other("restore", to="one")
        assert (await other("restore", to="one", confirm=preview["confirm"]))["done"]
    assert server_processes(shell) == []
    assert not (shell.home / "data" / "owner.json").exists()
    assert "Traceback" not in (shell.home / "stderr").read_text()


async def test_the_others_survive_the_one_that_serves(shell: Shell) -> None:
    """It is killed while they write: every acknowledged change is there, none twice, and claims of
    the living go on. In the end the last one is left, and serves."""
    async with agent(shell) as first, agent(shell) as second, agent(shell) as third:
        await second("claim", key=FILE)
        await first("write", key="public/x", value=0)
        kept = {"agent-2": 0, "agent-3": 0}
        killed: list[int] = []

        async def work(who: Caller, name: str) -> None:
            for number in range(60):
                await who("append", directory=f"public/log/{name}", value=number)
                kept[name] += 1
                if number == 20 and name == "agent-2":
                    killed.append(owner(shell)["pid"])
                    os.kill(killed[0], signal.SIGKILL)

        with anyio.fail_after(TIMEOUT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work, second, "agent-2")
                tasks.start_soon(work, third, "agent-3")
        assert kept == {"agent-2": 60, "agent-3": 60}
        assert owner(shell)["pid"] != killed[0]
        for name in kept:
            page = await third("list", directory=f"public/log/{name}", values=True)
            assert [one["value"] for one in page["entries"]] == list(range(60))
        assert (await third.fails("claim", key=FILE))["holder"] == "agent-2"
        await second("write", key="public/x", value=1)  # with the fence of its claim
        os.kill(owner(shell)["pid"], signal.SIGKILL)
        for survivor in (second, third):
            try:
                await survivor("read", keys="public/x")
            except Exception:  # noqa: BLE001 - its server is the one that was killed
                continue
            assert owner(shell)["pid"] in server_processes(shell)
            entries = (await survivor("read", keys="public/x"))["entries"]
            assert entries[0]["value"] == 1


async def test_an_orderly_end_hands_over_and_gives_claims_back(shell: Shell) -> None:
    """The agent that serves closes its client in the middle of the work of another one."""
    async with apart(agent(shell)) as (first, end):
        await first("claim", key=FILE)
        async with agent(shell) as second:
            await second("claim", key="public/files/b")
            since = (await second("wait", patterns=FILE, seconds=0))["next"]
            waiting = asyncio.create_task(second("wait", patterns=FILE, after=since, seconds=50))
            before = owner(shell)["pid"]
            await end()
            changes = (await waiting)["changes"]
            assert [one["kind"] for one in changes] == ["release"]
            await second("claim", key=FILE)  # at once: it did not have to run out
            await second("write", key="public/x", value=1)
            assert owner(shell)["pid"] != before
            assert len(server_processes(shell)) == 1
    assert server_processes(shell) == []


@asynccontextmanager
async def apart(
    opening: AbstractAsyncContextManager[Caller],
) -> AsyncIterator[tuple[Caller, Callable[[], Awaitable[None]]]]:
    """An agent in a task of its own, and what ends it before this block does."""
    opened: asyncio.Future[Caller] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def live() -> None:
        async with opening as caller:
            opened.set_result(caller)
            await over.wait()

    living = asyncio.create_task(live())

    async def end() -> None:
        over.set()
        await living

    waiting: set[asyncio.Future[Any]] = {opened, living}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    yield opened.result(), end
    await end()


async def test_a_service_that_is_started_by_hand_is_joined(shell: Shell) -> None:
    """And when it ends, the agents go on: one of them serves."""
    with shell.service() as service:
        async with agent(shell) as one, agent(shell) as other:
            await one("write", key="public/x", value=1)
            assert announced_url(shell.home / "data") == service.url
            service.end(signal.SIGTERM)
            await other("write", key="public/x", value=2, expected_revision=1)
            assert owner(shell)["pid"] in server_processes(shell)
            assert shell.json("get", "public/x") == 2


async def test_an_agent_of_a_service_is_the_one_of_its_token(shell: Shell) -> None:
    with shell.service() as service:
        token = shell.out("token", "create", "reviewer").strip()
        given = {"BLACKBOARD_URL": service.url, "BLACKBOARD_TOKEN": token}
        async with agent(shell, "--board", "project", **given) as one:
            root = await one("list")
            assert (root["you"], root["board"]) == ("reviewer", "project")
            assert (await one.fails("checkpoint", name="one"))["code"] == "access_denied"
            shell.out("token", "revoke", "--all-of", "reviewer")
            error = await one.fails("list")
            assert error["code"] == "unauthenticated"


async def test_a_token_on_a_directory_says_who_it_is(shell: Shell) -> None:
    """And the process takes part in serving the directory like the others."""
    async with apart(agent(shell)) as (first, end):
        await first("write", key="public/x", value=1)
        token = shell.out("token", "create", "reviewer").strip()
        async with agent(shell, BLACKBOARD_TOKEN=token) as second:
            assert (await second("list"))["you"] == "reviewer"
            assert (await second.fails("checkpoint", name="one"))["code"] == "access_denied"
            await end()
            await second("write", key="public/x", value=2, expected_revision=1)
            assert owner(shell)["pid"] in server_processes(shell)


async def test_two_directories_are_two_boards(shell: Shell) -> None:
    async with (
        agent(shell, "--data", "a", "--agent", "ann") as one,
        agent(shell, "--data", "b", "--agent", "bob") as other,
    ):
        assert (await one("list"))["you"] == "ann"
        await one("write", key="public/x", value=1)
        assert (await other("read", keys="public/x"))["absent"] == ["public/x"]
        ports = {urlsplit(announced_url(shell.home / name)).port for name in ("a", "b")}
        assert len(ports) == 2
        assert ports <= set(PORTS)


async def test_a_port_that_was_taken_meanwhile_is_replaced(shell: Shell) -> None:
    """The others find the new one, although their connections cannot come back by themselves."""
    async with agent(shell) as first, agent(shell) as second:
        await first("write", key="public/x", value=1)
        await second("claim", key=FILE)
        url, serves = announced_url(shell.home / "data"), owner(shell)["pid"]
        assert url is not None
        (waits,) = set(server_processes(shell)) - {serves}
        os.kill(waits, signal.SIGSTOP)  # so that it cannot take the port before we do
        os.kill(serves, signal.SIGKILL)
        async with squatter(int(url.rpartition(":")[2])):
            os.kill(waits, signal.SIGCONT)

            async def is_joined() -> bool:
                return not (await second.result("read", keys="public/x")).is_error

            await wait_until(is_joined)
            assert announced_url(shell.home / "data") != url
            error = await second.fails("write", key="public/x", value=2)
            assert (error["code"], error["keys"]) == ("claim_lost", [FILE])
            await second("write", key="public/x", value=2)


@asynccontextmanager
async def squatter(port: int) -> AsyncIterator[None]:
    """Another program on that port, as soon as it is free; it hangs up on everybody."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    async def is_taken() -> bool:
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            return False
        return True

    await wait_until(is_taken)

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, sock=listener):
        yield


# --- a person at a terminal -----------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_although_its_input_is_open(shell: Shell, number: signal.Signals) -> None:
    read, write = os.pipe()
    with subprocess.Popen(
        [*COMMAND, "mcp"],
        stdin=read,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=shell.environ,
        cwd=shell.home,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "serving board main to agent-1" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == (130 if number == signal.SIGINT else 143)
        assert "Traceback" not in process.stderr.read()
    os.close(read)
    os.close(write)
    assert not (shell.home / "data" / "owner.json").exists()


def test_the_end_of_its_input_ends_it(shell: Shell) -> None:
    done = shell.run("mcp", given="nonsense\n")
    assert "serving board main" in done.stderr
    for line in done.stdout.splitlines():
        assert json.loads(line)["jsonrpc"] == "2.0"


def test_nothing_to_connect_to_is_said(shell: Shell) -> None:
    done = shell.run("mcp", "--url", "ws://127.0.0.1:9", "--token", "x", code=6)
    assert "cannot reach ws://127.0.0.1:9" in done.stderr
    with shell.service() as service:
        done = shell.run("mcp", "--url", service.url, "--token", "x", code=5)
        assert "not let in" in done.stderr


def test_what_does_not_go_together_is_refused(shell: Shell) -> None:
    assert "own token" in shell.run("mcp", "--http", "--port", "0", "--agent", "ann", code=2).stderr
    assert "TLS" in shell.run("mcp", "--http", "--port", "0", "--host", "0.0.0.0", code=2).stderr
    assert "redis://... is no directory" in shell.run("mcp", "--data", "redis://x", code=2).stderr
    assert list(shell.home.glob("redis*")) == []
    assert "agent" in shell.run("mcp", "--agent", "no/name", code=2).stderr


# --- HTTP -----------------------------------------------------------------------------------------


async def test_one_server_over_http_serves_each_by_its_token(shell: Shell) -> None:
    with shell.start("mcp", "--http", "--port", "0") as server:
        url = server.wait_for_note("serving board main at").split()[-1]
        for name in ("ann", "bob"):
            token = shell.out("token", "create", name).strip()
            headers = {"Authorization": f"Bearer {token}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as web,
                Client(streamable_http_client(url, http_client=web)) as client,
            ):
                one = Caller(client)
                assert (await one("list"))["you"] == name
                await one("append", directory="public/news", value=name)
        assert server.end(signal.SIGINT)[0] == 130
