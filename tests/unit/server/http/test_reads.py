"""The reads of one connection: few at once, in order, and none without room for its answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from blackboard.limits import DEFAULT, PAGE_BYTES_MAX
from blackboard.server.http.reads import Reads

AT_ONCE = DEFAULT.service.outgoing_bytes_max // PAGE_BYTES_MAX


class Peer:
    """A connection with reads that last until the test ends them."""

    def __init__(self) -> None:
        self.waiting = 0
        self.begun: list[int] = []
        self.gate = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.reads = Reads(self._spawn, lambda: self.waiting)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def ask(self, number: int) -> None:
        """One read."""

        async def read() -> None:
            self.begun.append(number)
            await self.gate.wait()

        self.reads.add(read)


async def test_few_run_at_once_and_all_in_the_end() -> None:
    """In the order in which they were requested."""
    peer = Peer()
    for number in range(20):
        peer.ask(number)
    await checkpoint()
    assert peer.begun == list(range(AT_ONCE))
    assert len(peer.reads) == 20
    peer.gate.set()
    async with asyncio.timeout(60):
        while len(peer.reads):
            await asyncio.gather(*peer.tasks)
    assert peer.begun == list(range(20))


@pytest.mark.parametrize(
    ("waiting", "begun"), [(DEFAULT.watch.watch_batch_bytes_max - 1, 1), (0, 1)]
)
async def test_a_read_needs_room(waiting: int, begun: int) -> None:
    """No read starts while WATCH_BATCH_BYTES_MAX bytes wait; one starts when they were sent."""
    peer = Peer()
    peer.waiting = DEFAULT.watch.watch_batch_bytes_max
    peer.ask(1)
    peer.reads.go_on()
    await checkpoint()
    assert peer.begun == []
    peer.waiting = waiting
    peer.reads.go_on()
    await checkpoint()
    assert len(peer.begun) == begun
    peer.gate.set()
    await asyncio.gather(*peer.tasks)


async def test_after_the_end_none_is_begun() -> None:
    """The caller ends the running reads. No waiting read starts after them."""
    peer = Peer()
    for number in range(20):
        peer.ask(number)
    await checkpoint()
    peer.reads.close()
    for task in peer.tasks:
        task.cancel()
    await asyncio.gather(*peer.tasks, return_exceptions=True)
    assert peer.begun == list(range(AT_ONCE))
    assert len(peer.tasks) == AT_ONCE
