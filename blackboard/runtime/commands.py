"""Runs a command for a step: bounded in time and output, and with an end to all that it starts.

Invariants
- There is no shell: a command is a list of arguments, with the environment that it is given.
- When `run_command` returns or raises, the command and everything that it started is gone, on Linux
  also what left its process group. So it is when this process is killed: see command_guard.py.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from blackboard.client.cancellation import finish
from blackboard.errors import CommandStopped, FileRefused, InvalidRequest
from blackboard.limits import WORKSPACE_BYTES_MAX
from blackboard.signals import send_signal
from blackboard.units import Milliseconds

_GUARD: Final = Path(__file__).with_name("command_guard.py")
_CHUNK_BYTES: Final = 65_536
_STATUS_BYTES: Final = 4_096
_END_S: Final = 10.0
"""What a guard may take to kill what it guards, before it is killed, too."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended: its exit code (-9: by signal 9), and what it printed, as UTF-8, in which
    other bytes are replaced."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class CommandOrder:
    """What is run, in which environment; and how long it may take and print. Errors:
    InvalidRequest."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    timeout_ms: Milliseconds
    output_bytes_max: int

    def __post_init__(self) -> None:
        texts: list[Any] = [*self.argv, *self.environment, *self.environment.values()]
        if isinstance(self.argv, str) or not self.argv:
            raise InvalidRequest("argv", "a command is a list of arguments, the program first")
        if not all(isinstance(text, str) and "\0" not in text for text in texts):
            raise InvalidRequest("argv", "arguments and environment are texts without NUL")

    def line(self, directory: Path) -> bytes:
        """What the guard gets."""
        order = {"argv": [*self.argv], "environment": dict(self.environment)}
        more = {"directory": str(directory), "file_bytes_max": WORKSPACE_BYTES_MAX}
        return json.dumps(order | more).encode() + b"\n"


def default_environment() -> dict[str, str]:
    """Where programs are, and nothing else of this process: its tokens are not the command's."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}


async def run_command(order: CommandOrder, directory: Path, lock: int) -> CommandResult:
    """Run a command in a directory, to its end, while `lock` is kept.

    Errors: CommandStopped after `timeout_ms`, or more output than it may print; FileRefused when it
    cannot be started. Cancellation: it is stopped.
    """
    try:
        told, tells = os.pipe()
    except OSError as error:  # this process has no descriptors left
        raise FileRefused(order.argv[0], error.strerror or str(error)) from error
    try:
        guard = await asyncio.create_subprocess_exec(
            # Isolated, and without site-packages: nothing else is loaded, and it starts quickly.
            *(sys.executable, "-I", "-S", str(_GUARD), str(tells)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # The guard inherits the lock: if this process is killed, nobody works in the directory
            # before the guard has ended the command.
            pass_fds=(tells, lock),
            # Ctrl-C in a terminal must not end the guard before what it guards.
            start_new_session=True,
        )
    except OSError as error:
        os.close(told)
        raise FileRefused(order.argv[0], error.strerror or str(error)) from error
    except BaseException:
        os.close(told)
        raise
    finally:
        os.close(tells)
    running = _RunningCommand(guard, told, order)
    try:
        async with asyncio.timeout(order.timeout_ms / 1000):
            return await running.result(directory)
    except TimeoutError:
        raise CommandStopped(order.argv[0], "timeout", order.timeout_ms) from None
    finally:
        # Milliseconds for the two waits of `end`.
        await finish(running.end(), round(2_000 * _END_S))


class _RunningCommand:
    """A command that runs below its guard."""

    def __init__(self, guard: asyncio.subprocess.Process, told: int, order: CommandOrder) -> None:
        self._guard = guard
        self._order = order
        self._printed = 0
        self._status = _Status(told)
        self._reading = asyncio.create_task(self._texts())

    async def result(self, directory: Path) -> CommandResult:
        """How it ended. Errors: CommandStopped, FileRefused."""
        assert self._guard.stdin is not None
        with contextlib.suppress(ConnectionError):  # the guard was killed: it has told nothing
            self._guard.stdin.write(self._order.line(directory))
            await self._guard.stdin.drain()
        over = self._status.over
        either: list[asyncio.Future[Any]] = [self._reading, over]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        # Reading ends first if the command printed too much: it is stopped while it still runs.
        if self._reading.done():
            await self._printed_texts()
        # Not `await over`: a cancellation would cancel it, and `end` still waits for it.
        await asyncio.wait([over])
        said, program = self._status.said, self._order.argv[0]
        if "error" in said:
            raise FileRefused(program, str(said["error"]))
        if "exit_code" not in said:
            raise CommandStopped(program, "killed", 0)
        # It may have ended before all that it printed was read.
        return CommandResult(said["exit_code"], *await self._printed_texts())

    async def _printed_texts(self) -> tuple[str, str]:
        """What it printed. Errors: CommandStopped."""
        try:
            return await self._reading
        except ExceptionGroup as error:
            raise error.exceptions[0] from None

    async def _texts(self) -> tuple[str, str]:
        """What it prints. Errors: CommandStopped."""
        async with asyncio.TaskGroup() as tasks:
            out = tasks.create_task(self._text(self._guard.stdout))
            error = tasks.create_task(self._text(self._guard.stderr))
        return out.result(), error.result()

    async def _text(self, stream: asyncio.StreamReader | None) -> str:
        assert stream is not None
        found = bytearray()
        maximum = self._order.output_bytes_max
        while chunk := await stream.read(_CHUNK_BYTES):
            self._printed += len(chunk)
            if self._printed > maximum:
                raise CommandStopped(self._order.argv[0], "output", maximum)
            found += chunk
        return found.decode(errors="replace")

    async def end(self) -> None:
        """Let the guard kill what still runs, and wait for its end."""
        assert self._guard.stdin is not None
        # The end of its input tells the guard to kill what still runs.
        self._guard.stdin.close()
        try:
            await asyncio.wait([self._status.over], timeout=_END_S)
            if not {"exit_code", "error"} & self._status.said.keys():
                self._kill()
        finally:
            self._status.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._drain()
        # A pipe stays open while its end comes late. The class of processes cannot close it.
        cast(Any, self._guard)._transport.close()
        for _ in range(2):  # the pipes are closed in the next turn
            await asyncio.sleep(0)

    def _kill(self) -> None:
        """The guard did not do its work: somebody killed or stopped it."""
        send_signal(self._guard, signal.SIGKILL)
        if "pid" in self._status.said:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._status.said["pid"], signal.SIGKILL)

    async def _drain(self) -> None:
        """Read to the end, so that no pipe is left open."""
        for stream in (self._guard.stdout, self._guard.stderr):
            while stream is not None and await stream.read(_CHUNK_BYTES):
                pass
        await self._guard.wait()


class _Status:
    """What a guard tells, until the end of its pipe, which is that of the guard: nobody inherits
    it."""

    def __init__(self, told: int) -> None:
        self.said: dict[str, Any] = {}
        self._told = told
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(told, False)
        self._loop.add_reader(told, self._read)

    def _read(self) -> None:
        data = os.read(self._told, _STATUS_BYTES)
        for line in data.splitlines():  # each was written at once
            self.said |= json.loads(line)
        if not data:
            self._loop.remove_reader(self._told)
            self.over.set_result(None)

    def close(self) -> None:
        """Listen no more."""
        self._loop.remove_reader(self._told)
        os.close(self._told)
