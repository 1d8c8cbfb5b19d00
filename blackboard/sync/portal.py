"""The event loop of `blackboard.sync`: one thread per process, in which all work is done.

A call hands its work to that thread and waits for the result. So the synchronous classes contain no
second implementation of anything.

Invariants
- Leases that a call takes are held by the thread, or the task, that made the call: its later
  commits carry their fences.
- A call that is interrupted (Ctrl-C) is cancelled, and has ended when the exception is raised. A
  block that it entered all the same is left.
- After a fork, the child begins with a thread of its own; objects of the parent say so.
- The thread ends with the interpreter: clients that are still open are closed first.

`Mirror` is what the synchronous classes share: an object of the loop, and the way to it.

Source: the portals of anyio and asgiref.
"""

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - its exit handler must be registered before ours
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar, cast

from blackboard.client.writer import adopt_holds
from blackboard.errors import LocalProtocolError, Unavailable
from blackboard.limits import DEFAULT

T = TypeVar("T")
NAME: Final = "blackboard.sync"
"""The name of the thread."""
INTERRUPT_CHECK_S: Final = 0.5
"""How long Ctrl-C may go unnoticed. Python notes a signal and looks at the note between two
instructions. One that comes after the last look, while a wait for a lock begins, does not end that
wait."""


class Portal:
    """An event loop in a thread of its own, and the ways into it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._editing: tuple[int, SimpleQueue[Callable[[], None] | None]] | None = None
        self._closers: dict[int, Callable[[], Awaitable[None]]] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=NAME, daemon=True)
        self._thread.start()

    # --- calls ------------------------------------------------------------------------------------

    def run(self, begin: Callable[[], Awaitable[T]]) -> T:
        """The result of the awaitable that `begin` returns, in the loop's thread.

        Errors: those of the awaitable; LocalProtocolError in that thread itself, inside a
        transaction of a document, and after a fork; Unavailable when the interpreter is exiting.
        A KeyboardInterrupt cancels the work, and is raised when it has ended; a second one does not
        wait.
        """
        self._check_caller()
        if self._is_editing():
            raise LocalProtocolError(reason="inside a transaction only its document can be used")
        context = contextvars.copy_context()
        outcome: _Outcome[T] = _Outcome()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(_awaited(begin), context=context))
            tasks[0].add_done_callback(outcome.settle_with)

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # interrupted before `start` was handed over
                outcome.settle(error=asyncio.CancelledError())

        try:
            self._submit(start)
            self._await(outcome)
        except BaseException:
            self._submit(cancel)
            self._await(outcome)
            raise
        finally:
            adopt_holds(context)
        try:
            return outcome.result()
        except asyncio.CancelledError:
            raise Unavailable(what=NAME, reason="it was closed") from None

    def enter(self, block: AbstractAsyncContextManager[T]) -> T:
        """As `run`, of what entering `block` returns. If a KeyboardInterrupt came too late to
        cancel that, the block is left again: nobody else would leave it."""
        is_in = False

        async def begin() -> T:
            nonlocal is_in
            found = await block.__aenter__()
            is_in = True
            return found

        try:
            return self.run(begin)
        except BaseException as error:
            if is_in:
                ended = (type(error), error, error.__traceback__)
                self.run(lambda: block.__aexit__(*ended))
            raise

    def call(self, work: Callable[[], T]) -> T:
        """The result of `work`, which awaits nothing, in the loop's thread. Errors: as of `run`."""
        if threading.get_ident() == self._thread.ident:
            return work()
        self._check_caller()
        outcome: _Outcome[T] = _Outcome()

        def carry_out() -> None:
            try:
                outcome.settle(work())
            except BaseException as error:  # noqa: BLE001 - raised where it was called
                outcome.settle(error=error)

        editing = self._editing
        if editing is not None and editing[0] == threading.get_ident():
            editing[1].put(carry_out)
        else:
            self._submit(carry_out)
        self._await(outcome)
        return outcome.result()

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous generator. It is closed when the iteration ends."""
        try:
            while True:
                try:
                    item = self.run(items.__anext__)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            close = getattr(items, "aclose", None)
            if close is not None and not self._is_closed:
                self.run(close)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """A block in which the loop's thread carries out only `call`s of the calling thread.

        As with asyncio, where a block without `await` holds the loop: everything else waits until
        its end, renewals of leases included. In such a block, another one changes nothing.
        """
        self._check_caller()
        if self._is_editing():
            yield
            return
        queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        begun: _Outcome[None] = _Outcome()

        def serve() -> None:
            begun.settle()
            while (work := queue.get()) is not None:
                work()

        try:
            self._submit(serve)
            self._await(begun)
            self._editing = (threading.get_ident(), queue)
            yield
        finally:
            # Interrupted before it began, another thread's may be going on.
            if self._is_editing():
                self._editing = None
            queue.put(None)

    def _is_editing(self) -> bool:
        return self._editing is not None and self._editing[0] == threading.get_ident()

    def _check_caller(self) -> None:
        if os.getpid() != self._pid:
            reason = "it was made before this process was forked: open or connect in each process"
            raise LocalProtocolError(reason=reason)
        if threading.get_ident() == self._thread.ident:
            reason = "a callback must not wait for the client that calls it: hand over to a thread"
            raise LocalProtocolError(reason=reason)

    def _submit(self, work: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            raise _exiting() from None

    def _await(self, outcome: "_Outcome[Any]") -> None:
        """Wait until it is settled. Errors: Unavailable if the thread ended before it began."""
        while not outcome.wait():
            # Between its last turn and its end, the loop takes work that it never begins.
            if self._loop.is_closed():
                outcome.settle(error=_exiting())

    # --- the end ----------------------------------------------------------------------------------

    def close_at_exit(self, key: int, close: Callable[[], Awaitable[None]]) -> None:
        """Close something when the interpreter exits, unless `forget` comes first."""
        self._closers[key] = close

    def forget(self, key: int) -> None:
        """Do not close it at the exit: it is closed already."""
        self._closers.pop(key, None)

    def close(self) -> None:
        """Close what is open, end every call with Unavailable, and end the thread."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        self._submit(lambda: self._loop.create_task(self._end()))
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        limit_s = DEFAULT.client.finish_timeout_ms / 1000
        closing = [asyncio.ensure_future(close()) for close in self._closers.values()]
        if closing:
            await asyncio.wait(closing, timeout=limit_s)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=limit_s)
        # Of two generators, one in the other, asyncio closes both at once, and one then complains.
        self._loop.set_exception_handler(lambda _, __: None)
        await self._loop.shutdown_asyncgens()
        self._loop.stop()


