"""What a simulated run takes from its seed instead of from the machine: chance, clocks, threads.

Inside `nature(seed, loop)` the standard library's randomness is seeded, its clocks show the loop's
time, and aiosqlite does its work on the loop. All of it is put back at the end.
"""

import asyncio
import contextlib
import gc
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import aiosqlite.core
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.archive.database import Database
from blackboard.server import commit_queue
from blackboard.units import Milliseconds
from tests.simulation.loop import SimulatedLoop

BEGAN_MS: Final = 1_700_000_000_000
"""The date on which every run begins."""
_CALL_S: Final = 0.0002


@contextlib.contextmanager
def nature(seed: int, loop: SimulatedLoop) -> Iterator[None]:
    """Let everything in this block come from `seed` and happen in `loop`."""
    dice = random.Random(f"nature {seed}")

    def now_ns() -> int:
        return int((BEGAN_MS / 1000 + loop.time()) * 1e9)

    async def now_ms(_: Database, __: AsyncConnection) -> Milliseconds:
        return now_ns() // 1_000_000

    state = random.getstate()
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, state)
        random.seed(f"library {seed}")
        for module, name, value in (
            (os, "urandom", _Streams(seed)),
            (random, "_urandom", dice.randbytes),  # which `secrets` and SystemRandom call
            (time, "time", lambda: now_ns() / 1e9),
            (time, "time_ns", now_ns),
            (time, "monotonic", loop.time),
            (time, "monotonic_ns", lambda: int(loop.time() * 1e9)),
            (aiosqlite.core, "Thread", _NoThread),
            (aiosqlite.core, "SimpleQueue", _Inline),
            (Database, "now_ms", now_ms),
            (commit_queue, "_SALTS", deque()),
        ):
            stack.enter_context(replaced(module, name, value))
        stack.enter_context(_no_collection())
        yield


@contextlib.contextmanager
def replaced(place: Any, name: str, value: object) -> Iterator[None]:
    """Let `place.name` be `value` in this block."""
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Finalizers run tasks: when the collector runs depends on everything before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Streams:
    """`os.urandom`, with a stream of its own for each size.

    A library that draws a name once, in the first run of a process, would else move what uuid4
    draws in that run, and not in the second one.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._dice: dict[int, random.Random] = {}

    def __call__(self, size: int) -> bytes:
        dice = self._dice.setdefault(size, random.Random(f"{size} bytes {self._seed}"))
        return dice.randbytes(size)


class _NoThread:
    def __init__(self, target: object, args: object) -> None:
        pass

    def start(self) -> None:
        pass


class _Inline:
    """The queue to the thread of an aiosqlite connection, without the thread."""

    def __class_getitem__(cls, _: object) -> type["_Inline"]:
        return cls

    def put_nowait(self, call: tuple["asyncio.Future[Any] | None", Callable[[], Any]]) -> None:
        future, function = call
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - as the thread does
            if future is not None:
                _later(future, aiosqlite.core.set_exception, error)
            return
        if future is not None:
            _later(future, aiosqlite.core.set_result, result)


def _later(future: "asyncio.Future[Any]", told: Callable[..., None], what: object) -> None:
    """A waiting call ends after a while, so repeated calls let time pass."""
    future.get_loop().call_later(_CALL_S, told, future, what)
