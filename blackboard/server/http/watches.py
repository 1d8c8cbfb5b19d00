"""The watches of one connection of the server.

Each has a pump, from its stream into the session. While the pump waits for news and the peer keeps
up, deliveries do not wake it: the feed gives them to the watch's outlet, which writes them to the
socket at once. If the outlet cannot take a delivery, because there is no room or it is the turn of
other accounts, the pump gets it and waits.

Invariants
- A delivery is taken from its stream, and packed, only when there is room for it. So a peer that
  does not read costs little more than its positions in the log.
- After the answer to `unwatch`, and after `cancelled`, nothing is sent for that number any more.
- A delivery that many watchers share is packed once, and the bytes are stored with it. The cost is
  charged to the account of the first watcher.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from blackboard.client.link import Delivery, Stream, Transport, WatchRequest
from blackboard.core.watch import Position
from blackboard.engines.payer import charged, paid_by
from blackboard.errors import BlackboardError, InvalidRequest, LimitExceeded, Unavailable
from blackboard.limits import WATCHES_PER_CONNECTION_MAX
from blackboard.server.feed import Permitted, Watcher
from blackboard.server.http.uvicorn_protocol import framed
from blackboard.server.overload.charges import DELIVERY_US, Subscription, measured
from blackboard.wire.answers import WatchMessage
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from blackboard.wire.methods import WatchParams
from blackboard.wire.session import (
    ConnectionState,
    RequestId,
    ServerSession,
    pack_changes,
    pack_revisions,
)

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


_FRAME_OF: Final = {encoding.name: f"{encoding.name} frame" for encoding in (MSGPACK, JSON)}
"""Names for WebSocket frames among the forms that are stored with a delivery."""
_FRAMES_KEPT: Final = 6
"""Packed forms that are stored with a delivery; each takes as many bytes as the delivery."""


_OUTLET_US: Final = 15
"""A delivery that an outlet takes: it wakes no task. See `DELIVERY_US`."""


@dataclass(frozen=True, slots=True)
class Sending:
    """How the watches of a connection send."""

    wake: Callable[[], None]
    """Wakes the writer, which sends what is in the session."""
    room: Callable[[], Awaitable[None]]
    """Waits until the socket keeps up."""
    share: Callable[[float], Awaitable[None]]
    """Waits for this peer's share of the processor for work of a given cost."""
    is_free: Callable[[float], bool]
    """Whether neither needs to wait: there is room, and a share for work of a given cost, which it
    uses up."""
    write: Callable[[bytes], bool]
    """Writes a WebSocket frame at once, unless something waits before it; returns whether it
    did."""


@dataclass(slots=True)
class _Watch:
    request: RequestId
    link: Transport
    pump: "asyncio.Task[None] | None" = None
    stream: Stream | None = None
    sent: Position | None = None
    """The position that was sent to the peer. The stream may be ahead by the delivery in the
    pump."""


