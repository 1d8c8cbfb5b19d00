"""An event loop in which time passes only when nobody has anything to do.

Everything happens in one thread, in an order that depends on nothing but the program: no real
clock, no thread, no address of an object, no seed of a hash. Callbacks run in the order in which
they were scheduled, as asyncio promises; chance comes from the source of the delays.

Source: the virtual time of async-solipsism and of simloop. Neither fits: the one refuses executors
and `call_soon_threadsafe`, which the embedded engine needs, the other needs Python 3.12.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar

T = TypeVar("T")
Call = Callable[[Callable[..., Any], tuple[Any, ...]], Any]
"""Carries out a call that was meant for a thread."""

owner: contextvars.ContextVar[object] = contextvars.ContextVar("owner", default=None)
"""The simulated process that a task belongs to: tasks inherit it from the task that made them."""

TURNS_MAX: Final = 200_000
"""A run takes some thousands; one that takes so many goes round in circles."""
_RESOLUTION_S: Final = 1e-7


class StuckError(Exception):
    """Nobody has anything to do, now or later, and the run is not over; or it never will be."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Tasks and futures are numbered: sets of them have the same order in every run."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._count = 0
        self._selector = _Passing(self)
        self._clock_resolution = _RESOLUTION_S
        self.turns = 0
        """How often something was due."""
        self.executor = SimulatedExecutor(self)
        self.tasks: dict[int, _Task[Any]] = {}
        """Those that have not ended, by number."""
        self.set_task_factory(_make_task)

    def number(self) -> int:
        """A number that no task or future has."""
        self._count += 1
        return self._count

    def time(self) -> float:
        """Seconds since the run began."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds

    def create_future(self) -> "asyncio.Future[Any]":
        """A numbered future."""
        return _Future(self)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Run `func` later in this very thread, whichever executor is asked for."""
        used = executor if isinstance(executor, SimulatedExecutor) else self.executor
        return asyncio.wrap_future(used.submit(func, *args), loop=self)

    def cancel_tasks_of(self, process: object) -> None:
        """Cancel every task of a simulated process, in the order in which they began."""
        for task in list(self.tasks.values()):
            if task.owner is process:
                task.cancel()

    def _process_events(self, event_list: object) -> None:
        """There is no world outside."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""


class _Passing:
    """Stands where a selector stands: instead of sleeping it lets time pass."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise StuckError("everybody waits, for ever")
        if timeout > 0:
            self._loop.advance(timeout)
        self._loop.turns += 1
        if self._loop.turns > TURNS_MAX:
            raise StuckError(f"it is not over after {TURNS_MAX} turns")
        return []


class _Future(asyncio.Future[T]):
    def __init__(self, loop: SimulatedLoop) -> None:
        self._number = loop.number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[T]):
    def __init__(
        self,
        work: Generator[Any, None, T] | Coroutine[Any, Any, T],
        loop: SimulatedLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._number = loop.number()
        self.owner = owner.get() if context is None else context.get(owner)
        super().__init__(work, loop=loop, context=context)
        loop.tasks[self._number] = self
        self.add_done_callback(lambda _: loop.tasks.pop(self._number, None))

    def __hash__(self) -> int:
        return self._number


def _make_task(
    loop: asyncio.AbstractEventLoop,
    work: Generator[Any, None, T] | Coroutine[Any, Any, T],
    *,
    name: str | None = None,
    context: contextvars.Context | None = None,
) -> asyncio.Task[T]:
    assert isinstance(loop, SimulatedLoop)
    task = _Task(work, loop, context)
    if name is not None:
        task.set_name(name)
    return task


class SimulatedExecutor(Executor):
    """Threads that are none: what is submitted runs on the loop, in order, after a while.

    `delay_s` draws how long a call takes, `call` carries it out. `kill` forgets what has not begun,
    as the end of a process does.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        delay_s: Callable[[], float] = lambda: 0.0,
        call: Call = lambda work, given: work(*given),
    ) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._call = call
        self._free_s = 0.0
        self._is_killed = False

    def submit(  # type: ignore[override]
        self, work: Callable[..., T], /, *args: Any
    ) -> "Future[T]":
        """Call `work` when its turn comes."""
        done: Future[T] = Future()
        self._free_s = max(self._free_s, self._loop.time()) + self._delay_s()
        self._loop.call_at(self._free_s, self._run, done, work, args)
        return done

    def kill(self) -> None:
        """Begin nothing any more."""
        self._is_killed = True

    def _run(self, done: "Future[T]", work: Callable[..., T], args: tuple[Any, ...]) -> None:
        if self._is_killed or not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(self._call(work, args))
        except BaseException as error:  # noqa: BLE001 - as a thread pool does
            done.set_exception(error)


async def rest(seconds: float) -> None:
    """Let simulated time pass."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def wake() -> None:
        if not over.done():
            over.set_result(None)

    timer = loop.call_later(seconds, wake)
    try:
        await over
    finally:
        timer.cancel()
