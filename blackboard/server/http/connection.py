"""One WebSocket of the server: the session of wire/session.py with a socket, tasks and a clock.

The reader takes frames while there is room for their answers. Frames of commits are taken in the
turn of the event loop in which they arrive, if the reader has nothing else to do. Messages of one
turn leave as one frame; the writer sends it if the socket does not take it at once. Each watch has
a pump, which takes from its stream only while the socket keeps up; a delivery is written without
the pump and the writer if nothing waits for the socket.
Nothing is ever dropped: what was not sent yet is in the log.

Invariants
- At most REQUESTS_IN_FLIGHT_MAX requests are served at a time. Nothing is read from the socket
  while READS_WAITING_MAX of them are reads. While the account is in debt, further reads are refused
  instead, so that a renewal behind them gets through.
- Nothing is read from the socket while OUTGOING_BYTES_MAX bytes wait to be sent. A watch adds to
  them only while they are less than one delivery (WATCH_BATCH_BYTES_MAX).
- Parsing a frame, starting a read and packing a delivery wait for the account's share
  (charges.py), and are charged to it.
- An accepted request is carried out even if its connection breaks.
- Every task of a connection has ended before `run` returns.

The module also defines the WebSocket's interface, its close codes and its clocks.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final, Protocol

from blackboard import telemetry
from blackboard.client.link import Transport
from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.errors import (
    BlackboardError,
    LimitExceeded,
    Overloaded,
    RemoteProtocolError,
    Unauthenticated,
    Unavailable,
)
from blackboard.limits import REQUESTS_IN_FLIGHT_MAX, Limits
from blackboard.server.commit_queue import Answered, Outcomes
from blackboard.server.http.dispatch import call, describe, is_read
from blackboard.server.http.metrics import Traffic
from blackboard.server.http.reads import Reads
from blackboard.server.http.uvicorn_protocol import framed
from blackboard.server.http.watches import Sending, Watches
from blackboard.server.latency import Latencies
from blackboard.server.overload.admission import Admission
from blackboard.server.overload.charges import (
    COMMIT_US,
    READ_US,
    STRANGERS,
    Bill,
    Charges,
    Shares,
    Subscription,
    frame_us,
)
from blackboard.server.requests import RequestHandler
from blackboard.units import Milliseconds
from blackboard.wire.answers import ReceiptMessage, WelcomeMessage
from blackboard.wire.frames import CLOSE_WRONG_TYPE, FRAME_JOIN_BYTES
from blackboard.wire.methods import (
    CommitParams,
    HelloParams,
    Params,
    ProgressParams,
    RefreshParams,
    UnwatchParams,
    WatchParams,
    WhoAmIParams,
)
from blackboard.wire.requests import may_be_commits
from blackboard.wire.session import (
    ConnectionState,
    HelloReceived,
    RequestId,
    RequestReceived,
    RequestRefused,
    ServerEvent,
    ServerSession,
)

CLOSE_INTERNAL_ERROR: Final = 1011
CLOSE_RESTART: Final = 1012
CLOSE_TRY_LATER: Final = 1013
CLOSE_UNAUTHENTICATED: Final = 4401
CLOSE_FORBIDDEN: Final = 4403
CLOSE_TOO_SLOW: Final = 4408


class ServerSocket(Protocol):
    """An accepted WebSocket."""

    async def receive(self) -> str | bytes | None:
        """The next message; None when the peer is gone."""

    async def send(self, frame: bytes) -> None:
        """Send one frame, when there is room for it. OSError when the peer is gone."""

    def write(self, frame: bytes) -> bool:
        """Write a whole WebSocket frame if the socket takes it at once; returns whether it did."""

    def trust(self, account: str) -> None:
        """Accept messages of every size, counted for this account: the peer is authenticated."""

    def offer(self, take: Callable[[bytes], bool]) -> None:
        """From here on offer each message to `take` when it arrives, if no other one waits before
        it; `receive` returns those that it does not take."""

    async def close(self, code: int, reason: str) -> None:
        """Close with a code and a reason."""


@dataclass(frozen=True, slots=True)
class End:
    """How a connection ends: `code` None = the peer is gone; `flush` = send waiting messages
    first."""

    code: int | None
    reason: str = ""
    flush: bool = False


def close_code(error: BlackboardError) -> int:
    """The code for a connection that is refused with `error`."""
    if isinstance(error, Unauthenticated):
        return CLOSE_UNAUTHENTICATED
    return CLOSE_TRY_LATER if isinstance(error, LimitExceeded | Unavailable) else CLOSE_FORBIDDEN


def clock_ms() -> Milliseconds:
    """The clock of sessions: it never jumps, and is unrelated to the date."""
    return time.monotonic_ns() // 1_000_000


def date_ms() -> Milliseconds:
    """The date, in milliseconds since 1970: tokens expire by it."""
    return time.time_ns() // 1_000_000


class _FrameMeter:
    """Measures the cost of parsing one frame. Small frames are not timed, because reading the clock
    takes a microsecond. Commits have a fixed price, because many share one engine call."""

    __slots__ = ("_began_ns", "_is_large", "_size", "_spent_ns", "commits")

    def __init__(self, size: int) -> None:
        self.commits = 0
        self._size = size
        self._is_large = size > _SMALL_FRAME_BYTES
        self._spent_ns = 0
        self.start()

    def start(self) -> None:
        """Continue measuring."""
        self._began_ns = time.thread_time_ns() if self._is_large else 0

    def stop(self) -> None:
        """Stop measuring while other tasks run."""
        if self._is_large:
            self._spent_ns += time.thread_time_ns() - self._began_ns

    def total_us(self) -> float:
        """The measured time in microseconds."""
        self.stop()
        looked_us = self._spent_ns / 1_000 if self._is_large else frame_us(self._size)
        return looked_us + COMMIT_US * self.commits


_SMALL_FRAME_BYTES: Final = 1_024
_COMMIT: Final = "commit"
_Commit = tuple[RequestId, CommitParams, str]
"""A commit, and the trace that it belongs to."""


def _destination(request: _Commit) -> tuple[str | None, str]:
    """The agent and the board of a commit."""
    return request[1].agent, request[1].board


log = logging.getLogger(__name__)

_LINKS_MAX: Final = 256
"""Agents whose links a connection keeps. Links of further agents are created for each request."""

_REASON_BYTES_MAX: Final = 123  # RFC 6455, section 5.5: a control frame has 125 bytes


class ConnectionOwner(Protocol):
    """The parts of its server that a connection needs."""

    traffic: Traffic
    shares: Shares
    charges: Charges
    limits: Limits
    latencies: Latencies

    def authenticate(self, token: str) -> Principal:
        """The principal that a token names. Errors: Unauthenticated."""

    def link(self, principal: Principal, agent: str | None = None) -> Transport:
        """A link to the boards for a principal as `agent`. Errors: AccessDenied."""

    def succeed(
        self, before: Principal, now: Principal, agents: Iterable[str]
    ) -> dict[str, Principal]:
        """What `now` is as each of `agents`, in place of `before`. Errors: AccessDenied."""

    def welcome(self, principal: Principal, agent: str) -> WelcomeMessage:
        """The answer to `hello`."""

    def count_in(self, connection: "Connection", principal: Principal) -> None:
        """Count a connection for its account. Errors: LimitExceeded when there are too many."""

    def admission(self, principal: Principal) -> Admission:
        """The rate limits that apply to a principal. Errors: Overloaded."""


class Connection:
    """The connection of one peer. `run` serves it until it ends; `drain` lets it finish."""

    def __init__(
        self,
        socket: ServerSocket,
        session: ServerSession,
        owner: ConnectionOwner,
        principal: Principal | None,
    ) -> None:
        self._socket = socket
        self._session = session
        self._owner = owner
        self._principal = principal
        self._link: Transport | None = None
        self._links: dict[str, Transport] = {}
        self._admission: Admission | None = None  # set with hello
        self._serving = 0
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[End] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}  # by what they call
        self._expiry: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._progress: asyncio.Event | None = None  # while a task waits for it
        self._held: list[bytes] = []
        """Frames that the socket did not take at once; the writer sends them first."""
        self._answering: tuple[tuple[RequestHandler, str], Answered] | None = None
        self._is_flush_due = False
        self._is_listening = False
        """Whether the reader waits for a frame, and has nothing else to do."""
        self._unsent = 0
        """Bytes of frames in `_held`, and of those that the writer is sending."""
        self._sending_since: float | None = None
        self._limits = owner.limits.service
        self._reads = Reads(self._spawn, lambda: self.waiting, owner.limits)
        self._watches = Watches(
            session,
            spawn=self._spawn,
            sending=Sending(
                self._send_soon, self._room, self._share, self._is_free, self._write_at_once
            ),
            payer=lambda: Subscription(owner.charges, self._account),
        )

    @property
    def waiting(self) -> int:
        """The number of bytes that wait for the socket."""
        return self._session.outgoing_bytes + self._unsent

    async def run(self) -> None:
        """Serve the peer. Returns when the connection is closed."""
        try:
            self._check_greeted()
            self._after(self._limits.send_timeout_ms // 4, self._check_stalled)
            self._spawn(self._read())
            self._spawn(self._write())
            end = await self._ended
        finally:
            await self._stop()
        await self._close(end)
        self._let_go()

    def recheck(self, check: Callable[[Principal], None]) -> None:
        """Close the connection if `check` says that its token was revoked."""
        if self._principal is not None:
            try:
                check(self._principal)
            except Unauthenticated as error:
                self._end(CLOSE_UNAUTHENTICATED, error.reason, flush=True)

    def turn_out(self) -> None:
        """Close the connection to make room for newer ones: it has not sent `hello` yet."""
        self._end(CLOSE_TRY_LATER, "too many have not said hello yet")

    def drain(self) -> None:
        """Refuse new requests, answer those in flight, end the watches, and close."""
        if self._ended.done():
            return  # what it would start now would run after `_let_go`
        if self._session.state is ConnectionState.HELLO:
            self._end(CLOSE_RESTART, "the service stops")
        elif self._session.state is ConnectionState.READY:
            self._session.send_draining()
            self._send_soon()
            self._spawn(self._drain())

    # --- tasks and timers -------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if isinstance(error, RemoteProtocolError):
            self._owner.traffic.protocol_errors += 1
            self._end(error.close_code, error.reason)
        elif isinstance(error, OSError):
            self._end(None)
        else:
            log.error("a connection failed", exc_info=error)
            self._end(CLOSE_INTERNAL_ERROR, "internal error")

    def _end(self, code: int | None, reason: str = "", *, flush: bool = False) -> None:
        if not self._ended.done():
            self._ended.set_result(End(code, reason, flush))

    def _after(self, delay_ms: Milliseconds, action: Callable[[], None]) -> None:
        self._timers[action] = self._loop.call_later(delay_ms / 1000, action)

    async def _stop(self) -> None:
        self._ended.cancel()  # not yet done if the server cancels the connection
        for timer in [*self._timers.values(), *filter(None, [self._expiry])]:
            timer.cancel()
        self._reads.close()  # otherwise a cancelled read would start the next
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _let_go(self) -> None:
        """Break the reference cycles of this object. They hold tens of kilobytes, and the garbage
        collector visits old objects only once in days."""
        self._timers.clear()
        self._answering = None
        del self._reads, self._watches

    async def _close(self, end: End) -> None:
        frames = [*self._held, *self._session.bytes_to_send()] if end.flush else []
        self._session.close()
        self._held.clear()
        self._unsent = 0
        if end.code is None:
            return
        reason = end.reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
        try:
            async with asyncio.timeout(self._limits.close_timeout_ms / 1000):
                for frame in frames:
                    await self._socket.send(frame)
                await self._socket.close(end.code, reason)
        except (OSError, TimeoutError) as error:
            log.debug("close %d was not delivered: %r", end.code, error)

    def _check_greeted(self) -> None:
        now_ms = clock_ms()
        try:
            again_ms = self._session.tick(now_ms)
        except RemoteProtocolError as error:
            self._end(CLOSE_UNAUTHENTICATED, error.reason)
            return
        if again_ms is not None:
            self._after(again_ms - now_ms, self._check_greeted)

    def _check_stalled(self) -> None:
        since, timeout_ms = self._sending_since, self._limits.send_timeout_ms
        # One timer for the connection, not one for each frame: most frames leave at once.
        if since is not None and (self._loop.time() - since) * 1000 >= timeout_ms:
            self._end(CLOSE_TOO_SLOW, "you did not read; resume watches at your last position")
        else:
            self._after(timeout_ms // 4, self._check_stalled)

    # --- the socket -------------------------------------------------------------------------------

    async def _read(self) -> None:
        while await self._read_frame():
            pass
        self._end(None)

    async def _read_frame(self) -> bool:
        """Receive and handle the next frame; False when the peer is gone. No reference to a frame
        is kept while waiting for the next one, because it may have FRAME_BYTES_MAX."""
        self._is_listening = True
        message = await self._socket.receive()
        self._is_listening = False
        if message is None:
            return False
        binary = self._session.encoding.binary
        if isinstance(message, bytes) is not binary:
            wanted = "binary" if binary else "text"
            raise RemoteProtocolError(f"{wanted} messages only", CLOSE_WRONG_TYPE)
        frame = message.encode() if isinstance(message, str) else message
        if self._admission is not None and self._admission.pause_ms:
            await self._admission.pause()  # a frame before it, which `_take_at_once` took
        # Before it is parsed, which is the first thing that costs time.
        await self._share(frame_us(len(frame)))
        over, meter = self._counted(frame), _FrameMeter(len(frame))
        for event in self._session.receive(frame):
            if self._is_full():
                meter.stop()
                await self._until(lambda: not self._is_full())
                meter.start()
            self._take(event, over)
            meter.commits += isinstance(event, RequestReceived) and event.params.method == _COMMIT
        self._owner.charges.charge(self._account, meter.total_us())
        if self._admission is not None and self._admission.pause_ms:
            await self._admission.pause()
        return True

    def _counted(self, frame: bytes) -> Overloaded | None:
        """Count a frame; returns why none of its requests is accepted, None if they may be."""
        traffic = self._owner.traffic
        traffic.frames_in += 1
        traffic.bytes_in += len(frame)
        return None if self._admission is None else self._admission.over(len(frame))

    def _take_at_once(self, frame: bytes) -> bool:
        """Handle a frame of commits in the turn of the event loop in which it arrives; False to
        leave it to the reader: it is busy or would have to wait, or the frame has other
        requests."""
        admission = self._admission
        if (
            not self._is_listening
            or admission is None
            or admission.pause_ms
            or self._ended.done()
            or self._is_full()
            or not may_be_commits(frame)
            or not self._owner.shares.at_once(self._account, frame_us(len(frame)))
        ):
            return False
        meter = _FrameMeter(len(frame))
        commits = self._session.receive_commits(frame, REQUESTS_IN_FLIGHT_MAX - self._serving)
        if not commits:
            self._owner.charges.charge(self._account, meter.total_us())  # it is parsed again
            return False
        over = self._counted(frame)
        self._serving += len(commits)
        self._commit(commits, over)
        meter.commits = len(commits)
        self._owner.charges.charge(self._account, meter.total_us())
        return True

    def _offered(self, frame: bytes) -> bool:
        """See `ServerSocket.offer`."""
        try:
            return self._take_at_once(frame)
        except Exception:
            log.exception("a connection failed")
            self._end(CLOSE_INTERNAL_ERROR, "internal error")
            return True

    def _is_full(self) -> bool:
        return (
            self._serving >= REQUESTS_IN_FLIGHT_MAX
            or self.waiting >= self._limits.outgoing_bytes_max
            or (len(self._reads) >= self._limits.reads_waiting_max and not self._is_in_debt)
        )

    @property
    def _is_in_debt(self) -> bool:
        return self._owner.charges.debt_s(self._account) > 0

    async def _share(self, cost_us: float) -> None:
        """Wait for this peer's share of the processor; see server/overload/charges.py."""
        await self._owner.shares.wait(self._account, cost_us)

    @property
    def _account(self) -> str:
        known = self._admission or self._principal  # known by its token before `hello`
        return STRANGERS if known is None else known.account

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is checked whenever something was sent or read."""
        while not condition():
            if self._progress is None:
                self._progress = asyncio.Event()
            await self._progress.wait()

    async def _room(self) -> None:
        """Wait until fewer bytes wait for the socket than one delivery has."""
        delivery = self._owner.limits.watch.watch_batch_bytes_max
        if self.waiting >= delivery:
            await self._until(lambda: self.waiting < delivery)

    def _is_free(self, cost_us: float) -> bool:
        """Whether neither `_room` nor `_share` would wait; uses up the share."""
        is_open = self._session.state is not ConnectionState.CLOSED and not self._ended.done()
        if not is_open or self.waiting >= self._owner.limits.watch.watch_batch_bytes_max:
            return False
        return self._owner.shares.at_once(self._account, cost_us)

    def _write_at_once(self, frame: bytes) -> bool:
        """Write a frame without the writer, unless something waits to be sent before it, or the
        socket is full; returns whether it was written."""
        if self.waiting or not self._socket.write(frame):
            return False
        traffic = self._owner.traffic
        traffic.frames_out += 1
        traffic.bytes_out += len(frame)
        return True

    def _send_soon(self) -> None:
        """Send what waits in the session after the callbacks that are ready, whose messages may
        share its frame."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what waits in the session without waking the writer, if it has nothing to send."""
        self._is_flush_due = False
        if self._ended.done():
            return  # what is still to be sent is sent with the close
        if self._unsent or self._session.outgoing_bytes > FRAME_JOIN_BYTES:
            self._wake.set()
            return
        for message in self._session.bytes_to_send():
            if not self._write_at_once(framed(message, self._session.encoding)):
                self._held.append(message)
                self._unsent += len(message)
                self._wake.set()
        self._progressed()

    async def _write(self) -> None:
        traffic = self._owner.traffic
        while True:
            await self._wake.wait()
            self._wake.clear()
            frames = [*self._held, *self._session.bytes_to_send()]
            self._held.clear()
            self._unsent = sum(map(len, frames))
            for frame in frames:
                self._sending_since = self._loop.time()
                await self._socket.send(frame)
                self._unsent -= len(frame)
                traffic.frames_out += 1
                traffic.bytes_out += len(frame)
            self._sending_since = None
            self._progressed()

    def _progressed(self) -> None:
        """Wake all tasks that wait for room."""
        self._reads.go_on()
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.set()

    # --- requests ---------------------------------------------------------------------------------

    def _take(self, event: ServerEvent, over: Overloaded | None) -> None:
        match event:
            case RequestReceived():
                self._serving += 1
                if isinstance(event.params, CommitParams):
                    self._commit([(event.id, event.params, event.traceparent)], over)
                else:
                    self._take_request(event, over)
            case HelloReceived():
                self._greet(event)
            case RequestRefused():
                self._owner.traffic.count("", event.error.code)
                self._send_soon()

    def _take_request(self, event: RequestReceived, over: Overloaded | None) -> None:
        number, params = event.id, event.params
        assert self._admission is not None, "requests come after hello"
        refusal = over or self._admission.refusal(params.method)
        if refusal is None and is_read(params):
            refusal = self._refusal_of_read()
        if refusal is not None:
            self._answer(number, params.method, refusal)
        elif is_read(params):
            self._reads.add(partial(self._serve, number, params))
        else:
            self._spawn(self._serve(number, params, event.traceparent))

    def _refusal_of_read(self) -> Overloaded | None:
        """The reason to refuse a read instead of queueing it; None if it may be queued. While the
        account is in debt, its connections are still read, because a renewal may be behind its
        reads; so the queue of reads must be bounded here."""
        if len(self._reads) < self._limits.reads_waiting_max:
            return None
        return self._owner.charges.refusal(self._account)

    def _greet(self, hello: HelloReceived) -> None:
        try:
            principal = self._identify(hello.params)
            link = self._owner.link(principal, hello.params.agent)
            self._admission = self._owner.admission(principal)
            self._owner.count_in(self, principal)
        except BlackboardError as error:
            self._session.respond_error(hello.id, error)
            self._end(close_code(error), str(error), flush=True)
            return
        self._socket.trust(principal.account)
        self._socket.offer(self._offered)
        self._principal, self._link = principal, link
        self._expire_at(principal.expires_at_ms)
        self._session.welcome(hello.id, self._owner.welcome(principal, link.agent))
        self._send_soon()

    def _identify(self, hello: HelloParams) -> Principal:
        """Errors: Unauthenticated."""
        if hello.token is not None:
            return self._owner.authenticate(hello.token)
        if self._principal is None:
            raise Unauthenticated(reason="a token is needed, in a header or in hello")
        return self._principal

    def _refresh(self, token: str, link: Transport) -> Any:
        """Switch to a new token. If it has other rights, the watches are resumed with those.

        Errors: Unauthenticated; AccessDenied for the token of another principal; Overloaded.
        """
        principal, before = self._owner.authenticate(token), self._principal
        assert self._link is not None
        assert before is not None
        links = {self._link.agent: self._link, **self._links}
        now = self._owner.succeed(before, principal, links)
        admission = self._owner.admission(principal)  # the last that may refuse it
        if access.same_rights(principal, before):
            for name, own in links.items():
                if isinstance(own, RequestHandler):
                    own.principal = now[name]
        else:
            self._watches.end_all(Unavailable(what="watch", reason="the token's rights changed"))
            self._link = self._owner.link(now[self._link.agent])
            self._links.clear()
        self._principal, self._admission = principal, admission
        self._expire_at(principal.expires_at_ms)
        return describe(principal, link.agent)

    def _expire_at(self, instant_ms: Milliseconds | None) -> None:
        """Close the connection at `instant_ms`; replaces an earlier time."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if instant_ms is not None:
            delay_s = max(instant_ms - date_ms(), 0) / 1000
            self._expiry = self._loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._end(CLOSE_UNAUTHENTICATED, "the token has expired")

    def _link_of(self, agent: str | None) -> Transport:
        """Errors: AccessDenied."""
        assert self._link is not None, "requests come after hello"
        assert self._principal is not None
        if agent is None or agent == self._link.agent:
            return self._link
        found = self._links.get(agent)
        if found is None:
            found = self._owner.link(self._principal, agent)
            if len(self._links) >= _LINKS_MAX:
                self._links = self._watches.links()  # a newer token must reach these
            self._links[agent] = found
        return found

    def _commit(self, requests: list[_Commit], over: Overloaded | None) -> None:
        """Carry out commits that came in one frame, without a task for each. Those of one agent on
        one board pass the gates together."""
        assert self._admission is not None, "requests come after hello"
        if over is not None or not self._admission.takes_all:
            requests = [each for each in requests if not self._is_refused(each[0], over)]
        for (agent, board), together in groupby(requests, _destination):
            self._commit_together(agent, board, list(together))

    def _is_refused(self, number: RequestId, over: Overloaded | None) -> bool:
        assert self._admission is not None
        refusal = over or self._admission.refusal(_COMMIT)
        if refusal is not None:
            self._answer(number, _COMMIT, refusal)
        return refusal is not None

    def _commit_together(self, agent: str | None, board: str, requests: list[_Commit]) -> None:
        refused: Outcomes = []
        try:
            link = self._link_of(agent)
            if isinstance(link, RequestHandler) and link.can_start(board):
                refused = link.start(board, requests, self._answerer(link, board))
            else:
                for number, params, traceparent in requests:
                    self._spawn(self._serve(number, params, traceparent))
        except BlackboardError as error:
            refused = [(number, error) for number, *_ in requests]
        for number, outcome in refused:
            self._answer(number, _COMMIT, outcome)

    def _answerer(self, link: RequestHandler, board: str) -> Answered:
        """What answers commits of `link` to `board`: the same for all frames, so that what an
        engine call decided is answered in one."""
        if self._answering is None or self._answering[0] != (link, board):
            self._answering = (link, board), partial(self._committed, link, board)
        return self._answering[1]

    def _committed(self, link: RequestHandler, board: str, outcomes: Outcomes) -> None:
        """Answer commits that were decided together."""
        try:
            self._answer_commits(link, board, outcomes)
        except Exception:
            log.exception("a connection failed")
            self._end(CLOSE_INTERNAL_ERROR, "internal error")

    def _answer_commits(self, link: RequestHandler, board: str, outcomes: Outcomes) -> None:
        session, accepted = self._session, 0
        for number, outcome in outcomes:
            try:
                receipt = link.finish(board, outcome)
            except BlackboardError as error:
                self._answer(number, _COMMIT, error)
                continue
            accepted += 1
            if session.state is not ConnectionState.CLOSED:
                session.respond(number, ReceiptMessage.of(receipt))
        if accepted:
            self._serving -= accepted
            self._owner.traffic.count(_COMMIT, "ok", accepted)
            self._flush()

    def _answer(self, number: RequestId, method: str, result: Any) -> None:
        """Answer a request, with an error if `result` is one, unless the peer is gone."""
        is_error = isinstance(result, BlackboardError)
        if self._session.state is not ConnectionState.CLOSED:
            (self._session.respond_error if is_error else self._session.respond)(number, result)
        self._serving -= 1
        self._send_soon()
        self._owner.traffic.count(method, result.code if is_error else "ok")

    async def _serve(self, number: RequestId, params: Params[Any], traceparent: str = "") -> None:
        bill, begun_s = self._owner.charges.bill(self._account, params.method), self._loop.time()
        with telemetry.continuing(traceparent):
            await bill.run(partial(self._carry_out, number, params, bill))
        if params.method != _COMMIT:
            self._owner.latencies.requests[params.method].observe(self._loop.time() - begun_s)

    async def _carry_out(self, number: RequestId, params: Params[Any], bill: Bill) -> None:
        try:
            link = self._link_of(params.agent)
            if isinstance(params, WatchParams):
                self._watches.open(number, params, link)
                self._serving -= 1
                self._send_soon()
                self._owner.traffic.count(params.method, "ok")
            else:
                self._answer(number, params.method, await self._result(params, link, bill))
        except BlackboardError as error:
            self._answer(number, params.method, error)
        except BaseException:
            self._serving -= 1
            raise

    async def _result(self, params: Params[Any], link: Transport, bill: Bill) -> Any:
        match params:
            case UnwatchParams():
                return self._watches.close(params.watch)
            case ProgressParams():
                return await self._watches.request_progress(params.watch)
            case WhoAmIParams():
                assert self._principal is not None
                return describe(access.acting_as(self._principal, link.agent), link.agent)
            case RefreshParams():
                return self._refresh(params.token, link)
        if not is_read(params):
            return await call(link, params, self._session.encoding)
        if self._is_in_debt:
            self._progressed()  # the reader may have stopped before the opening
        await bill.begin()
        await self._share(READ_US)
        found = await call(link, params, self._session.encoding)
        await self._share(READ_US)  # to pack it: many commits wait for one sync and return together
        return found

    # --- the end ----------------------------------------------------------------------------------

    async def _drain(self) -> None:
        await self._until(lambda: not self._serving)
        self._watches.end_all(Unavailable(what="service", reason="it is stopping"))
        self._end(CLOSE_RESTART, "the service stops; come back soon", flush=True)
