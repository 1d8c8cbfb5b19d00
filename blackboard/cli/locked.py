"""A command that runs under a lock: signals go through, its exit code comes back.

Invariants
- the command runs only while the lock is held; when the lock is lost, it gets SIGTERM, and is
  killed `KILL_AFTER_S` later.
- Whatever ends this process in an orderly way first ends the command, and then releases the lock.

On a terminal the command stays in the foreground group, where Ctrl-C reaches it directly. Elsewhere
it gets a process group of its own, so that a signal reaches all its children.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio

from blackboard.cli.errors import CommandError, Exit
from blackboard.client.cancellation import finish
from blackboard.client.leases.lock import Lock
from blackboard.core.commit import HeldFence
from blackboard.signals import send_signal

KILL_AFTER_S = 5.0
"""Time that a command has to end after its lock was lost."""
_SIGNAL_BASE = 128  # what shells add to the number of the signal that ended a command
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_FORWARDED = (*_FROM_TERMINAL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def program_of(command: Sequence[str]) -> str:
    """The file that the command names. Errors: CommandError, before any lock is taken."""
    name = command[0]
    found = shutil.which(name)
    if found is not None:
        return found
    fix = "The lock was not taken."
    if os.sep in name and Path(name).exists():
        raise CommandError("not_executable", Exit.NOT_EXECUTABLE, f"{name} cannot be run", fix)
    raise CommandError("not_found", Exit.COMMAND_NOT_FOUND, f"there is no command {name}", fix)


async def run(board: str, lock: Lock, command: Sequence[str]) -> int:
    """Take `lock`, run `command` under it; returns the exit code as a shell would report it.

    Errors: LeaseHeld when waiting took too long; LeaseLost, after the command was ended.
    """
    runner = _Runner(command)
    with anyio.open_signal_receiver(*_FORWARDED) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.forward, signals)
            code = await runner.run(board, lock)
            tasks.cancel_scope.cancel()
    return code


class _Runner:
    """One command, and the signals that it is sent."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._on_terminal = os.isatty(0)
        self._process: asyncio.subprocess.Process | None = None
        self._until_started = anyio.CancelScope()
        """Cancelled by a signal that arrives before the command has started."""
        self._ended_by = 0
        self._is_starting = False
        self._started = anyio.Event()

    async def run(self, board: str, lock: Lock) -> int:
        with self._until_started:
            async with lock:
                code = await self._execute(_environment(board, lock.fences[0]))
            return code if code >= 0 else _SIGNAL_BASE - code
        return _SIGNAL_BASE + self._ended_by

    async def forward(self, signals: AsyncIterator[signal.Signals]) -> None:
        """Forward signals to the command; before it runs, end the wait."""
        async for number in signals:
            if not self._is_starting:
                self._ended_by = number
                self._until_started.cancel()
            elif not (self._on_terminal and number in _FROM_TERMINAL):
                # A terminal has sent those two to the command as well, which is in the same group.
                await self._started.wait()
                self._send(number)

    async def _execute(self, environment: dict[str, str]) -> int:
        # From here on a signal is for the command, also if it comes before there is a process.
        self._is_starting = True
        try:
            await finish(self._start(environment))
            assert self._process is not None
            return await self._process.wait()
        finally:
            if self._process is not None and self._process.returncode is None:
                # Shielded: the lock is released behind this, and only when the command has ended.
                with anyio.CancelScope(shield=True):
                    await self._end(self._process)

    async def _start(self, environment: dict[str, str]) -> None:
        """Start the command. It must not be interrupted, because the process would be lost."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, env=environment, process_group=None if self._on_terminal else 0
            )
        except OSError as error:  # no first line of a script, or one that names no program
            message = f"{self._command[0]} cannot be run: {error.strerror}"
            fix = "The lock was released."
            raise CommandError("not_executable", Exit.NOT_EXECUTABLE, message, fix) from error
        self._started.set()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Terminate it; kill it if it does not end in time."""
        self._send(signal.SIGTERM)
        with anyio.move_on_after(KILL_AFTER_S):
            await process.wait()
        # Also if it has ended: its children in the same group may still run.
        self._send(signal.SIGKILL)
        await process.wait()

    def _send(self, number: int) -> None:
        assert self._process is not None
        # It may have ended by itself between the look and the signal.
        with contextlib.suppress(ProcessLookupError):
            if self._on_terminal:
                send_signal(self._process, number)
            else:
                os.killpg(self._process.pid, number)


def _environment(board: str, fence: HeldFence) -> dict[str, str]:
    """The command's environment: the fence, and the full name of the lease."""
    named = f"{board}:{fence.key}:{fence.holder}:{fence.fence}"
    return os.environ | {"BLACKBOARD_FENCE": str(fence.fence), "BLACKBOARD_LEASE": named}
