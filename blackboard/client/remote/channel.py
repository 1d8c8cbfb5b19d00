"""The client's WebSocket, which it reconnects: requests, answers, and changes of watches.

Invariants
- one task, the keeper, owns the socket: it connects, greets, reads, and connects again.
- requests of one turn of the event loop leave as one frame, in their order.
- a request ends exactly once: answered, refused, or lost with the connection; a lost one says
  whether any byte of it may have reached the service.
- slow consumers never block incoming messages: answers wait in futures, changes in the bounded
  buffers of their streams.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from websockets.exceptions import ConnectionClosed, WebSocketException

from blackboard import telemetry
from blackboard.client.cancellation import finish
from blackboard.client.remote.connect import Address, connect, may_pass, translated
from blackboard.client.remote.documents import RemotePipe
from blackboard.client.writer import pause_s
from blackboard.errors import (
    BlackboardError,
    InvalidRequest,
    LocalProtocolError,
    Overloaded,
    RemoteProtocolError,
    Unauthenticated,
    Unavailable,
)
from blackboard.limits import (
    DEFAULT,
    REQUESTS_IN_FLIGHT_MAX,
    WATCHES_PER_CONNECTION_MAX,
    Limits,
)
from blackboard.units import Milliseconds
from blackboard.wire import answers
from blackboard.wire.answers import Greeted
from blackboard.wire.frames import MSGPACK
from blackboard.wire.session import (
    Answered,
    Cancelled,
    Changed,
    ClientEvent,
    ClientSession,
    Draining,
    Failed,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

_PAUSE_S_MIN: Final = 0.05
_FIRST_PAUSE_MS: Final = 500
"""The longest pause before the first connection: a caller waits for it."""
_TOKEN_LEFT_S_MIN: Final = 1.0
"""A token in use that seems to end sooner is about to end, or the clock here is ahead."""
_TOKEN_PAUSE_S: Final = 60.0
"""The pause before the next token then: if it is the clock, every other token seems to end, too."""
_ASKED_MAX: Final = REQUESTS_IN_FLIGHT_MAX - 2 * WATCHES_PER_CONNECTION_MAX
"""Requests in flight; the rest of what the service allows is reserved for `tell`."""


_Asked = dict[str, Any] | Callable[[], dict[str, Any]]
"""The params of a request, or what makes them."""


class LostError(Exception):
    """The connection went away before the answer came. Never leaves blackboard.client.

    `written` says whether the request may have reached the service.
    """

    def __init__(self, reason: str, *, written: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.written = written


class Abortable(Protocol):
    """The transport below a WebSocket."""

    def abort(self) -> None:
        """Break the connection now."""


class Open(Protocol):
    """An open WebSocket: what a channel needs of `dial.Socket`."""

    take: Callable[[bytes], None] | None

    @property
    def transport(self) -> Abortable:
        """The transport below it."""

    async def recv(self) -> str | bytes:
        """The next message. Errors: ConnectionClosed."""

    async def send(self, message: bytes) -> None:
        """Send a message, when there is room for it. Errors: ConnectionClosed."""


Dial = Callable[[Address, str | None], AbstractAsyncContextManager[Open]]
"""Opens a WebSocket to an address, with a token. Errors: those that `translated` knows."""


class Watching(Protocol):
    """The part of a stream that a channel uses."""

    def push(self, changed: Changed) -> None:
        """Take a delivery."""

    def lose(self) -> None:
        """The watch was lost for a temporary reason."""

    def fail(self, error: BlackboardError) -> None:
        """The watch has ended with `error`."""


@dataclass(slots=True)
class _Request:
    answer: "asyncio.Future[Any]"
    timeout_ms: Milliseconds
    deadline_s: float
    written: bool = False


class Channel:
    """A connection to the service that outlives its sockets."""

    def __init__(
        self,
        address: Address,
        *,
        patience_ms: Milliseconds,
        dial: Dial | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self.url = address.websocket
        self.limits = limits
        self.patience_ms = patience_ms
        self.agent = ""
        self.account: str | None = None
        """The name under which the connection acts."""
        self._address, self._is_closed = address, False
        self._traces = False
        self._dial = dial or partial(connect, limits=limits.connection)
        self._loop = asyncio.get_running_loop()
        self._session: ClientSession | None = None  # not None while requests can be sent
        self._requests: dict[int, _Request] = {}
        self._unwritten: list[_Request] = []
        self._streams: dict[int, Watching] = {}
        self._last_watch = 0
        self._refusal: BlackboardError | None = None
        self._why = ""  # why there is no connection
        self._wake = asyncio.Event()
        self._demand = asyncio.Event()
        self._turn: asyncio.Event | None = None  # while a request waits for the connection
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._first_by_s = 0.0
        self._pipes: set[RemotePipe] = set()
        self._closing: asyncio.Task[None] | None = None

    async def open(self, wait_ms: Milliseconds = 0) -> None:
        """Connect for the first time. A service that does not answer gets `wait_ms` to start.

        Errors: those of `blackboard.connect`.
        """
        self._first = self._loop.create_future()
        self._first_by_s = self._loop.time() + wait_ms / 1000
        self._keeper = asyncio.create_task(self._keep(), name=f"connection to {self.url}")
        # Nobody awaits the keeper: without this callback, a bug in it would leave requests waiting.
        self._keeper.add_done_callback(self._ended)
        try:
            await self._first
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close the connection. Requests in flight are lost; every watch ends.

        May be called again: each call returns when everything is closed. Cancellation: closing
        continues; the caller waits for it, for at most FINISH_TIMEOUT_MS.
        """
        self._is_closed = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"closing {self.url}")
        await finish(self._closed(self._closing), self.limits.client.finish_timeout_ms)

    async def _close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        self._refuse(Unavailable(what=self.url, reason="the client was closed"))
        await asyncio.gather(*(pipe.aclose() for pipe in self._pipes))

    async def _closed(self, closing: "asyncio.Task[None]") -> None:
        """Wait for a task that is not cancelled with the caller."""
        await asyncio.shield(closing)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed by its client."""
        return self._is_closed

    @contextlib.asynccontextmanager
    async def until_closed(
        self, opening: AbstractAsyncContextManager[RemotePipe]
    ) -> AsyncIterator[RemotePipe]:
        """What `opening` opens; it ends with this connection."""
        async with opening as pipe:
            self._pipes.add(pipe)
            try:
                # `aclose` may have run while the pipe was being opened, and did not see it then.
                if self._is_closed:
                    await pipe.aclose()
                yield pipe
            finally:
                self._pipes.discard(pipe)

    @property
    def address(self) -> Address:
        """Where the service is. Errors: LocalProtocolError once the client was closed."""
        if self._is_closed:
            raise LocalProtocolError(reason="the client was closed")
        return self._address

    # --- asking -----------------------------------------------------------------------------------

    async def ask(self, method: str, params: _Asked, timeout_ms: Milliseconds | None = None) -> Any:
        """Send one request and wait for its result, for at most `timeout_ms`, or the usual limit.

        `params` may be a function: it is called when there is a connection, just before the request
        is sent on it.

        Errors: the error that the service answers; Unavailable when there was no connection for
        `patience_ms`; LostError when the answer can no longer come, or did not come in time.
        """
        if timeout_ms is None:
            timeout_ms = self.limits.connection.request_timeout_ms
        session = await self._ready()
        traceparent = telemetry.traceparent() if self._traces else ""
        # Nothing is awaited from here to the registration: a connection that was lost in between
        # would not know of this request, and nothing would fail it.
        members = params() if callable(params) else params
        number = session.send_request(method, members, traceparent)
        loop = self._loop
        request = _Request(loop.create_future(), timeout_ms, loop.time() + timeout_ms / 1000)
        self._requests[number] = request
        self._unwritten.append(request)
        self._wake.set()
        self._time_out_at(request.deadline_s)
        try:
            return await request.answer
        finally:
            # Also after a cancellation: `_settle` ignores an answer that nobody waits for any more.
            self._requests.pop(number, None)

    def _time_out_at(self, deadline_s: float) -> None:
        """Make `_time_out` run at that time. One timer for all requests costs a tenth of one per
        request."""
        if self._timer is None or deadline_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline_s, self._time_out)

    def _time_out(self) -> None:
        """Fail the requests that waited too long."""
        now_s = self._loop.time()
        # First, because the loop below starts the timer for the next deadline.
        self._timer = None
        for request in self._requests.values():
            if request.deadline_s > now_s:
                self._time_out_at(request.deadline_s)
            elif not request.answer.done():
                reason = f"no answer in {request.timeout_ms} ms"
                request.answer.set_exception(LostError(reason, written=request.written))

    def tell(self, method: str, params: dict[str, Any]) -> None:
        """Send a request without waiting for its answer, if there is a connection now."""
        # Without a connection there is nothing to tell: the watches ended with it, and a reopened
        # one asks for its mark again.
        if self._session is not None and self._session.in_flight < REQUESTS_IN_FLIGHT_MAX:
            self._session.send_request(method, params)
            self._wake.set()

    async def insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` while it is lost or Unavailable, until `patience_ms` have passed.

        Errors: Unavailable then; every other error of `attempt` at once.
        """
        deadline = self._loop.time() + self.patience_ms / 1000
        failures = 0
        while True:
            try:
                return await attempt()
            except (LostError, Unavailable) as error:
                rest_s = pause_s(error, self._backoff_ms(failures))
                if self._refusal is not None or self._loop.time() + rest_s > deadline:
                    # Its own error goes to the caller, because it says when to try again.
                    if isinstance(error, Overloaded):
                        raise
                    raise Unavailable(what=self.url, reason=str(error)) from error
            failures += 1
            await asyncio.sleep(rest_s)

    async def _ready(self) -> ClientSession:
        """Wait until one more request can be sent; returns the session. Errors: Unavailable; the
        refusal."""
        session = self._session
        if session is not None and session.in_flight < _ASKED_MAX:
            return session
        # The keeper may be in a long pause.
        self._demand.set()
        try:
            async with asyncio.timeout(self.patience_ms / 1000):
                # One event wakes all, and those that run first may take the room.
                while self._session is None or self._session.in_flight >= _ASKED_MAX:
                    if self._refusal is not None:
                        raise _fresh(self._refusal)
                    if self._turn is None:
                        self._turn = asyncio.Event()
                    await self._turn.wait()
        except TimeoutError as error:
            reason = f"no connection in {self.patience_ms} ms{self._why}"
            raise Unavailable(what=self.url, reason=reason) from error
        return self._session

    # --- watches ----------------------------------------------------------------------------------

    def add_watch(self, stream: Watching) -> int:
        """A new watch number, whose changes go to `stream` while this connection lasts."""
        self._last_watch += 1
        self._streams[self._last_watch] = stream
        return self._last_watch

    def drop_watch(self, number: int) -> None:
        """Forget a watch number, and end the watch on the service."""
        if self._streams.pop(number, None) is not None:
            self.tell("unwatch", {"watch": number})

    # --- the keeper -------------------------------------------------------------------------------

    async def _keep(self) -> None:
        failures = 0
        while self._refusal is None:
            pause_ms = self._backoff_ms(failures)
            if self._is_first():
                pause_ms = min(pause_ms, _FIRST_PAUSE_MS)
            await self._rest(random.uniform(0.5, 1.0) * pause_ms / 1000)
            # Reset only after the greeting: a service that accepts connections and then refuses or
            # drops them is given pauses, too.
            failures += 1
            session: ClientSession | None = None
            try:
                # A token for each attempt: the last one may have expired during the pauses.
                token = await self._address.fresh_token(self.patience_ms)
                async with self._dial(self._address, token) as socket:
                    session = await self._greet(socket)
                    failures = 0
                    await self._serve(socket, session)
            except (OSError, TimeoutError, WebSocketException, BlackboardError) as error:
                found = translated(error, self.url)
                has_next = session is not None and callable(self._address.token)
                if isinstance(found, Unauthenticated) and has_next:
                    # The token was good, and has ended. If the source gives no better one, the next
                    # attempt is refused, and that is final.
                    found = Unavailable(what=self.url, reason=f"the token ended: {found.reason}")
                elif isinstance(found, InvalidRequest) and not self._is_first():
                    # What was accepted once passes again: a file of authorities that is just being
                    # replaced, or a proxy that does not know the service during a rollout.
                    found = Unavailable(what=self.url, reason=found.reason)
                if not self._is_waited_for(error):
                    self._lose(found)
                elif failures == 1:
                    log.warning("no connection yet, trying again: %s", found)

    def _is_waited_for(self, error: Exception) -> bool:
        """Whether the first connection may still come, after `error`."""
        in_time = self._loop.time() < self._first_by_s
        return self._is_first() and in_time and may_pass(error, self.url)

    def _is_first(self) -> bool:
        """Whether a caller waits for the first connection."""
        return self._first is not None and not self._first.done()

    def _ended(self, keeper: "asyncio.Task[None]") -> None:
        """The keeper ended. If that was a bug of ours, fail what waits for the connection."""
        error = None if keeper.cancelled() else keeper.exception()
        if error is not None:
            log.error("the connection failed", exc_info=error)
            self._lose(LocalProtocolError(reason=f"the connection failed: {error!r}"))

    async def _rest(self, pause_s: float) -> None:
        """Pause before connecting again; a new request cuts a long pause short."""
        # Demand does not cut this part: callers that repeat requests would make it a busy loop.
        await asyncio.sleep(min(pause_s, _PAUSE_S_MIN))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s - _PAUSE_S_MIN):
                await self._demand.wait()
        self._demand.clear()

    def _backoff_ms(self, failures: int) -> Milliseconds:
        pauses_ms = self.limits.client.connect_pauses_ms
        return pauses_ms[min(failures, len(pauses_ms) - 1)]

    async def _greet(self, socket: Open) -> ClientSession:
        session = ClientSession(MSGPACK)
        params: dict[str, Any] = {"client": "python"}
        if self._address.agent is not None:
            params["agent"] = self._address.agent
        session.send_hello(params)
        for frame in session.bytes_to_send():
            await socket.send(frame)
        async with asyncio.timeout(self.limits.connection.handshake_timeout_ms / 1000):
            events = session.receive(_binary(await socket.recv()))
        if isinstance(events[0], Failed):
            raise events[0].error
        if not isinstance(events[0], Answered):
            raise RemoteProtocolError("something else came before the answer to hello")
        if any(isinstance(event, Draining) for event in events[1:]):  # sent in the same frame
            raise Unavailable(what=self.url, reason="the service is stopping")
        greeted: Greeted = answers.read(Greeted, events[0].result)
        self.agent, self.account = greeted.agent, greeted.account
        self._traces = greeted.traces
        return session

    async def _serve(self, socket: Open, session: ClientSession) -> None:
        self._session = session
        self._advance()
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        # Two tasks, because a service that does not read must not keep this one from reading.
        writer = asyncio.create_task(self._write(socket, session))
        refresher = asyncio.create_task(self._refresh())
        violations: list[RemoteProtocolError] = []

        def take(frame: bytes) -> None:
            try:
                self._receive(session, frame)
            except RemoteProtocolError as error:
                # Raised here, in a callback of the transport, it would be logged by asyncio as a
                # fatal error and reach nobody. The loop below raises it.
                violations.append(error)
                socket.take = _ignore
                socket.transport.abort()

        # What arrived before this line is in the socket's queue, which the loop below empties
        # first.
        socket.take = take
        try:
            while True:
                self._receive(session, _binary(await socket.recv()))
        except ConnectionClosed:
            if violations:
                raise violations[0] from None
            raise
        finally:
            # Not None: what still comes would fill the socket's queue. Then the socket would not be
            # read any more, and nobody would see that the service answers the close.
            socket.take, self._session = _ignore, None
            writer.cancel()
            refresher.cancel()
            # An error of the writer is not lost: the socket has failed, so `recv` raises as well.
            await asyncio.gather(writer, refresher, return_exceptions=True)

    async def _refresh(self) -> None:
        """Before each token expires, switch to the next one, if there is a source of tokens."""
        if not callable(self._address.token):
            return
        percent = self.limits.client.token_refresh_percent
        try:
            identity = await self.ask("whoami", {})
        except (BlackboardError, LostError) as error:
            # The service closes the connection when the token expires, and the source is called.
            log.warning("when the token expires is not known: %s", error)
            return
        while (expires_at_ms := identity.get("expires_at_ms")) is not None:
            left_s = expires_at_ms / 1000 - time.time()
            if left_s < _TOKEN_LEFT_S_MIN:
                await asyncio.sleep(_TOKEN_PAUSE_S)
            else:
                await asyncio.sleep(max(left_s * percent / 100, _PAUSE_S_MIN))
            try:
                params = {"token": await self._address.fresh_token(self.patience_ms)}
                identity = await self.ask("refresh", params)
            except (BlackboardError, LostError) as error:
                # It is tried again, ever nearer to the end of the token that is in use.
                log.warning("the token was not refreshed: %s", error)

    async def _write(self, socket: Open, session: ClientSession) -> None:
        while True:
            await self._wake.wait()
            # Before the sends: what is asked during them sets it again.
            self._wake.clear()
            for request in self._unwritten:
                # Before the send: one that fails halfway may have brought these
                # requests to the service.
                request.written = True
            self._unwritten.clear()
            for frame in session.bytes_to_send():
                await socket.send(frame)

    def _receive(self, session: ClientSession, frame: bytes) -> None:
        """Errors: RemoteProtocolError."""
        for event in session.receive(frame):
            self._take(event)

    def _take(self, event: ClientEvent) -> None:
        match event:
            case Answered():
                self._settle(event.id, event.result, None)
            case Failed():
                self._settle(event.id, None, event.error)
            case Changed():
                # None after `drop_watch`: deliveries that were under way still arrive.
                stream = self._streams.get(event.watch)
                if stream is not None:
                    stream.push(event)
            case Cancelled():
                self._cancel(event)
            case Draining():
                # The socket stays: the service still answers the requests that it has.
                self._session = None  # new requests wait for the next connection

    def _settle(self, number: int, result: Any, error: BlackboardError | None) -> None:
        # Each answer makes room for a request that waits in `_ready`.
        self._advance()
        request = self._requests.pop(number, None)
        if request is None or request.answer.done():
            return
        if error is None:
            request.answer.set_result(result)
        else:
            request.answer.set_exception(error)

    def _cancel(self, event: Cancelled) -> None:
        # Removed first, so that the stream does not send `unwatch` for what the service has ended.
        stream = self._streams.pop(event.watch, None)
        if stream is None:
            return
        if isinstance(event.error, Unavailable):
            stream.lose()
        else:
            stream.fail(event.error)

    def _advance(self) -> None:
        """Wake all tasks that wait for the connection."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.set()

    # --- loss -------------------------------------------------------------------------------------

    def _lose(self, error: BlackboardError) -> None:
        """The connection is gone; `error` is permanent unless it is Unavailable."""
        if self._first is not None and self._is_first():
            # Also what is temporary ends the first attempt: the caller of `open`
            # gets it and may retry.
            self._refusal = error
            self._first.set_exception(error)
        if not isinstance(error, Unavailable):
            self._refuse(error)
            return
        self._why = f": {error.reason}"
        self._forget(str(error))

    def _refuse(self, error: BlackboardError) -> None:
        """From now on every request is answered with `error`."""
        if self._refusal is None:
            self._refusal = error
        # `_forget` empties the table. It also fails requests with LostError, which says whether
        # they were written; the refusal would hide that.
        streams = list(self._streams.values())
        self._forget(str(error))
        for stream in streams:
            stream.fail(_fresh(self._refusal))

    def _forget(self, reason: str) -> None:
        requests, self._requests = list(self._requests.values()), {}
        streams, self._streams = list(self._streams.values()), {}
        self._unwritten.clear()
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(LostError(reason, written=request.written))
        for stream in streams:
            stream.lose()
        self._advance()


def _fresh(error: BlackboardError) -> BlackboardError:
    """A copy of the error for another task, because a raised error carries its traceback."""
    return type(error)(**error.fields())


def _binary(message: str | bytes) -> bytes:
    if isinstance(message, str):
        raise RemoteProtocolError("a text message on a binary subprotocol")
    return message


def _ignore(frame: bytes) -> None:
    """Take what comes on a connection that is ending."""
