"""A real PostgreSQL server for tests: found, set up in a directory of its own, and removed.

PostgreSQL refuses to run as root, so root runs it as another user.
"""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import asyncpg

from blackboard.errors import Unavailable
from tests.ports import free_port
from tests.waiting import wait_until

T = TypeVar("T")
_USERS = ("postgres", "nobody")
_READY_S = 60.0
# A test's data need not survive a power loss; a kill it does.
_SETTINGS = ("fsync=off", "shared_buffers=32MB", "max_connections=60", "listen_addresses=127.0.0.1")


async def answered(asked: Callable[[], Awaitable[T]]) -> T:
    """The answer of a server that is up, asked again while it is too busy to let anybody in.

    Errors: TimeoutError; those of `asked`, but for Unavailable.
    """
    answers: list[T] = []

    async def is_answered() -> bool:
        with contextlib.suppress(Unavailable):
            answers.append(await asked())
        return bool(answers)

    await wait_until(is_answered, timeout_s=_READY_S)
    return answers[0]


def postgres_directory() -> Path | None:
    """Where the server's programs are: on PATH, or where Debian puts them; None without."""
    found = [Path(name).resolve().parent for name in filter(None, [shutil.which("initdb")])]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((path for path in found if (path / "postgres").exists()), None)


class Postgres:
    """A server on loopback. `url` is its database's address; `kill` and `start` it as you like."""

    def __init__(self) -> None:
        self.port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
        self._process: subprocess.Popen[bytes] | None = None
        self._user = _other_user()

    @property
    def url(self) -> str:
        """The address of its database."""
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    async def __aenter__(self) -> Self:
        if self._user is not None:
            os.chown(self._directory, self._user.pw_uid, self._user.pw_gid)
        data = str(self._directory / "data")
        await asyncio.to_thread(
            self._run, "initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync"
        )
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self._directory)

    async def start(self) -> None:
        """Start it, or start it again, and wait until it answers."""
        options = [part for setting in _SETTINGS for part in ("-c", setting)]
        command = ["-D", str(self._directory / "data"), "-p", str(self.port), *options]
        command += ["-c", f"unix_socket_directories={self._directory}"]
        self._spawn(command)
        await wait_until(self._answers, timeout_s=_READY_S)

    def _spawn(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            [str(_program("postgres")), *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._directory,
            user=self._user and self._user.pw_uid,
            group=self._user and self._user.pw_gid,
        )

    def kill(self) -> None:
        """SIGQUIT: it ends at once, without writing anything down, and its children with it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    async def empty(self) -> str:
        """Remove everything from the database; returns its address."""
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        finally:
            await connection.close()
        return self.url

    async def _answers(self) -> bool:
        try:
            connection = await asyncpg.connect(self.url)
        except (OSError, TimeoutError, asyncpg.PostgresError):
            return False
        await connection.close()
        return True

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(_program(program)), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._directory,
            user=self._user and self._user.pw_uid,
            group=self._user and self._user.pw_gid,
        )


def _program(name: str) -> Path:
    directory = postgres_directory()
    assert directory is not None, "no PostgreSQL server: run tools/get_postgres.sh"
    return directory / name


def _other_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return next(known[name] for name in _USERS if name in known)