def _exiting() -> Unavailable:
    return Unavailable(what=NAME, reason="the interpreter is exiting")


async def _awaited(begin: Callable[[], Awaitable[T]]) -> T:
    return await begin()


class _Outcome(Generic[T]):
    """The outcome of work in the loop's thread, for the one thread that waits for it.

    Ctrl-C may end a wait between any two instructions, so there is nothing here that it could leave
    held and that the loop would then wait for. A `concurrent.futures.Future` has such a thing: its
    condition, if the interrupt comes between its `acquire` and the block that releases it.
    """

    def __init__(self) -> None:
        self._is_settled = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._unsettled = threading.Lock()
        self._unsettled.acquire()

    def settle(self, value: T | None = None, error: BaseException | None = None) -> None:
        """Say what it came to; later calls change nothing. It never blocks."""
        if self._is_settled:
            return
        self._value, self._error = value, error
        self._is_settled = True
        self._unsettled.release()

    def settle_with(self, task: "asyncio.Task[T]") -> None:
        """Say what a task that has ended came to."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.settle(None if error else task.result(), error)

    def wait(self) -> bool:
        """Wait for a moment; whether it is settled. It can be interrupted, and waited for again."""
        if not self._is_settled:
            self._unsettled.acquire(timeout=INTERRUPT_CHECK_S)
        return self._is_settled

    def result(self) -> T:
        """The value, or the error raised. It must be settled."""
        if self._error is not None:
            raise self._error
        return cast(T, self._value)


# --- one for the process --------------------------------------------------------------------------

_portals: list[Portal] = []
"""The portal of this process, once there is one, is the last; those before it were inherited by
forks, and are kept because their threads do not exist here."""
_lock = threading.Lock()


def portal() -> Portal:
    """The portal of this process."""
    with _lock:
        if not _portals or _portals[-1]._pid != os.getpid():
            made = Portal()
            # Before the pools of threads are shut down, which come before `atexit`.
            getattr(threading, "_register_atexit", atexit.register)(made.close)
            _portals.append(made)
        return _portals[-1]


def _after_fork() -> None:
    global _lock  # another thread may have held it
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def threaded(function: Callable[..., Any] | None) -> Callable[..., Awaitable[Any]] | None:
    """A function for the loop that runs `function` in a thread, where it may use clients."""
    if function is None:
        return None

    async def run(*arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)

    return run


# --- the common part of the synchronous classes ---------------------------------------------------


R = TypeVar("R")


class Mirror(Generic[T]):
    """The synchronous side of an object that lives in the loop of `portal`."""

    def __init__(self, portal: Portal, inner: T) -> None:
        self._portal = portal
        self._inner = inner

    def run(self, work: Callable[[T], Awaitable[R]]) -> R:
        """The result of `await work(object)`, in the loop of this client, with the asynchronous
        object that this is the synchronous side of.

        For several calls in one go, and for programs that wrap a client. Errors: those of `work`;
        LocalProtocolError in a callback, which must not wait. Ctrl-C cancels it.
        """
        return self._portal.run(lambda: work(self._inner))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mirror):
            return NotImplemented
        return self._portal.call(lambda: bool(self._inner == other._inner))

    def __hash__(self) -> int:
        return hash(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)

    def _repr_html_(self) -> str | None:
        show = getattr(self._inner, "_repr_html_", None)
        return None if show is None else str(self._portal.call(show))
