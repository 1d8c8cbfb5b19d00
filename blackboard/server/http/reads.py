"""The reads of a connection run a few at a time; the others wait in a queue.

A page may be large, and a peer may request many and read little. So a read is started only if its
answer, and those of the running reads, fit beside what waits for the socket. Until then it is a
small item in the queue, without a task.

Invariants
- Reads are started in the order in which they were requested.
- The possible answers of running reads, and what waits for the socket, are at most
  OUTGOING_BYTES_MAX. No read is started while WATCH_BATCH_BYTES_MAX bytes wait.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from blackboard.limits import DEFAULT, PAGE_BYTES_MAX, Limits

Read = Callable[[], Coroutine[Any, Any, None]]
"""Carries out a read and answers it; handles all expected errors."""


class Reads:
    """The reads of a connection. `spawn` starts one; `waiting` returns the number of bytes that
    wait for the socket."""

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        waiting: Callable[[], int],
        limits: Limits = DEFAULT,
    ) -> None:
        self._spawn = spawn
        self._limits = limits
        self._waiting = waiting
        self._line: deque[Read] = deque()
        self._running = 0

    def __len__(self) -> int:
        """The number of reads that were requested and not answered yet."""
        return len(self._line) + self._running

    def add(self, read: Read) -> None:
        """Start a read as soon as there is room for its answer."""
        self._line.append(read)
        self.go_on()

    def go_on(self) -> None:
        """Start the reads for which there is room now. Call this after sending something."""
        while self._line and self._has_room():
            self._running += 1
            self._spawn(self._run(self._line.popleft()))

    def _has_room(self) -> bool:
        # How large an answer is shows only when it is made: each may be a whole page.
        waiting, promised = self._waiting(), (self._running + 1) * PAGE_BYTES_MAX
        delivery = self._limits.watch.watch_batch_bytes_max
        most = self._limits.service.outgoing_bytes_max
        return waiting < delivery and waiting + promised <= most

    def close(self) -> None:
        """Drop the waiting reads. The caller ends the running ones."""
        self._line.clear()

    async def _run(self, read: Read) -> None:
        try:
            await read()
        finally:
            # Also after a failure: the reads behind it must not wait for the next message.
            self._running -= 1
            self.go_on()
