"""Services as processes that can be killed, and the way to them."""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import anyio
from anyio import to_thread
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

import blackboard
from blackboard.archive.sql import archive_url
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.integrity.signing import make_key
from blackboard.integrity.tokens import issue, new_secret
from blackboard.limits import DEFAULT, Limits
from tests.hosts import HERE, Host
from tests.ports import free_port
from tests.prepared import prepared, spawns
from tests.source_tree import ROOT

READY_S = 60.0
HOUR_MS = 3_600_000


@dataclass
class ServiceProcess:
    """One service process on a port of its own; `kill` is SIGKILL, `start` starts it (again).

    `engine` is "sqlite" or the URL of a Redis. The embedded engine has an archive; `archived` gives
    one to a service over Redis, too. With `log` it writes everything that it logs, and its standard
    error, to that file.
    """

    engine: str
    data: Path
    secret: str = field(default_factory=new_secret)
    port: int = field(default_factory=free_port)
    archived: bool = False
    log: Path | None = None
    lock_masters: tuple[str, ...] = ()
    drain_delay_ms: int = 0
    more: Mapping[str, object] = field(default_factory=dict)
    """Further settings."""
    limits: Limits = DEFAULT
    """Those of its clients in this process."""
    host: Host = HERE
    """Where it runs. On another host it serves the other ones, without TLS."""
    replicas: int = 0
    _process: "Process | ForkedProcess | None" = None

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"ws://{self.host.address}:{self.port}"

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {
            "engine": self.engine,
            "data": str(self.data),
            "port": self.port,
            "secret": self.secret,
            "lock_masters": self.lock_masters,
            "drain_delay_ms": self.drain_delay_ms,
            "replicas": self.replicas,
            **self.more,
        }
        if not self.host.is_here:
            settings |= {"host": self.host.address, "insecure": True}
        if self.archived:
            self.data.mkdir(exist_ok=True)
            make_key(self.data / "signing_key")
            settings |= {
                "archive": archive_url(self.data),
                "signing_key": str(self.data / "signing_key"),
            }
        child = "tests.guarantees.service_child"
        command = [*self.host.enter, sys.executable, "-m", child, json.dumps(settings)]
        self._process = await self._open(command)
        try:
            with anyio.fail_after(READY_S):
                line = await _first_line(self._process)
            assert line.startswith(self.url), line
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.kill()
            raise

    async def _open(self, command: list[str]) -> "Process | ForkedProcess":
        is_plain = command[0] == sys.executable and "LD_PRELOAD" not in os.environ
        if is_plain and self.log is None and not spawns(command[2:]):
            return ForkedProcess(command[2:])
        if self.log is None:
            return await _spawned(command)
        with self.log.open("ab") as log:
            return await _spawned([*command, "verbose"], log)

    async def kill(self) -> None:
        """End it at once."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int | None:
        """Let it finish; returns its exit code."""
        return await self._end(signal.SIGTERM)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, and do not wait for what it does."""
        self._running().send_signal(number)

    def pause(self) -> None:
        """Freeze it."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._running().send_signal(signal.SIGCONT)

    async def __aenter__(self) -> "ServiceProcess":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running().pid

    def connect(self, principal: Principal | None = None) -> AbstractAsyncContextManager[Client]:
        """A client as `principal`, by default the operator."""
        token = issue(self.secret, principal or access.operator(), HOUR_MS)
        return blackboard.connect(self.url, token=token, limits=self.limits)

    async def _end(self, number: signal.Signals) -> int | None:
        if self._process is None:
            return None
        if self._process.returncode is None:
            self._process.send_signal(number)
        code = await self._process.wait()
        await self._process.aclose()
        self._process = None
        return code

    def _running(self) -> "Process | ForkedProcess":
        assert self._process is not None, "it is not running"
        return self._process


class ForkedProcess:
    """A prepared process, with what of `anyio.abc.Process` is needed here."""

    def __init__(self, command: list[str]) -> None:
        environ = _environment()
        read, write = os.pipe()
        self._out = os.fdopen(read)
        with Path(os.devnull).open("rb") as nothing, os.fdopen(write, "wb") as out:
            streams = [nothing.fileno(), out.fileno(), 2]
            self._forked = prepared(environ).start(command, streams, ROOT, environ)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._forked.pid

    @property
    def returncode(self) -> int | None:
        """How it ended, if it did."""
        return self._forked.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, which is lost if it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def line(self) -> str:
        """What it prints next."""
        return await to_thread.run_sync(self._out.readline, abandon_on_cancel=True)

    async def wait(self) -> int:
        """Wait for its end."""
        return await to_thread.run_sync(self._forked.wait)

    async def aclose(self) -> None:
        """Close what leads to it. It has ended."""
        self._out.close()
        self._forked.close()


async def run_and_kill(module: str, arguments: Sequence[str], line: str) -> None:
    """Run a program until it prints `line`, and kill it there."""
    command = [sys.executable, "-m", module, *arguments]
    process = await _spawned(command) if spawns(command[2:]) else ForkedProcess(command[2:])
    try:
        with anyio.fail_after(READY_S):
            assert await _first_line(process) == f"{line}\n"
    finally:
        with anyio.CancelScope(shield=True):
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await process.aclose()


async def _spawned(command: list[str], stderr: IO[bytes] | None = None) -> Process:
    return await anyio.open_process(command, cwd=ROOT, stderr=stderr, env=_environment())


async def _first_line(process: Process | ForkedProcess) -> str:
    if isinstance(process, ForkedProcess):
        return await process.line()
    assert process.stdout is not None
    return await TextReceiveStream(process.stdout).receive()


def _environment() -> dict[str, str]:
    """Ours, without what would configure a service."""
    return {k: v for k, v in os.environ.items() if not k.startswith("BLACKBOARD_")}
