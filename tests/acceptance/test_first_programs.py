"""The first programs of a user: a script, a notebook, a mounted service, a second service."""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

import blackboard
from blackboard.client.contexts import Contexts, ServiceContext, change, config_directory
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import (
    DataDirectoryInUse,
    InvalidRequest,
    Unauthenticated,
    Unavailable,
)
from blackboard.server.service import Service
from tests.acceptance.shell import TIMEOUT_S, Running, Shell

T = TypeVar("T")
SCRIPT = """\
import asyncio
import sys
import blackboard

async def main():
    async with blackboard.connect(*sys.argv[1:]) as client:
        print(await client.board().get("public/greeting"))

asyncio.run(main())
"""


async def run_script(shell: Shell, *arguments: str) -> tuple[int, str, str]:
    """What SCRIPT prints in the environment of a user."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT,
        *arguments,
        env=shell.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


# --- connect finds what the command line finds ----------------------------------------------------


async def test_a_program_finds_the_service_that_runs_here(shell: Shell, service: Running) -> None:
    """Without any argument, and with nothing but its address."""
    shell.run("set", "public/greeting", "hello")
    assert await run_script(shell) == (0, "hello\n", "")
    assert await run_script(shell, service.url) == (0, "hello\n", "")
    assert await run_script(shell, service.url.replace("http:", "ws:") + "/") == (0, "hello\n", "")


async def test_a_program_uses_the_chosen_context_and_its_board(
    shell: Shell, service: Running
) -> None:
    """`context use` counts for Python too."""
    shell.run("set", "public/greeting", "hello", "--board", "plans")
    token = shell.out("token", "create", "ann").strip()
    shell.run("context", "add", "team", "--url", service.url, "--token", token, "--board", "plans")
    shell.run("context", "use", "team")
    assert await run_script(shell) == (0, "hello\n", "")


async def test_a_remembered_token_goes_to_its_own_address_only(
    shell: Shell, service: Running
) -> None:
    """Another address gets none, and the error says how to come by one."""
    other = service.url.replace("127.0.0.1", "localhost")
    code, _, err = await run_script(shell, other)
    assert code == 1
    assert "blackboard token create" in err
    assert "BLACKBOARD_TOKEN" in err


def test_a_context_that_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token file that is gone is Unauthenticated, with its name."""
    directory = config_directory()
    lost = ServiceContext("http://127.0.0.1:9", token_file="/nowhere/token")
    change(directory, lambda _: Contexts("lost", {"lost": lost}))
    try:
        for name in ("BLACKBOARD_URL", "BLACKBOARD_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(Unauthenticated, match="/nowhere/token"):
            asyncio.run(_connect_and_close())
    finally:
        (directory / "contexts.json").unlink()


async def _connect_and_close() -> None:
    async with blackboard.connect():
        pass


async def test_two_services_on_one_machine(shell: Shell, service: Running) -> None:
    """The first one stays `local`; the second has a name of its own until it stops."""
    shell.run("set", "public/greeting", "of the first")
    with shell.service("--data", "other") as second:
        name = f"local-{second.port}"
        assert any(f"blackboard context use {name}" in line for line in second.lines)
        assert shell.json("get", "public/greeting") == "of the first"
        shell.run("set", "public/greeting", "of the second", "--context", name)
        second.end(signal.SIGINT)
    assert shell.json("get", "public/greeting") == "of the first"
    assert list(shell.json("context", "ls")["contexts"]) == ["local"]
    assert service.port


# --- a client lives until it is closed ------------------------------------------------------------


async def in_a_cell(work: Coroutine[Any, Any, T]) -> T:
    """Run as a cell of a notebook is run: in a task of its own, on the same loop."""
    found = await asyncio.create_task(work)
    gc.collect()
    return found


async def test_a_client_lives_across_the_cells_of_a_notebook(tmp_path: Path) -> None:
    """Opened in one task, used in another, closed in a third; then it is closed."""
    client = await in_a_cell(_opened(tmp_path))
    await in_a_cell(client.board("b").put("public/a", 1))
    await in_a_cell(client.aclose())
    await client.aclose()
    with pytest.raises(Unavailable):
        await client.board("b").put("public/a", 2)
    async with blackboard.open(tmp_path) as again:
        assert await again.board("b").get("public/a") == 1


async def _opened(path: Path) -> blackboard.Client:
    return await blackboard.open(path)


async def test_a_connection_lives_across_the_cells_of_a_notebook(
    shell: Shell, service: Running
) -> None:
    """The same over a WebSocket."""
    token = shell.out("token", "create", "ann").strip()
    client = await in_a_cell(_connected(service.url, token))
    await in_a_cell(client.board("b").put("public/a", 1))
    await in_a_cell(client.aclose())
    with pytest.raises(Unavailable):
        await client.board("b").get("public/a")


async def _connected(url: str, token: str) -> blackboard.Client:
    return await blackboard.connect(url, token=token)


async def test_opening_that_is_cancelled_leaves_the_directory_free(tmp_path: Path) -> None:
    """At whatever turn of the loop it is given up, the next one may open it."""
    for turns in range(12):
        opening = asyncio.create_task(_opened(tmp_path))
        for _ in range(turns):
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0)
        opening.cancel()
        [found] = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(found, blackboard.Client):
            await found.aclose()
        async with blackboard.open(tmp_path):
            pass


