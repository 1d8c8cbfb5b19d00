"""Work that a cancellation must not interrupt, and cancellations that must not get lost."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from anyio import CancelScope

from blackboard.limits import DEFAULT
from blackboard.units import Milliseconds

T = TypeVar("T")


async def finish(
    work: Coroutine[Any, Any, T],
    timeout_ms: Milliseconds = DEFAULT.client.finish_timeout_ms,
) -> T:
    """Run `work` to its end even if the caller is cancelled; returns its result.

    Cancellation: waits up to `timeout_ms` more for `work`, which is then cancelled too; after
    that the cancellation continues. Cancellation by an anyio scope waits for `work` without that
    bound.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # anyio repeats a cancellation in every turn of the loop until its scope ends; without the
    # shield, this loop would be busy until then.
    with CancelScope(shield=True):
        while not task.done():
            try:
                # Unlike `await task`, it does not pass a cancellation on to the task.
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                if cancelled is None:
                    task.get_loop().call_later(timeout_ms / 1000, task.cancel)
                cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # retrieved, but the cancellation takes precedence
    raise cancelled


class SharedCalls:
    """Calls that several tasks make at the same time, and that are carried out once for all.

    Cancellation: a cancelled caller leaves the call to the others. The call goes on even without
    callers; `settled` waits for its end.
    """

    def __init__(self) -> None:
        self._running: dict[object, asyncio.Task[Any]] = {}

    async def call(self, key: object, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, or what it raises. While a call with this `key` is running, its
        result is awaited instead."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.ensure_future(work())
            task.add_done_callback(lambda done: self._end(key, done))
        result: T = await asyncio.shield(task)
        return result

    async def settled(self) -> None:
        """Wait for the end of the calls that are running."""
        while self._running:
            await asyncio.wait(self._running.values())

    def _end(self, key: object, task: asyncio.Task[Any]) -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # retrieved, even if every caller was cancelled


def cancellations() -> int:
    """How many cancellations of the running task were requested and not undone.

    A CancelledError that arrives although this number did not change was not a request to stop; it
    came, for example, from an awaited task.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def heed_cancellation() -> None:
    """Raise a cancellation of this task that a library has swallowed.

    Database drivers sometimes swallow a cancellation and return a result. A loop that should end by
    being cancelled would then run for ever, and so would a caller that waits for its end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
