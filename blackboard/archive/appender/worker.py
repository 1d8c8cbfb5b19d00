"""The process that writes pages into an archive in a file: `python -m` this module.

On its standard input it gets a `WriteOrder` and then pages, each in a frame, and answers each. It
ends with its input, or when the service that started it is killed. Signals that a terminal or a
supervisor sends to both of them are left to that service.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from typing import Any, Final

from msgspec import Struct, msgpack

from blackboard.archive.appender.pages import ArchivePage, Pages
from blackboard.archive.database import Database
from blackboard.core.checkpoints import Mark
from blackboard.errors import BlackboardError, Unavailable
from blackboard.units import Milliseconds

log = logging.getLogger(__name__)
_LENGTH_BYTES: Final = 4
_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""A page of the log and its largest commit have an eighth of it."""
_PR_SET_PDEATHSIG: Final = 1
_ANSWERS_TO: Final = 1
_ERRORS_TO: Final = 2


class WriteOrder(Struct, frozen=True):
    """What is written to, on behalf of the process with this id."""

    url: str
    timeout_ms: Milliseconds
    parent: int


class PageAnswer(Struct, frozen=True):
    """The new position, or an error with its code and its fields. Neither: it is ready."""

    mark: Mark | None = None
    error: dict[str, Any] | None = None


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
    order = _ORDERS.decode(await read_frame(reader))
    _end_with(order.parent)
    try:
        database = await Database.open(order.url, order.timeout_ms)
    except BlackboardError as error:
        _send(answers, _refusal(error))
        return
    try:
        _send(answers, PageAnswer())
        pages = Pages(database)
        while True:
            _send(answers, await _answer(pages, await read_frame(reader)))
    finally:
        await database.aclose()


async def _answer(pages: Pages, message: bytes) -> PageAnswer:
    try:
        forgets, page = _PAGES.decode(message)
        if forgets:
            pages.forget()
        return PageAnswer(mark=await pages.write(page))
    except BlackboardError as error:
        return _refusal(error)
    except Exception as error:
        log.exception("a page cannot be written")
        return _refusal(Unavailable("archive", f"{type(error).__name__}: {error}"))


def _refusal(error: BlackboardError) -> PageAnswer:
    return PageAnswer(error={"code": error.code, "fields": error.fields()})


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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    answers = os.dup(_ANSWERS_TO)
    os.dup2(_ERRORS_TO, _ANSWERS_TO)  # what anybody prints must not look like an answer
    with contextlib.suppress(EOFError, BrokenPipeError):
        asyncio.run(_work(answers))


if __name__ == "__main__":
    main()