async def test_a_directory_that_is_open_in_this_process(tmp_path: Path) -> None:
    """The error does not tell a program to stop itself."""
    async with blackboard.open(tmp_path):
        with pytest.raises(DataDirectoryInUse, match="in this process already") as caught:
            await blackboard.open(tmp_path)
    assert (caught.value.pid, caught.value.is_this_process) == (os.getpid(), True)


def test_a_url_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says how to use such an engine, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    for url in ("redis://127.0.0.1:6379", "http://127.0.0.1:7420", "sqlite:///data"):
        with pytest.raises(InvalidRequest, match="blackboard serve --engine"):
            blackboard.open(url)
    assert list(tmp_path.iterdir()) == []


async def test_an_application_that_runs_a_service_uses_its_boards(tmp_path: Path) -> None:
    """As the operator, or as an agent with an agent's rights; the service outlives the client."""
    async with Service(await SqliteStore.at(tmp_path)) as service:
        await service.client(agent="ann").board("b").put("private/ann/x", 1)
        ann = service.client(agent="ann")
        await ann.aclose()
        assert await service.client().board("b").get("private/ann/x") == 1
        with pytest.raises(blackboard.errors.AccessDenied):
            await service.client(agent="bob").board("b").get("private/ann/x")


# --- what the command line says -------------------------------------------------------------------


def test_grants_are_those_of_the_agent_that_is_meant(shell: Shell, service: Running) -> None:
    """Over a service as in its directory; an operator asks for somebody else."""
    assert service.port
    for flags in (["--as", "ann"], []):
        found = shell.json("grants", "private/bob/notes", *flags)
        assert found["principal"] == (flags or ["", "operator"])[-1]
        assert bool(found["grants"][0][1]) == (not flags)


async def _write_a_memo(data: Path) -> None:
    async with blackboard.open(data) as client:
        board = client.board("main")
        async with board.document("public/memo") as memo:
            text = memo.text("body")
            text.insert(0, "hello")
            await memo.synced()
        await board.put("public/z", 1)
        await board.put("public/~book/x", 1)


def test_a_document_is_read_and_listed_as_one_value(shell: Shell) -> None:
    """Its content by root; what the service keeps of it shows only if a pattern names it."""
    data = shell.home / "data"
    asyncio.run(_write_a_memo(data))
    at = ("--data", str(data))
    assert shell.json("get", "public/memo", *at) == {"body": "hello"}
    listed = shell.json("ls", *at)["entries"]
    assert [(e["key"], e["value"]) for e in listed] == [
        ("public/memo", {"body": "hello"}),
        ("public/z", 1),
    ]
    raw = shell.json("ls", "public/memo/~doc/**", *at)["entries"]
    assert all("/~doc/" in entry["key"] for entry in raw)
    assert raw
    assert shell.json("ls", "public/~book/*", *at)["entries"][0]["key"] == "public/~book/x"
    assert "public/memo\ta document" in shell.out("log", *at)
    assert json.loads(shell.out("get", "public/memo", "--entry", "--json", *at))["author"]
