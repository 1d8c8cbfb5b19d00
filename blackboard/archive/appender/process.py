"""The service's side: a process that writes pages into the archive while there is much to write.

To write a commit into the archive takes about as much processor time as to carry it out, and
Python computes on one core. In a process of its own it takes none from commits.

Invariants
- The process writes one page at a time, in the service's turn to write (`Database.turn`). So both
  wait for each other in order, and not in SQLite.
- Whatever happens to the process, a page was written whole or not at all, and the archiver finds
  out which. Until the next process is there, the service writes by itself.
- The process ends when its service does, however that ends.
"""

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Final

from msgspec import msgpack

from blackboard.archive.appender.pages import ArchivePage
from blackboard.archive.appender.worker import (
    ANSWERS,
    PageAnswer,
    WriteOrder,
    frame_of,
    read_frame,
)
from blackboard.client.cancellation import finish
from blackboard.core.checkpoints import Mark
from blackboard.errors import Unavailable
from blackboard.limits import Limits
from blackboard.units import Milliseconds
from blackboard.wire.errors import read_error

log = logging.getLogger(__name__)
_WORKER: Final = "blackboard.archive.appender.worker"
_PACKAGES: Final = Path(__file__).resolve().parents[3]
_TIMEOUTS: Final = 4
"""Times ENGINE_TIMEOUT_MS for which an answer is waited for: a page takes milliseconds, but a disk
may be slow."""
_IDLE_S: Final = 60.0
"""Time without a large page after which the process ends: it takes memory."""
_RETRY_S: Final = 60.0
"""Time after a failure in which no process is started."""
_END_MS: Final = 5_000
"""Time that it has to end by itself."""


class Appender:
    """A process that is started when there is much to write, and ends when there is not."""

    def __init__(self, url: str, limits: Limits) -> None:
        self._url = url
        self._timeout_ms = limits.engine.engine_timeout_ms
        self._entries_min = limits.archive.archive_process_entries
        self._process: Process | None = None
        self._life: asyncio.Task[None] | None = None
        self._busy_s = 0.0  # when the last large page came, by the loop's clock
        self._rests_until_s = 0.0
        self._forgets = False
        self._idle_s = _IDLE_S
        self._is_closed = os.name != "posix" or not sys.executable

    def takes(self, page: ArchivePage) -> bool:
        """Whether `write` is to write this page. A large one starts the process, if there is none,
        which takes later ones."""
        now_s = asyncio.get_running_loop().time()
        if len(page.entries) >= self._entries_min:
            self._busy_s = now_s
            if self._life is None and now_s >= self._rests_until_s and not self._is_closed:
                self._life = asyncio.create_task(self._live(), name="process of the archive")
        return self._process is not None and page.is_ordinary

    async def write(self, page: ArchivePage) -> Mark:
        """As `Archive.append`. One call at a time, after `takes`.

        Errors: also Unavailable when the process ended or did not answer. Whether the page was
        written is not known then. Cancellation: waits for the answer.
        """
        process, message = self._process, msgpack.encode((self._forgets, page))
        self._forgets = False
        try:
            if process is None:  # it ended while this page waited for its turn
                raise EOFError
            timeout_ms = _TIMEOUTS * self._timeout_ms
            answer = await finish(_ask(process, message, timeout_ms), 2 * timeout_ms)
        except (TimeoutError, OSError, EOFError) as error:
            how = "does not answer" if isinstance(error, TimeoutError) else "has ended"
            raise Unavailable("archive", f"the process that writes it {how}") from error
        if answer.mark is None:
            raise read_error({"data": answer.error})
        return answer.mark

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
        """Start the process, and end it when it is idle. Until then it takes pages."""
        process: Process | None = None
        loop = asyncio.get_running_loop()
        try:
            process = self._process = await self._start()
            ended = asyncio.ensure_future(process.wait())
            while (left_s := self._busy_s + self._idle_s - loop.time()) > 0:
                if (await asyncio.wait([ended], timeout=left_s))[0]:
                    raise EOFError(f"it ended with {ended.result()}")
        except (TimeoutError, OSError, EOFError) as error:
            text = "no process writes the archive, which takes time from commits: %s"
            log.warning(text, str(error) or type(error).__name__)
            self._rests_until_s = loop.time() + _RETRY_S
        finally:
            self._process = self._life = None
            if process is not None:
                await finish(_end(process), 2 * _END_MS)

    async def _start(self) -> Process:
        # It finds this package as this process does, and no other beside the current directory.
        paths = [str(_PACKAGES), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = (sys.executable, "-P", "-m", _WORKER)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, env=environment
        )
        order = msgpack.encode(WriteOrder(self._url, self._timeout_ms, os.getpid()))
        try:
            answer = await _ask(process, order, _TIMEOUTS * self._timeout_ms)
            if answer.error is not None:
                raise OSError(str(read_error({"data": answer.error})))
        except BaseException:
            await finish(_end(process), 2 * _END_MS)
            raise
        return process


async def _ask(process: Process, message: bytes, timeout_ms: Milliseconds) -> PageAnswer:
    """Give the process a message, and read its answer. If that fails, the process is killed,
    because a later answer would be taken for that to another message.

    Errors: TimeoutError, OSError, EOFError.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            process.stdin.write(frame_of(message))
            await process.stdin.drain()
            return ANSWERS.decode(await read_frame(process.stdout))
    except BaseException:
        _kill(process)
        raise


async def _end(process: Process) -> None:
    """Let the process write to its end what it was given, and end."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_END_MS / 1000):
            await process.wait()
    except TimeoutError:
        _kill(process)
        await process.wait()


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        process.kill()
