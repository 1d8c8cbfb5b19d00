"""The service's side: a process that writes pages into the archive while there is much to write.

To write a commit into the archive takes three quarters of the processor time that it takes to carry
it out, and Python computes on one core. In a process of its own it takes none from commits.

Invariants
- The process writes one page at a time, in the service's turn to write (`Database.turn`). So both
  wait for each other in order, and not in SQLite.
- Whatever happens to the process, a page was written whole or not at all, and the archiver finds
  out which. Until the next process is there, the service writes by itself.
- The process ends with its service, however that ends: on Linux at once, elsewhere after its page.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import DecodeError, msgpack

from blackboard.archive.appender.pages import ArchivePage
from blackboard.archive.appender.worker import (
    ANSWERS,
    PageAnswer,
    WriteOrder,
    frame_of,
    hello,
    identity_of,
    read_frame,
)
from blackboard.client.cancellation import finish
from blackboard.core.checkpoints import Mark
from blackboard.engines.disk import SyncError
from blackboard.errors import BlackboardError, Unavailable
from blackboard.limits import Limits
from blackboard.signals import send_signal
from blackboard.wire.errors import read_error

Turn = Callable[[], contextlib.AbstractAsyncContextManager[None]]
"""As `Database.turn`."""

log = logging.getLogger(__name__)
_PROGRAM: Final = (
    "import signal, sys;"
    "[signal.signal(number, signal.SIG_IGN) for number in (1, 2, 15)];"
    "sys.path[:] = sys.argv[1:];"
    "from blackboard.archive.appender.worker import main; main()"
)
"""It ignores signals from the start, and finds its modules where this process does."""
_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""What it gets of the service's environment: nothing secret."""
_MORE_S: Final = 1.0
"""Time beyond ENGINE_TIMEOUT_MS for which an answer is waited for. Meanwhile nobody else writes."""
_IDLE_S: Final = 600.0
"""Time without a large page after which the process ends: it takes memory, but starting it takes
half a second of a core."""
_RETRY_S: Final = 60.0
"""Time after a failure in which no process is started."""
_END_MS: Final = 5_000
"""Time that it has to end by itself."""


