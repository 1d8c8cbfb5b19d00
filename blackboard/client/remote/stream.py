"""One watch of the client: a bounded buffer over the log.

Invariants
- Deliveries are handed out once, in order, without a gap, across lost connections and overflows: a
  new watch always begins at `_edge`, the position after the last buffered delivery.
- The buffer holds at most one delivery beyond WATCH_QUEUE_CHANGES_MAX changes or
  WATCH_QUEUE_BYTES_MAX bytes. When the iteration is slower than the service, the watch is ended,
  and started again once the buffer is empty: the log is the buffer.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from blackboard.client.link import Delivery, WatchRequest
from blackboard.client.remote.channel import Channel
from blackboard.core.history import cost_of
from blackboard.core.watch import Position
from blackboard.errors import BlackboardError, LocalProtocolError
from blackboard.wire import answers
from blackboard.wire.answers import WatchMessage
from blackboard.wire.session import Changed


class RemoteStream:
    """A `Stream` (client/link.py) over a `Channel`."""

    def __init__(
        self, channel: Channel, board: str, request: WatchRequest, *, agent: str | None
    ) -> None:
        self._channel = channel
        self._limits = channel.limits.watch
        self._params: dict[str, Any] = {
            "board": board,
            "patterns": list(request.patterns),
            "coalesce": request.coalesce,
        }
        if agent is not None:
            self._params["agent"] = agent
        self._edge = request.after
        self._position = request.after
        self._number: int | None = None
        self._buffer: deque[tuple[Delivery, int, int]] = deque()  # with its bytes and changes
        self._changes = 0
        self._bytes = 0
        self._failure: BlackboardError | None = None
        self._closed = False
        self._mark_wanted = False
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        """Those who wait for a delivery. An Event takes twice as long to wait for."""

    @property
    def position(self) -> Position:
        """Everything up to here was handed out, or is not visible."""
        if self._position is None:
            raise LocalProtocolError(reason="the watch is not open yet")
        return self._position

    # --- for the watcher ----------------------------------------------------------------------

    async def open(self) -> None:
        """Open the watch, or reopen it after the last buffered delivery.

        Errors: Compacted, RolledBack, FutureRevision, AccessDenied; Unavailable after the channel's
        patience.
        """
        start = await self._channel.insist(self._begin)
        if self._position is None:
            self._position = start
        if self._edge is None:  # nothing was buffered yet
            self._edge = start

    async def _begin(self) -> Position:
        """One attempt to open the watch, on the present connection."""
        try:
            result = await self._channel.ask("watch", self._registered)
        except BaseException:
            # Also after a cancellation: the service may have opened it, and `unwatch` ends it.
            self._give_up()
            raise
        position: Position = answers.read(WatchMessage, result)
        return position

    def _registered(self) -> dict[str, Any]:
        """Register the watch for the request that is sent now, and return its params."""
        if self._closed:  # while it waited for a connection
            raise LocalProtocolError(reason="the watch was closed")
        # Before the request, because deliveries may come in one frame with its answer; and not
        # while it waits for a connection, which forgets what was registered on the one before. A
        # new number for each attempt: late deliveries for an earlier one must not be taken for
        # these.
        self._number = number = self._channel.add_watch(self)
        return {**self._params, "watch": number, "after": self._edge and str(self._edge)}

    def close(self) -> None:
        """End the watch."""
        self._closed = True
        self._give_up()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        while not self._buffer:
            if self._closed:
                raise LocalProtocolError(reason="the watch was closed")
            if self._failure is not None:
                # After the buffered deliveries, which came before it; a copy, because each
                # iteration that is tried again raises it.
                raise type(self._failure)(**self._failure.fields())
            if self._number is None:
                # Only once the buffer is empty, so that a slow consumer does not
                # fill it again at once.
                await self.open()
                self._ask_for_mark()
            else:
                news = self._loop.create_future()
                self._waiting.add(news)
                try:
                    await news
                finally:
                    self._waiting.discard(news)
        delivery, size, count = self._buffer.popleft()
        self._bytes -= size
        self._changes -= count
        self._position = delivery.position
        return delivery

    async def request_progress(self) -> None:
        """As `Stream.request_progress`; the mark comes even if the connection breaks meanwhile."""
        self._mark_wanted = True
        self._ask_for_mark()

    def _ask_for_mark(self) -> None:
        if self._mark_wanted and self._number is not None:
            self._channel.tell("progress", {"watch": self._number})

    # --- for the channel --------------------------------------------------------------------------

    def push(self, changed: Changed) -> None:
        """Buffer a delivery. When the buffer is full, end the watch until there is room."""
        delivery = Delivery(changed.revisions, changed.position)
        if not changed.revisions:
            # A delivery without revisions is a mark, whether it was requested or not.
            self._mark_wanted = False
        self._edge = changed.position
        size = count = 0
        for revision in changed.revisions:
            size += cost_of(revision)
            count += len(revision.changes)
        self._buffer.append((delivery, size, count))
        self._bytes += size
        self._changes += count
        limits = self._limits
        if (
            self._bytes > limits.watch_queue_bytes_max
            or self._changes > limits.watch_queue_changes_max
        ):
            self._give_up()
        self._tell()

    def fail(self, error: BlackboardError) -> None:
        """End the watch: the iteration raises `error` after the buffered deliveries."""
        self._number = None
        self._failure = error
        self._tell()

    def lose(self) -> None:
        """The watch was lost with its connection. It is reopened when the buffer is empty."""
        self._number = None
        self._tell()

    def _tell(self) -> None:
        """Wake the iteration."""
        for news in self._waiting:
            if not news.done():
                news.set_result(None)

    def _give_up(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._channel.drop_watch(number)
        self._tell()
