"""Blocks that hold leases, interrupted wherever anything waits: entering, inside, leaving.

Every task of a story is counted as it suspends; at its n-th suspension, for every n until the story
ends by itself, the task of the block is cancelled, or all its leases are lost. Afterwards nothing
may be left: no lease, no fence that travels, no keeper, no cancellation that nobody asked for.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest

import blackboard
from blackboard import Board
from blackboard.client.leases.lock import Keeper
from blackboard.client.writer import fences_of
from blackboard.core.commit import Op, Put
from blackboard.errors import LeaseLost
from blackboard.wire.codec import encode_value

HOUR_MS = 3_600_000
POINTS_MAX = 2_000
"""More than any story here has: one that does not end is a failure."""
Body = Callable[[Board], Awaitable[None]]
Story = Callable[[Board, Body], Coroutine[Any, Any, None]]


class OwnError(Exception):
    """What the body of a block raises by itself."""


@dataclass
class Interruption:
    """Carries `act` out at suspension number `point` of whatever runs."""

    point: int
    act: Callable[[], None]
    seen: int = 0

    def suspended(self) -> None:
        """A task has just suspended."""
        self.seen += 1
        if self.seen == self.point:
            asyncio.get_running_loop().call_soon(self.act)


class Counted:
    """Awaits a coroutine, and says whenever it suspends."""

    def __init__(self, work: Coroutine[Any, Any, Any], counter: Interruption) -> None:
        self._work = work
        self._counter = counter

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            try:
                waits = resume(value)
            except StopIteration as end:
                return end.value
            self._counter.suspended()
            try:
                resume, value = self._work.send, (yield waits)
            except BaseException as error:  # noqa: BLE001 - handed on
                resume, value = self._work.throw, error


@contextmanager
def counting(counter: Interruption) -> Iterator[None]:
    """Count the suspensions of all tasks that begin in here."""
    loop = asyncio.get_running_loop()

    async def counted(work: Coroutine[Any, Any, Any]) -> Any:
        return await Counted(work, counter)

    def factory(loop: Any, work: Any, **options: Any) -> Any:
        return asyncio.Task(counted(work), loop=loop, **options)

    loop.set_task_factory(factory)
    try:
        yield
    finally:
        loop.set_task_factory(None)


@dataclass
class Trial:
    """One run of a story with one interruption."""

    story: Callable[[], Coroutine[Any, Any, None]]
    board: Board
    keepers: list[Keeper]
    interrupted: bool = False
    """Whether the point was reached before the story ended, and there was something to do."""
    error: BaseException | None = None
    cancelling: int = -1
    fences: tuple[Any, ...] = ()

    async def run(self, point: int, how: str) -> None:
        """Let the story run, and note how it ended."""
        ended = asyncio.Event()
        task: asyncio.Task[None] | None = None

        def act() -> None:
            assert task is not None
            self.interrupted = not ended.is_set()
            if how == "cancel":
                task.cancel()
            else:
                for keeper in self.keepers:
                    keeper.lose("it was lost just now")

        with counting(Interruption(point, act)):
            task = asyncio.create_task(self._told(ended))
            await asyncio.wait([task])

    async def _told(self, ended: asyncio.Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await self.story()
        except BaseException as error:  # noqa: BLE001 - what came out is the point
            self.error = error
        self.cancelling = task.cancelling()
        writer = self.board._writer
        self.fences = fences_of(writer.link, writer.board)
        ended.set()

    def expected(self, how: str, body: Body) -> type | tuple[type, ...]:
        """What may come out of the story."""
        own = OwnError if body is raises else type(None)
        if not self.interrupted:
            return own
        return asyncio.CancelledError if how == "cancel" else (LeaseLost, own)


# --- the stories ----------------------------------------------------------------------------------


async def _delivered() -> list[Op]:
    await anyio.lowlevel.checkpoint()
    return [Put("private/ann/memory", encode_value("thought"))]


async def lock(board: Board, body: Body) -> None:
    """Two keys at once."""
    async with board.lock("public/a", "public/b", ttl_ms=HOUR_MS):
        await body(board)


async def attach(board: Board, body: Body) -> None:
    """An identity."""
    async with board.attach(ttl_ms=HOUR_MS) as me:
        await body(me.board)


async def attach_and_deliver(board: Board, body: Body) -> None:
    """An identity, and something that a checkpoint would be brought."""
    async with board.attach(ttl_ms=HOUR_MS, deliver=_delivered) as me:
        await body(me.board)


async def claim(board: Board, body: Body) -> None:
    """A task; it is done, or returned."""
    async with board.claim("public/tasks/*", ttl_ms=HOUR_MS, timeout_ms=0) as task:
        task.put("public/done", 1)
        await body(board)


async def nested(board: Board, body: Body) -> None:
    """A lock within an identity."""
    async with (
        board.attach(ttl_ms=HOUR_MS, deliver=_delivered) as me,
        me.board.lock("public/a", ttl_ms=HOUR_MS),
    ):
        await body(me.board)


async def ends_well(board: Board) -> None:
    """What is done in a block."""
    await board.put("public/x", 1)


async def raises(board: Board) -> None:
    """A block that ends by an error of its own."""
    await board.put("public/x", 1)
    raise OwnError


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board, as ann."""
    async with blackboard.open(tmp_path, level="memory", agent="ann") as client:
        yield client.board("main")


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> list[Keeper]:
    """All keepers that began."""
    found: list[Keeper] = []
    start = Keeper.start

    def noted(keeper: Keeper, sent_s: float) -> None:
        start(keeper, sent_s)
        found.append(keeper)

    monkeypatch.setattr(Keeper, "start", noted)
    return found


@pytest.mark.parametrize("body", [ends_well, raises])
@pytest.mark.parametrize("story", [lock, attach, attach_and_deliver, claim, nested])
@pytest.mark.parametrize("how", ["cancel", "lose"])
async def test_nothing_is_left_wherever_a_block_is_interrupted(
    board: Board, keepers: list[Keeper], story: Story, body: Body, how: str
) -> None:
    """A cancellation comes out as one; a loss as LeaseLost, or as the error of the block."""
    for point in range(1, POINTS_MAX):
        await board.put("public/tasks/1", "work")
        keepers.clear()
        trial = Trial(lambda: story(board, body), board, keepers)
        await trial.run(point, how)
        where = (point, trial.error)
        assert isinstance(trial.error, trial.expected(how, body)), where
        assert trial.cancelling == (1 if trial.interrupted and how == "cancel" else 0), where
        assert trial.fences == (), where
        assert await board.leases() == (), where
        assert not [task for task in asyncio.all_tasks() if "keeper" in task.get_name()], where
        if not trial.interrupted:
            return
    raise AssertionError("a story has no end")
