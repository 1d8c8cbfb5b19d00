"""The service as a process: how it starts, what it says, how it stops."""

import asyncio
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

import blackboard
from blackboard.client.remote.link import connect
from blackboard.engines.base import EngineFacts
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import DataDirectoryInUse, InvalidRequest, Unavailable
from blackboard.integrity.tokens import new_secret
from blackboard.server.http.serve import Serving, listen, raise_file_limit, serve, show
from blackboard.server.service import Service
from blackboard.server.settings import load
from tests.ports import free_port
from tests.serving import serving
from tests.source_tree import ROOT
from tests.unit.server.http.conversation import PATIENCE_S, talking

CHILD = """
import json, sys
from blackboard.server.settings import load
from blackboard.server.http.serve import run
run(load(json.loads(sys.argv[1])))
"""


class Child:
    """A running service, its banner, and its token."""

    def __init__(self, process: Process, banner: str) -> None:
        self.process = process
        self.banner = banner
        self.url = re.findall(r"wss?://\S+", banner)[0]

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and wait for the exit code."""
        self.process.send_signal(how)
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)


@asynccontextmanager
async def running(data: Path, settings: dict[str, Any] | None = None) -> AsyncIterator[Child]:
    """A service of its own process on a free port; it is killed if it does not stop."""
    given = json.dumps({"data": str(data), "port": 0, **(settings or {})})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, given, stderr=PIPE, cwd=ROOT
    )
    assert process.stderr is not None
    try:
        banner = await asyncio.wait_for(process.stderr.readuntil(b"Ctrl-C"), PATIENCE_S)
        yield Child(process, banner.decode())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def token_in(data: Path) -> str:
    """The operator's token, as the banner tells people to read it."""
    return (data / "token").read_text().strip()


async def test_the_banner_says_what_people_need(tmp_path: Path) -> None:
    """What serves, where the data is, what an answer survives, how to use it; and it is true."""
    async with running(tmp_path) as child:
        assert f"in {tmp_path}" in child.banner.replace("\n", "")
        assert "sqlite" in child.banner
        assert "power failure" in child.banner
        assert str(tmp_path / "token") in child.banner.replace("\n", "")
        async with connect(child.url, token=token_in(tmp_path)) as client:
            await client.board("b").put("public/a", 1)
        assert await child.stop() == 0


def test_the_banner_survives_odd_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets in a path or an address are text, not markup."""
    facts = EngineFacts("sqlite", "3", "boards/[bold]x", "memory", ("[red]beware",))
    show(Serving("ws://[::1]:7420", facts, Path("data/[x]/token")))
    banner = capsys.readouterr().err
    for text in ("ws://[::1]:7420", "boards/[bold]x", "[red]beware", "data/[x]/token"):
        assert text in banner
    assert "archive" not in banner
    show(Serving("ws://[::1]:7420", facts, None, archived=False))
    assert "archive  none" in capsys.readouterr().err


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_it_stops_in_good_order(tmp_path: Path, how: signal.Signals) -> None:
    """Commits in flight are answered, watches end where they are, and what was answered is kept."""
    async with running(tmp_path) as child:
        async with talking(child.url, token_in(tmp_path), greeting={}) as talk:
            head = (await talk.ask(1, "head", {"board": "b"}))["result"]
            watch = {"board": "b", "watch": 1, "patterns": ["public/**"]}
            await talk.ask(2, "watch", watch)
            for number in range(300):
                commit = {
                    "board": "b",
                    "id": {"lane": number % 64, "incarnation": "i", "step": number},
                    "epoch": head["epoch"]["id"],
                    "ops": [{"kind": "put", "key": f"public/{number}", "value": number}],
                }
                await talk.send({"id": 1000 + number, "method": "commit", "params": commit})
            messages = [await talk.receive()]
            while messages[-1].get("method") != "changes":
                messages.append(await talk.receive())
            stopping = asyncio.create_task(child.stop(how))
            messages += await _everything(talk)
            assert talk.socket.close_code == 1012
        assert await stopping == 0
    answered = [m for m in messages if m.get("id", 0) >= 1000 and "result" in m]
    assert {m["error"]["data"]["code"] for m in messages if "error" in m} <= {"unavailable"}
    told = {m["method"]: m["params"] for m in messages if "method" in m}
    assert told.keys() == {"changes", "draining", "cancelled"}
    assert told["cancelled"]["error"]["data"]["code"] == "unavailable"
    async with blackboard.open(tmp_path) as client:
        board = client.board("b")
        log = await board.log()
        assert len(log) == len(answered)
        changes = [m["params"] for m in messages if m.get("method") == "changes"]
        seen = sum(len(params["revisions"]) for params in changes)
        async with board.watch("public/**", after=told["changes"]["position"]) as rest:
            missed = await rest.wait_for(log[-1].revision)
        assert seen + len(missed) == len(log) > 0


async def _everything(talk: Any) -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(await talk.receive())
        except ConnectionClosed:
            return found


async def test_the_port_is_closed_before_connections_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is sent away does not come back to the same service; what was asked is answered."""
    held = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> Any:
        await held.wait()
        raise Unavailable("engine", "away")

    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(Service(await SqliteStore.at(tmp_path)))
        await service.client().board("b").put("public/a", 1)
        ending = AsyncExitStack()
        served = await ending.enter_async_context(serving(service))
        async with talking(served.url, served.token(), greeting={}) as talk:
            monkeypatch.setattr(service.host.store, "list", hang)
            await talk.send({"id": 1, "method": "list", "params": {"board": "b", "pattern": "**"}})
            assert "result" in await talk.ask(2, "whoami", {})
            stopping = asyncio.create_task(ending.aclose())
            told = await talk.receive()
            assert told.get("method") == "draining", told
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", served.port)
            held.set()
            assert (await talk.receive())["error"]["data"]["code"] == "unavailable"
        await asyncio.wait_for(stopping, PATIENCE_S)