class Appender:
    """A process that is started when there is much to write to an archive in a file, and ends when
    there is not. It opens the file in a `turn`."""

    def __init__(self, file: str, limits: Limits, turn: Turn) -> None:
        timeout_ms, path = limits.engine.engine_timeout_ms, Path(file).absolute()
        self._order = WriteOrder(str(path), identity_of(path), timeout_ms)
        self._hello = hello()
        self._timeout_s = timeout_ms / 1000 + _MORE_S
        self._entries_min = limits.archive.archive_process_entries
        self._turn = turn
        self._process: Process | None = None
        self._life: asyncio.Task[None] | None = None
        self._busy_s = 0.0  # when the last large page came, by the loop's clock
        self._rests_until_s = 0.0
        self._forgets = False
        self._idle_s = _IDLE_S
        self._program = _PROGRAM
        self._is_closed = os.name != "posix" or not sys.executable

    def note(self, entries: int) -> None:
        """So many entries are to be written at once. Many of them start the process, if there is
        none; it takes later pages."""
        if entries >= self._entries_min:
            self._busy_s = now_s = asyncio.get_running_loop().time()
            if self._life is None and now_s >= self._rests_until_s and not self._is_closed:
                self._life = asyncio.create_task(self._live(), name="process of the archive")

    def takes(self, page: ArchivePage) -> bool:
        """Whether `write` is to write this page."""
        return self.has_process and page.is_ordinary

    @property
    def has_process(self) -> bool:
        """Whether there is a process that takes pages."""
        return self._process is not None

    async def write(self, page: ArchivePage) -> Mark:
        """As `Archive.append`, for a page that it `takes`. One call at a time, in a turn.

        Errors: also Unavailable when the process ended or did not answer. Whether the page was
        written is not known then. Cancellation: waits up to FINISH_TIMEOUT_MS for the answer.
        """
        assert self._process is not None
        message = msgpack.encode((self._forgets, page))
        self._forgets = False
        try:
            answer = await finish(self._answer(self._process, message))
        except (OSError, EOFError) as error:
            reason = f"the process that writes it has failed: {error}"
            raise Unavailable("archive", reason) from error
        _check(answer)
        assert answer.mark is not None
        return answer.mark

    async def _answer(self, process: Process, message: bytes) -> PageAnswer:
        try:
            return await _ask(process, message, self._timeout_s)
        except BaseException:
            self._process = None  # it was killed: nobody else is to wait for it
            raise

    def forget(self) -> None:
        """Have everything read again for the next page: archived values were changed."""
        self._forgets = True

    async def aclose(self) -> None:
        """End the process, if there is one."""
        self._is_closed = True
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])

    async def _live(self) -> None:
        """Have a process until it is idle, or until it fails."""
        try:
            await self._until_idle(await self._start())
        except Exception as error:
            foreseen = isinstance(error, OSError | EOFError | BlackboardError)
            text = "no process writes the archive, which takes time from commits: %s"
            log.warning(text, error, exc_info=None if foreseen else error)
            self._rests_until_s = asyncio.get_running_loop().time() + _RETRY_S
        finally:
            self._life = None

    async def _until_idle(self, process: Process) -> None:
        """Let `process` take pages. It has ended afterwards. Errors: EOFError if it ends before."""
        ended, loop = asyncio.ensure_future(process.wait()), asyncio.get_running_loop()
        self._process = process
        try:
            while (left_s := self._busy_s + self._idle_s - loop.time()) > 0:
                if (await asyncio.wait([ended], timeout=left_s))[0]:
                    raise EOFError(f"it ended with {ended.result()}")
        finally:
            self._process = None
            await finish(_end(process), 2 * _END_MS)

    async def _start(self) -> Process:
        async with self._turn():  # it fails if nothing can be written
            pass
        paths = [path or str(Path.cwd()) for path in sys.path]
        known = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        order = msgpack.encode(self._order)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-B", "-c", self._program, *paths),
            stdin=PIPE,
            stdout=PIPE,
            env=known,
            # The signals of a terminal are for the service.
            start_new_session=True,
        )
        try:
            said = await _ask(process, str(os.getpid()).encode(), self._timeout_s)
            if said != self._hello:
                raise OSError("another version of this package was installed meanwhile")
            async with self._turn():
                _check(await _ask(process, order, self._timeout_s))
        except BaseException:
            await finish(_end(process), 2 * _END_MS)
            raise
        return process


def _check(answer: PageAnswer) -> None:
    """Raise the error of an answer, as `Database.turn` wants it if a sync failed."""
    if answer.error is not None:
        refusal = read_error({"data": answer.error})
        raise refusal from (SyncError(str(refusal)) if answer.is_suspect else None)


async def _ask(process: Process, message: bytes, timeout_s: float) -> PageAnswer:
    """Give the process a message, and read its answer. If that fails, the process is killed,
    because a later answer would be taken for that to another message.

    Errors: TimeoutError, OSError, EOFError.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            process.stdin.write(frame_of(message))
            await process.stdin.drain()
            answer = ANSWERS.decode(await read_frame(process.stdout))
            if answer.failure:
                raise EOFError(answer.failure)
            return answer
    except BaseException as error:
        send_signal(process, signal.SIGKILL)
        if isinstance(error, TimeoutError):
            raise TimeoutError("it does not answer") from error
        if isinstance(error, asyncio.IncompleteReadError):
            raise EOFError("it has ended") from error
        # It is not our program that answers; or the pipe is closed, as uvloop puts it.
        if isinstance(error, DecodeError | RuntimeError):
            raise EOFError(str(error)) from error
        raise


async def _end(process: Process) -> None:
    """Let the process write to its end what it was given, and end."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_END_MS / 1000):
            await process.wait()
    except TimeoutError:
        send_signal(process, signal.SIGKILL)
        await process.wait()
