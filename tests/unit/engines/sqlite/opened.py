"""An open board of the embedded engine, whose threads work only while they are let."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from blackboard.core.commit import RESTORE, Committed, Epoch, Increment, Put, PutBack
from blackboard.engines.sqlite.board import EmbeddedBoard, Threads
from blackboard.engines.sqlite.file import BoardFile
from blackboard.limits import DEFAULT, Limits
from blackboard.wire.codec import Prepared, prepare
from tests.unit.core.trial import Trial, packed

P = ParamSpec("P")
Result = TypeVar("Result")
NAME = "board"


class Gate(Executor):
    """A thread that writes only while the gate is open; it counts transactions."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.writes = 0
        self._thread = ThreadPoolExecutor(1)

    def submit(
        self, call: Callable[P, Result], /, *args: P.args, **named: P.kwargs
    ) -> "Future[Result]":
        """Run `call` once the gate is open."""

        def wait_and_run() -> Result:
            assert self.open.wait(timeout=30)
            self.writes += 1
            return call(*args, **named)

        return self._thread.submit(wait_and_run)


class Opened:
    """A board over a gate, and commits for it."""

    def __init__(self, path: Path, limits: Limits = DEFAULT) -> None:
        self.gate = Gate()
        self.reading = Gate()
        self.trial = Trial()
        self.file = BoardFile(path, level="memory", limits=limits)
        self.board = EmbeddedBoard(
            NAME,
            file=self.file,
            loaded=self.file.load(NAME),
            threads=Threads(writers=self.gate, readers=self.reading),
            now_ms=lambda: 1_000,
        )

    def step(self, size: int = 1) -> Prepared:
        """A further step that increments a key, with a note of that size."""
        made = self.trial.make(Increment("public/n", 1), Put("public/pad", b"x" * size))
        return prepare(made)

    async def commit(self, count: int = 1) -> None:
        """Commit so many steps, each in a call of its own."""
        for _ in range(count):
            [outcome] = await self.board.commit([self.step()])
            assert isinstance(outcome, Committed)

    def restore(self, count: int, *, follows: int) -> Prepared:
        """A restore that puts so many keys back, computed for that head."""
        epoch = Epoch(2, "second", RESTORE, follows, follows + 1)
        ops = [PutBack(f"public/{number}", packed(number), None) for number in range(count)]
        return prepare(replace(self.trial.make(*ops, agent="bob"), begins=epoch))

    async def log(self, after: int) -> list[int]:
        """The revisions of a page of the log."""
        page = await self.board.log(after, limit=10_000, wait_ms=0)
        return [entry.revision for entry in page.entries]


async def turn() -> None:
    """Let everything run that can run without waiting for a thread."""
    for _ in range(5):
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0)


def broken(_state: object, _entry: object) -> None:
    """A rule that raises."""
    raise ZeroDivisionError


def revision_in(path: Path) -> int:
    """What the file of a closed board holds."""
    file = BoardFile(path, level="memory")
    revision = file.load(NAME).state.revision
    file.abandon()
    return revision
