"""The event loop of `blackboard.sync`: one thread per process, in which all work is done.

A call hands its work to that thread and waits for the result. So the synchronous classes contain no
second implementation of anything.

Invariants
- Leases that a call takes are held by the thread, or the task, that made the call: its later
  commits carry their fences.
- A call that is interrupted (Ctrl-C) is cancelled, and has ended when the exception is raised.
- After a fork, the child begins with a thread of its own; objects of the parent say so.
- The thread ends with the interpreter: clients that are still open are closed first.

Source: the portals of anyio and asgiref.
"""

import asyncio
import atexit
import concurrent.futures.thread  # its exit handler must be registered before ours, to run after it
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from blackboard.client.writer import adopt_holds
from blackboard.errors import LocalProtocolError, Unavailable
from blackboard.limits import DEFAULT

T = TypeVar("T")
NAME: Final = "blackboard.sync"
"""The name of the thread."""


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
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self._loop.create_task(_awaited(begin), context=context)
            tasks.append(task)
            task.add_done_callback(lambda ended: _settle(ended, done))

        self._submit(start)
        try:
            concurrent.futures.wait([done])
        except BaseException:
            self._submit(lambda: tasks[0].cancel())
            concurrent.futures.wait([done])
            raise
        finally:
            adopt_holds(context)
        try:
            return done.result()
        except concurrent.futures.CancelledError:
            raise Unavailable(what=NAME, reason="it was closed") from None

    def call(self, work: Callable[[], T]) -> T:
        """The result of `work`, which awaits nothing, in the loop's thread. Errors: as of `run`."""
        if threading.get_ident() == self._thread.ident:
            return work()
        self._check_caller()
        done: Future[T] = Future()

        def carry_out() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where it was called
                done.set_exception(error)

        editing = self._editing
        if editing is not None and editing[0] == threading.get_ident():
            editing[1].put(carry_out)
        else:
            self._submit(carry_out)
        return done.result()

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
        its end, renewals of leases included.
        """
        self._check_caller()
        queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        begun: Future[None] = Future()

        def serve() -> None:
            begun.set_result(None)
            while (work := queue.get()) is not None:
                work()

        self._submit(serve)
        begun.result()
        self._editing = (threading.get_ident(), queue)
        try:
            yield
        finally:
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
            raise Unavailable(what=NAME, reason="the interpreter is exiting") from None

    # --- the end ----------------------------------------------------------------------------------

    def close_at_exit(self, key: int, close: Callable[[], Awaitable[None]]) -> None:
        """Close something when the interpreter exits, unless `forget` comes first."""
        self._closers[key] = close

    def forget(self, key: int) -> None:
        """What was to be closed at exit is closed."""
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


async def _awaited(begin: Callable[[], Awaitable[T]]) -> T:
    return await begin()


def _settle(task: "asyncio.Task[T]", done: "Future[T]") -> None:
    if task.cancelled():
        done.cancel()
        done.set_running_or_notify_cancel()
        return
    error = task.exception()
    if error is None:
        done.set_result(task.result())
    else:
        done.set_exception(error)


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
