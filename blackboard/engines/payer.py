"""Charges processor time, also that of threads, to the account behind a request.

A request sets its payer while it runs (`paid_by`). Code that works for it looks the payer up here:
threads report the time that they took, and long operations let other accounts run in between.
Without a payer (the service's own tasks, an embedded board) both do nothing.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Final, Protocol, TypeVar

T = TypeVar("T")


class Payer(Protocol):
    """The account behind a request."""

    def charge(self, spent_ns: int) -> None:
        """Charge processor time. Must be called in the thread of the event loop."""

    async def turn(self) -> None:
        """Wait, for a bounded time, if it is another account's turn."""


_PAYER: Final[ContextVar[Payer | None]] = ContextVar("payer", default=None)


@contextlib.contextmanager
def paid_by(payer: Payer) -> Iterator[None]:
    """Charge what this task does in the block to `payer`."""
    token = _PAYER.set(payer)
    try:
        yield
    finally:
        _PAYER.reset(token)


def payer() -> Payer | None:
    """The payer of this task, if it has one."""
    return _PAYER.get()


async def turn() -> None:
    """Between two steps of a long request: see `Payer.turn`."""
    found = _PAYER.get()
    if found is not None:
        await found.turn()


def timed(work: Callable[[], T], charge: Callable[[int], None]) -> T:
    """Do `work`; `charge` gets the processor time of this thread that it took, in nanoseconds,
    whatever becomes of it."""
    began_ns = time.thread_time_ns()
    try:
        return work()
    finally:
        charge(time.thread_time_ns() - began_ns)


def charged(work: Callable[[], T]) -> T:
    """Run `work` in this thread and charge the thread's time to the payer of this task."""
    found = _PAYER.get()
    return work() if found is None else timed(work, found.charge)


def metered(work: Callable[[], T]) -> Callable[[], T]:
    """Wrap `work` for another thread, charged to the payer of this task.

    Cancellation: a payer that no longer waits for the thread is charged all the same, when it is
    done.
    """
    found = _PAYER.get()
    if found is None:
        return work
    # Looked up here, because a thread of an executor does not have the context of this task.
    loop, charge = asyncio.get_running_loop(), found.charge

    def charge_there(spent_ns: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(charge, spent_ns)

    return partial(timed, work, charge_there)
