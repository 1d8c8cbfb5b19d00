"""The look-ups of one connection: few at once, each in its turn, the others in a line.

A page may be large, and a peer may ask for many and take in little. So a read is begun only while
its answer, and those of the reads under way, may fit beside what waits for the socket; until then
it is a few words in a line, without a task.

Invariants
- reads are begun in the order in which they were asked for.
- what reads under way may answer, and what waits, is at most OUTGOING_BYTES_MAX; no read is begun
  while a delivery's worth (WATCH_BATCH_BYTES_MAX) waits.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from blackboard.types import OUTGOING_BYTES_MAX, PAGE_BYTES_MAX, WATCH_BATCH_BYTES_MAX

Read = Callable[[], Coroutine[Any, Any, None]]
"""Carries out a read and answers it; raises nothing that can be foreseen."""


class Reads:
    """`spawn` runs one, `waiting` says how many bytes wait for the socket."""

    def __init__(
        self, spawn: Callable[[Coroutine[Any, Any, None]], object], waiting: Callable[[], int]
    ) -> None:
        self._spawn = spawn
        self._waiting = waiting
        self._line: deque[Read] = deque()
        self._running = 0

    def __len__(self) -> int:
        """How many were asked for and are not answered."""
        return len(self._line) + self._running

    def add(self, read: Read) -> None:
        """Begin a read when there is room for its answer."""
        self._line.append(read)
        self.go_on()

    def go_on(self) -> None:
        """Begin what there is room for now. To be called when something was sent."""
        while self._line and self._has_room():
            self._running += 1
            self._spawn(self._run(self._line.popleft()))

    def _has_room(self) -> bool:
        waiting, promised = self._waiting(), (self._running + 1) * PAGE_BYTES_MAX
        return waiting < WATCH_BATCH_BYTES_MAX and waiting + promised <= OUTGOING_BYTES_MAX

    def close(self) -> None:
        """Forget those in the line. Those under way are the caller's to end."""
        self._line.clear()

    async def _run(self, read: Read) -> None:
        try:
            await read()
        finally:
            self._running -= 1
            self.go_on()