class Watches:
    """The open watches, by the number that the peer gave them.

    `spawn` runs a pump, and `payer` makes the payer of a watch.
    """

    def __init__(
        self,
        session: ServerSession,
        *,
        spawn: Spawn,
        sending: Sending,
        payer: Callable[[], Subscription],
    ) -> None:
        self._session = session
        self._spawn = spawn
        self._sending = sending
        self._wake = sending.wake
        self._payer = payer
        self._open: dict[int, _Watch] = {}

    def __len__(self) -> int:
        return len(self._open)

    def links(self) -> dict[str, Transport]:
        """The links of the open watches, by agent."""
        return {watch.link.agent: watch.link for watch in self._open.values()}

    def open(self, number: RequestId, params: WatchParams, link: Transport) -> None:
        """Begin a watch. Request `number` is answered when the watch is live or refused.

        Errors: InvalidRequest for a number in use; LimitExceeded.
        """
        if params.watch in self._open:
            raise InvalidRequest(field="watch", reason=f"watch {params.watch} is open already")
        if len(self._open) >= WATCHES_PER_CONNECTION_MAX:
            limit = "WATCHES_PER_CONNECTION_MAX"
            raise LimitExceeded(limit, len(self._open) + 1, WATCHES_PER_CONNECTION_MAX)
        watch = self._open[params.watch] = _Watch(number, link)
        watch.pump = self._spawn(self._pump(number, params, link, watch))

    def close(self, number: int) -> None:
        """End a watch. If it is not live yet, its request is answered with Unavailable.

        Errors: InvalidRequest when there is no such watch.
        """
        watch = self._find(number)
        del self._open[number]
        # Its pump is cancelled below, and will not answer the request any more.
        if watch.stream is None:
            reason = "it was ended before it was live"
            self._session.respond_error(watch.request, Unavailable(f"watch {number}", reason))
        if watch.pump is not None:
            watch.pump.cancel()

    async def request_progress(self, number: int) -> None:
        """Request a progress mark of a watch. Errors: InvalidRequest when there is no such
        watch."""
        stream = self._find(number).stream
        if stream is not None:
            await stream.request_progress()

    def end_all(self, error: BlackboardError) -> None:
        """End every watch with its position, because of `error`."""
        for number, watch in list(self._open.items()):
            self.close(number)
            if watch.sent is not None:
                # From this position the client watches on elsewhere.
                self._session.send_changes(number, watch.sent, [])
                self._session.send_cancelled(number, error)
        self._wake()

    def _find(self, number: int) -> _Watch:
        watch = self._open.get(number)
        if watch is None:
            raise InvalidRequest(field="watch", reason=f"there is no watch {number}")
        return watch

    async def _pump(
        self, request: RequestId, params: WatchParams, link: Transport, watch: _Watch
    ) -> None:
        payer, number = self._payer(), params.watch
        try:
            async with AsyncExitStack() as stack:
                opening = _opened(stack, params, link)
                del params  # frees its patterns: a watch may be quiet for ever
                watch.stream = stream = await measured(opening, payer.charge)
                del opening
                watch.sent = stream.position
                self._session.respond(request, WatchMessage.of(watch.sent))
                self._wake()
                if isinstance(stream, Watcher | Permitted):
                    stream.deliver_to(_Outlet(self, number, watch, payer))
                with paid_by(payer):
                    await self._pass_all_on(number, watch, stream, payer)
        except BlackboardError as error:
            if self._open.get(number) is watch:
                self._refuse(request, number, watch, error)
        finally:
            payer.settle()
            if self._open.get(number) is watch:
                del self._open[number]
            watch.pump = None  # the task holds this frame through its error
            watch.stream = None  # it holds the outlet, which holds the watch

    async def _pass_all_on(
        self, number: int, watch: _Watch, stream: Stream, payer: Subscription
    ) -> None:
        deliveries, sending = aiter(stream), self._sending
        while True:
            if payer.is_due:
                await payer.turn()
            # Before a delivery is taken: one that is left in the stream costs no memory here.
            await sending.room()
            delivery = await anext(deliveries)
            await sending.share(DELIVERY_US)
            payer.owe(DELIVERY_US)
            await sending.room()  # other watches may have used up the room
            messages = _packed(delivery, number, self._session.encoding)
            watch.sent = delivery.position
            self._session.send_packed(messages)
            self._wake()

    def send_at_once(self, number: int, delivery: Delivery, payer: Subscription) -> bool:
        """Send a delivery to watch `number` without its pump; False if it would have to wait."""
        sending = self._sending
        if not sending.is_free(_OUTLET_US):
            return False
        encoding = self._session.encoding
        # Deliveries to several watches of a connection share a frame, which the writer makes.
        is_alone = len(self._open) == 1
        frame = _framed(delivery, number, encoding, payer) if is_alone else None
        if frame is None or not sending.write(frame):
            with paid_by(payer):
                self._session.send_packed(_packed(delivery, number, encoding))
            self._wake()
        return True

    def _refuse(
        self, request: RequestId, number: int, watch: _Watch, error: BlackboardError
    ) -> None:
        if self._session.state is ConnectionState.CLOSED:
            return
        if watch.stream is None:
            self._session.respond_error(request, error)
        else:
            self._session.send_cancelled(number, error)
        self._wake()


async def _opened(stack: AsyncExitStack, params: WatchParams, link: Transport) -> Stream:
    after = None if params.after is None else Position.parse(params.after)
    request = WatchRequest(params.patterns, after, params.coalesce)
    return await stack.enter_async_context(link.watch(params.board, request))


class _Outlet:
    """Sends the deliveries of one watch: see `Taker`."""

    __slots__ = ("_number", "_watch", "_watches", "payer")

    def __init__(self, watches: Watches, number: int, watch: _Watch, payer: Subscription) -> None:
        self.payer = payer
        self._watches = watches
        self._number = number
        self._watch = watch

    def take(self, delivery: Delivery) -> bool:
        """As `Taker.take`. Deliveries to a debtor are left to the pump, which pauses."""
        payer = self.payer
        if not payer.is_free() or not self._watches.send_at_once(self._number, delivery, payer):
            return False
        payer.owe(_OUTLET_US)
        self._watch.sent = delivery.position
        return True


def _packed(delivery: Delivery, number: int, encoding: Encoding) -> list[bytes]:
    """The messages of a delivery to watch `number`.

    Packed once for all watchers that share it: the revisions, and the whole messages for the first
    few numbers (most peers have one watch, and so the same number).
    """
    messages = delivery.frames.get((encoding.name, number))
    if messages is None:
        messages = pack_changes(number, delivery.position, _pieces(delivery, encoding), encoding)
        _keep(delivery, (encoding.name, number), messages)
    return messages


def _framed(
    delivery: Delivery, number: int, encoding: Encoding, payer: Subscription
) -> bytes | None:
    """The WebSocket frame with that message, also made once; None if there are several messages.
    `payer` pays for making it."""
    key = (_FRAME_OF[encoding.name], number)
    found = delivery.frames.get(key)
    if found is None:
        with paid_by(payer):
            pieces = _pieces(delivery, encoding)
        messages = pack_changes(number, delivery.position, pieces, encoding)
        found = [] if len(messages) > 1 else [framed(encoding.join(messages), encoding)]
        _keep(delivery, key, found)
    return found[0] if found else None


def _pieces(delivery: Delivery, encoding: Encoding) -> list[bytes]:
    pieces = delivery.frames.get((encoding.name, None))
    if pieces is None:
        revisions = delivery.revisions
        pieces = charged(lambda: pack_revisions(revisions, encoding)) if revisions else []
        delivery.frames[encoding.name, None] = pieces
    return pieces


def _keep(delivery: Delivery, key: tuple[str, int], form: list[bytes]) -> None:
    frames = delivery.frames
    # A progress mark is small, so the form of every number that a watch can have is kept.
    if len(frames) < (_FRAMES_KEPT if delivery.revisions else WATCHES_PER_CONNECTION_MAX):
        frames[key] = form