async def test_a_client_finds_the_next_service(tmp_path: Path) -> None:
    """It waits out the restart; what it asked meanwhile is done."""
    async with AsyncExitStack() as stack:
        port = free_port()
        first = await stack.enter_async_context(running(tmp_path, {"port": port}))
        token = token_in(tmp_path)
        client = await stack.enter_async_context(connect(first.url, token=token))
        board = client.board("b")
        await board.put("public/a", 1)
        await first.stop()
        writing = asyncio.create_task(board.put("public/a", 2))
        second = await stack.enter_async_context(running(tmp_path, {"port": port}))
        await asyncio.wait_for(writing, PATIENCE_S)
        assert await board.get("public/a") == 2
        assert await second.stop() == 0


async def test_cancellation_stops_it_too(tmp_path: Path) -> None:
    """For programs that run it in their own process: the directory is free afterwards."""
    for _ in range(2):
        ready: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
        settings = load({"data": tmp_path, "port": 0})
        serving = asyncio.create_task(serve(settings, ready=ready.set_result, signals=False))
        await asyncio.wait_for(ready, PATIENCE_S)
        async with connect(ready.result().url, token=token_in(tmp_path)) as client:
            await client.board("b").increment("public/n", 1)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
    async with blackboard.open(tmp_path) as client:
        assert await client.board("b").get("public/n") == 2


async def test_a_directory_in_use_names_the_service(tmp_path: Path) -> None:
    """So that one connects to it instead."""
    async with running(tmp_path) as child:
        with pytest.raises(DataDirectoryInUse) as caught:
            await serve(load({"data": tmp_path, "port": 0}))
        assert caught.value.url == child.url
        assert caught.value.pid == child.process.pid


async def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """Before anything is opened."""
    with closing(listen("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=str(port)):
            await serve(load({"data": tmp_path / "data", "port": port}))
    for host in ("nowhere.invalid", "..", f"{'l' * 64}.invalid"):
        with pytest.raises(InvalidRequest, match="invalid request: host"):
            listen(host, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
@pytest.mark.parametrize("error", [ValueError("above the limit of the system"), OSError("denied")])
def test_a_limit_of_files_that_stays_as_it_is_keeps_no_service_from_starting(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """As in a container that forbids the call, or where the system has a lower limit."""
    import resource

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_file_limit()


async def test_unsafe_settings_open_nothing(tmp_path: Path) -> None:
    """Neither a port nor a directory."""
    with pytest.raises(InvalidRequest, match="secret"):
        await serve(load({"data": tmp_path / "data", "host": "0.0.0.0", "port": 0}))
    assert not (tmp_path / "data").exists()


def test_sockets_do_not_wait_for_more() -> None:
    """No Nagle's delay, also for accepted connections; and an end for peers that do not read."""
    with closing(listen("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with closing(accepted):
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    timeout = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                    assert timeout > 0
        assert listener.proto == socket.IPPROTO_TCP


async def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wss and https with a certificate, and nothing without encryption."""
    certificate, key = _make_certificate(tmp_path)
    settings = {
        "secret": new_secret(),
        "tls_cert": str(certificate),
        "tls_key": str(key),
    }
    async with running(tmp_path / "data", settings) as child:
        assert child.url.startswith("wss://127.0.0.1:")
        token = token_in(tmp_path / "data")
        with pytest.raises(blackboard.Unavailable):
            async with connect(child.url, token=token):
                pass
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with connect(child.url, token=token) as client:
            await client.board("b").put("public/a", 1)
        secure = ssl.create_default_context()
        base = child.url.replace("wss", "https")
        async with httpx.AsyncClient(verify=secure, trust_env=False) as http:
            assert (await http.get(f"{base}/healthz")).status_code == 200
            with pytest.raises(httpx.TransportError):
                await http.get(base.replace("https", "http") + "/healthz")


def _make_certificate(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "cert.pem", directory / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate), "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, *files]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


LIMITED_CHILD = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from blackboard.server.http.serve import raise_file_limit
raise_file_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 20_736), hard), hard)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
async def test_a_service_opens_as_many_files_as_it_may() -> None:
    """Not only the 1,024 that most systems begin with: those are used up by 256 boards."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LIMITED_CHILD, stdout=PIPE, cwd=ROOT
    )
    out, _ = await asyncio.wait_for(child.communicate(), PATIENCE_S)
    assert out.startswith(b"True"), out


TUNED_CHILD = """
import gc, json, sys
from blackboard.server.settings import load
from blackboard.server.http.serve import GC_THRESHOLDS, SWITCH_INTERVAL_S, run

def say(serving):
    print(gc.get_threshold() == GC_THRESHOLDS, sys.getswitchinterval() == SWITCH_INTERVAL_S)
    raise SystemExit

run(load(json.loads(sys.argv[1])), ready=say)
"""


async def test_a_service_asks_for_its_own_pace_of_python(tmp_path: Path) -> None:
    """When cycles are looked for, and how long a thread waits for another one."""
    settings = json.dumps({"data": str(tmp_path), "port": 0})
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TUNED_CHILD, settings, stdout=PIPE, cwd=ROOT
    )
    out, _ = await asyncio.wait_for(child.communicate(), PATIENCE_S)
    assert out.split() == [b"True", b"True"]
