"""The process that writes pages into an archive in a file, for `Appender` (process.py).

On its standard input it gets the id of the service's process, a `WriteOrder`, and then pages, each
in a frame, and answers each. It ends with its input, or when the service is killed. Signals that a
supervisor sends to both of them are left to the service, and so is everything that is to be logged.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, msgpack

from blackboard.archive.appender.pages import ArchivePage, Pages
from blackboard.archive.connection import cause_of, url_of_file
from blackboard.archive.database import DISTRUSTED, FORMAT, Database
from blackboard.core.checkpoints import Mark
from blackboard.engines.sqlite.suspect import is_failed_sync
from blackboard.errors import BlackboardError, Unavailable
from blackboard.units import Milliseconds

_LENGTH_BYTES: Final = 4
_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""A page of the log and its largest commit have an eighth of it."""
_PR_SET_PDEATHSIG: Final = 1
_ANSWERS_TO: Final = 1
_ERRORS_TO: Final = 2
_DESCRIPTORS: Final = 65_536

Identity = tuple[int, int]
"""Of a file: its device and its number there."""
_NO_FILE: Final = (0, 0)


def identity_of(path: Path) -> Identity:
    """Which file is at `path`; _NO_FILE if there is none."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return _NO_FILE


def _written_ns() -> int:
    """When the newest module of this package was written."""
    with contextlib.suppress(OSError):
        modules = Path(__file__).resolve().parents[2].rglob("*.py")
        return max((module.stat().st_mtime_ns for module in modules), default=0)
    return 0


class WriteOrder(Struct, frozen=True):
    """What is written to: this file, if it is still the same."""

    path: str
    identity: Identity
    timeout_ms: Milliseconds


class PageAnswer(Struct, frozen=True):
    """The new position; or an error with its code and its fields, and whether a sync failed; or why
    the process ends. To an order: nothing, or an error."""

    mark: Mark | None = None
    error: dict[str, Any] | None = None
    is_suspect: bool = False
    failure: str = ""
    version: tuple[int, int] | None = None


def hello() -> PageAnswer:
    """The first answer. A service that was started before an upgrade expects another one."""
    return PageAnswer(version=(FORMAT, _written_ns()))


ANSWERS: Final = msgpack.Decoder(PageAnswer)
_ORDERS: Final = msgpack.Decoder(WriteOrder)
_PAGES: Final = msgpack.Decoder(tuple[bool, ArchivePage])
"""Whether to forget what earlier pages left in memory, and a page."""


def frame_of(message: bytes) -> bytes:
    """`message` behind its length."""
    return len(message).to_bytes(_LENGTH_BYTES, "big") + message


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next message. Errors: EOFError at the end, also within a frame, or if it is none."""
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if size > _FRAME_BYTES_MAX:
        raise EOFError(f"a frame of {size:,} bytes")
    return await reader.readexactly(size)


async def _work(answers: int) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _end_with(int(await read_frame(reader)))
    _send(answers, hello())
    order = _ORDERS.decode(await read_frame(reader))
    try:
        database = await _opened(order)
    except BlackboardError as error:
        _send(answers, _refusal(error))
        return
    _send(answers, PageAnswer())
    pages = Pages(database)
    while True:  # until there is no frame: the database is not closed, see `main`
        _send(answers, await _answer(pages, await read_frame(reader)))


async def _opened(order: WriteOrder) -> Database:
    """Errors: Unavailable, also if the file is another one than the service has open."""
    path = Path(order.path)
    if identity_of(path) != order.identity or order.identity == _NO_FILE:
        raise Unavailable("archive", f"{path} is not the file that the service has open")
    return await Database.open(url_of_file(path), order.timeout_ms)


async def _answer(pages: Pages, message: bytes) -> PageAnswer:
    forgets, page = _PAGES.decode(message)
    if forgets:
        pages.forget()
    try:
        return PageAnswer(mark=await pages.write(page))
    except BlackboardError as error:
        return _refusal(error)


def _refusal(error: BlackboardError) -> PageAnswer:
    failed = is_failed_sync(cause_of(error))
    is_suspect = failed or (isinstance(error, Unavailable) and error.reason == DISTRUSTED)
    return PageAnswer(error={"code": error.code, "fields": error.fields()}, is_suspect=is_suspect)


def _send(answers: int, answer: PageAnswer) -> None:
    left = memoryview(frame_of(msgpack.encode(answer)))
    while left:
        left = left[os.write(answers, left) :]


def _end_with(parent: int) -> None:
    """End this process when that one is killed. Elsewhere than on Linux, only its input ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was killed before that call
        raise EOFError


def main() -> None:
    """Do as ordered, until there is nothing more."""
    logging.getLogger().addHandler(logging.NullHandler())
    # uvloop leaves descriptors of the service open here, such as a pipe of its supervisor.
    os.closerange(_ERRORS_TO + 1, _DESCRIPTORS)
    answers = os.dup(_ANSWERS_TO)
    os.dup2(_ERRORS_TO, _ANSWERS_TO)  # what anybody prints must not look like an answer
    try:
        asyncio.run(_work(answers))
    except (EOFError, BrokenPipeError):
        # As if it was killed. To close the database would copy its journal, out of turn, and nobody
        # would learn of a sync that fails.
        os._exit(0)
    except Exception as error:  # noqa: BLE001 - the service logs it, and writes by itself
        with contextlib.suppress(BrokenPipeError):
            _send(answers, PageAnswer(failure=f"{type(error).__name__}: {error}"))
        os._exit(1)
