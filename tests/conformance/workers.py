"""Blocks that hold something, each in a task of its own that relies on nobody else's leases."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from typing import Any, Generic, TypeVar

import anyio

from blackboard.client.board import Board
from blackboard.core.commit import Lease
from tests.conformance.team import PATIENCE_S
from tests.waiting import wait_until

T = TypeVar("T")


def apart(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Run `work` in a task that inherits no lease."""
    return asyncio.create_task(work, context=Context())


class Block(Generic[T]):
    """A block of its own: `inside` is set in it, and it ends when `done` is set."""

    def __init__(self, block: AbstractAsyncContextManager[T]) -> None:
        self.inside = asyncio.Event()
        self.done = asyncio.Event()
        self.held: T
        self._block = block
        self.task = apart(self._run())

    async def _run(self) -> None:
        async with self._block as self.held:
            self.inside.set()
            await self.done.wait()

    async def entered(self) -> T:
        """Wait until the block has begun; what it holds. Errors: those of entering it."""
        inside = asyncio.ensure_future(self.inside.wait())
        with anyio.fail_after(PATIENCE_S):
            await asyncio.wait([inside, self.task], return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            inside.cancel()
            self.task.result()
        return self.held

    async def end(self) -> None:
        """Let the block end, and wait for that. Errors: those of leaving it."""
        self.done.set()
        await finished(self.task)

    async def cancel(self) -> None:
        """Cancel it, and wait until it has ended so."""
        self.task.cancel()
        with anyio.fail_after(PATIENCE_S):
            await asyncio.wait([self.task])
        assert self.task.cancelled()


async def finished(task: "asyncio.Task[T]") -> T:
    """The result of a task. Errors: what it raised; TimeoutError when it does not end."""
    with anyio.fail_after(PATIENCE_S):
        await asyncio.wait([task])
    return task.result()


async def queued(board: Board, key: str, count: int) -> Sequence[str]:
    """Wait until `count` holders are in the queue of `key`; who they are, in their order."""
    found: list[str] = []

    async def are_there() -> bool:
        found[:] = [waiter.holder for waiter in (await lease_of(board, key)).waiters]
        return len(found) == count

    await wait_until(are_there, timeout_s=PATIENCE_S)
    return found


async def renewals(board: Board, key: str, times: int) -> None:
    """Wait until `times` renewals have moved a deadline of the lease `key`, its own or that of a
    ticket."""
    for _ in range(times):
        before = await lease_of(board, key)

        async def is_renewed(before: Lease = before) -> bool:
            return await lease_of(board, key) != before

        await wait_until(is_renewed, timeout_s=PATIENCE_S)


async def lease_of(board: Board, key: str) -> Lease:
    """The lease of `key`, which somebody must have."""
    (lease,) = await board.leases(key)
    return lease
