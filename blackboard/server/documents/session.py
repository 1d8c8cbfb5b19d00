"""One peer of a document: its messages, in order, and those sent to it.

A peer speaks the y-websocket protocol (wire/ysync.py), whether it is a browser behind a WebSocket
or a `Document` in this process.

Invariants
- the edits of a session are committed one after the other; edits that arrive during a commit share
  the next one.
- A sync request is answered when every earlier edit of the session is committed; so a peer learns
  that its edits are safe.
- what a session adds to the log is charged to its account first, reports of overlaps, too.
- An accepted edit is committed even if its sender has left in the meantime, unless its token was
  revoked.
- After a restore, a peer is asked for its edits just before it is sent the restored content. So
  what it made before is in its answer, and is refused if it has not seen the restore; what it sends
  after the answer was made on the restored content, but for what it makes while the content, which
  may be large, is on its way. Who lost a refusal and comes back is refused again, unless it has
  only deleted: that does not show in its state.
- An edit that is committed in another epoch than the room's ends the session: the peer comes back,
  and its state decides.
- at most OUTGOING_BYTES_MAX wait for a peer besides one answer, which may be as large as a
  document, or it is disconnected; a peer whose edits wait is not read from.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from blackboard.client.documents.replica import DamagedError, merged
from blackboard.core.access import Principal, narrowed_from
from blackboard.core.commit import signature
from blackboard.core.documents import update as crdt
from blackboard.core.documents.runs import joined
from blackboard.errors import (
    BlackboardError,
    BoardFrozen,
    DocumentRefused,
    InvalidRequest,
    LimitExceeded,
    RateLimited,
    SnapshotFirst,
)
from blackboard.limits import BARRIER_GRACE_MS, BARRIER_MS_MAX, DOCUMENT_UPDATE_BYTES_MAX
from blackboard.server.documents.room import Room
from blackboard.wire import ysync
from blackboard.wire.ysync import Awareness, Edit, Message, Met, QueryAwareness, Step1, Step2

log = logging.getLogger(__name__)
_BARRIER_PAUSE_S = 0.05
_PAY_PAUSE_MS_MAX = 1_000
"""Longest wait of an edit before its token is checked again."""


class Session:
    """A peer that is connected as `agent`, on `account`. Made by `Documents.join`."""

    def __init__(
        self,
        room: Room,
        who: Principal,
        *,
        can_edit: bool,
        check: Callable[[], None],
        pay: Callable[[int], RateLimited | None],
    ) -> None:
        self.principal, self.agent, self.account = who, who.name, who.account
        self.signed = signature(who.name, narrowed_from(who))
        self._check_token = check
        self._pay = pay
        self.can_edit = can_edit
        self._room = room
        self._outgoing_max = room.limits.service.outgoing_bytes_max
        self._incoming: deque[Message] = deque()
        self._incoming_bytes = 0
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self._write: Callable[[bytes], bool] | None = None
        self._is_drained = False
        """Whether its reader is waiting, and has processed everything."""
        self._answer: bytes | None = None
        self._answered_state = crdt.EMPTY_STATE
        """The state of the peer once it has read its last answer."""
        self._is_asked = False
        """Whether it was requested to send what the document lacks."""
        self._is_greeted = False
        """Whether it has sent that."""
        self._is_stale = room.mark is not None  # until the peer has sent its state
        self._failure: DocumentRefused | None = None
        self._leaving = False
        self._came = asyncio.Event()
        self._taken = asyncio.Event()
        self._ready = asyncio.Event()
        self._over = asyncio.Event()

    # --- for the peer -----------------------------------------------------------------------------

    async def send(self, frame: bytes) -> None:
        """Accept a frame of the peer; waits while too much is still being committed.

        Errors: DocumentRefused when the session has ended, with the reason; Unauthenticated when
        the token is no longer valid.
        """
        self._check()
        self._check_token()
        self._accept(frame)
        while not self.has_room and self._failure is None:
            self._taken.clear()
            await self._taken.wait()
        self._check()

    def take(self, frame: bytes) -> bool:
        """Accept a frame of the peer now, if there is room; False to `send` it instead, because the
        session or the token has ended."""
        if self._failure is not None:
            return False
        try:
            self._check_token()
        except BlackboardError:  # `send` raises it
            return False
        self._accept(frame)
        return True

    @property
    def has_room(self) -> bool:
        """Whether `send` would not wait."""
        return self._incoming_bytes <= DOCUMENT_UPDATE_BYTES_MAX

    def _accept(self, frame: bytes) -> None:
        try:
            messages = ysync.read_frame(frame)
        except (InvalidRequest, LimitExceeded) as error:
            self.end("malformed", str(error))
            messages = []
        for message in messages:
            self._take(message)
        if self._incoming:  # awareness messages are already processed
            self._incoming_bytes += len(frame)

    async def receive(self) -> bytes:
        """The next frame for the peer. Errors: as of `send`.

        Cancellation loses nothing.
        """
        while not self._outgoing:
            self._check()
            self._ready.clear()
            self._is_drained = True
            try:
                await self._ready.wait()
            finally:
                self._is_drained = False
        self._check_token()
        frame = self._outgoing.popleft()
        if frame is self._answer:
            self._answer = None
        else:
            self._outgoing_bytes -= len(frame)
        return frame

    def attach(self, write: Callable[[bytes], bool]) -> None:
        """Send frames directly through `write` while no frame is queued for the peer. If `write`
        returns False, `receive` returns the frame instead.

        The caller must be in `receive` all the time, and finish a frame before the next call.
        """
        self._write = write

    async def ended(self) -> None:
        """Wait until the session has ended."""
        await self._over.wait()

    def _check(self) -> None:
        if self._failure is not None:
            raise DocumentRefused(**self._failure.fields())

    # --- for the room -----------------------------------------------------------------------------

    def deliver(self, frame: bytes) -> None:
        """As `RoomPeer.deliver`."""
        if self._failure is not None or self._leaving or self._has_left(frame):
            return
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)
        self._ready.set()
        if self._outgoing_bytes > self._outgoing_max and len(self._outgoing) > 1:
            self._outgoing.clear()
            self._answer = None
            self.end("too_slow", f"{self._outgoing_bytes} bytes waited to be read")

    def _has_left(self, frame: bytes) -> bool:
        """Whether a frame went straight to the peer."""
        if self._write is None or not self._is_drained or self._outgoing:
            return False
        try:
            self._check_token()
        except BlackboardError:  # `receive` raises it
            return False
        return self._write(frame)

    def answer(self, frame: bytes) -> None:
        """As `RoomPeer.answer`."""
        if self._answer is None and self._failure is None and not self._leaving:
            self._answer = frame
            self._outgoing.append(frame)
            self._ready.set()
        else:
            self.deliver(frame)  # the peer requests more than it reads

    def end(self, cause: str, reason: str) -> None:
        """As `RoomPeer.end`."""
        if self._failure is None:
            self._failure = DocumentRefused(self._room.key, cause, reason)
        self._room.leave(self)
        for event in (self._came, self._taken, self._ready, self._over):
            event.set()

    # --- messages of the peer ---------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        match message:
            case Awareness():
                self._room.note_present(self, message.present)
            case QueryAwareness():
                self._room.tell_present(self)
            case _:
                self._incoming.append(message)
                self._came.set()

    async def run(self) -> None:
        """Process the peer's messages until it has left and everything is committed, or the session
        ends."""
        self._room.join(self)
        if not self._is_stale:
            self._ask()
        try:
            while self._failure is None:
                if self._incoming:
                    await self._serve()
                elif self._leaving:
                    break
                else:
                    self._incoming_bytes = 0
                    self._taken.set()
                    self._came.clear()
                    await self._came.wait()
        except Exception:  # a bug of ours: the peer must not wait for an answer for ever
            log.exception("document %s: a session ends", self._room.key)
        finally:
            self.end("closed", "the session failed")

    async def _serve(self) -> None:
        message = self._incoming.popleft()
        try:
            if isinstance(message, Step1):
                await self._tell(message)
            elif isinstance(message, Step2 | Edit):
                await self._edit(message)
            elif isinstance(message, Met) and self.can_edit:
                await self._report(message)
        except DocumentRefused as refusal:
            self.end(refusal.cause, refusal.reason)
        except InvalidRequest as error:
            self.end("malformed", error.reason)
        except BoardFrozen as error:
            self.end("frozen", f"since revision {error.revision}")  # a reason has 123 bytes
        except (BlackboardError, DamagedError) as error:
            log.info("document %s: a session ends: %s", self._room.key, error)
            self.end("closed", str(error))

    async def _tell(self, message: Step1) -> None:
        if not self._is_greeted:
            self._is_stale = self._room.is_stale(message.state)
        # The answer promises all that was committed before, by other processes, too.
        await self._room.caught_up()
        if self._failure is None:
            self._check_seen(message.state)
            # Queued frames are not sent twice, because they may be as large as a document.
            state = message.state if self._answer is None else self._answered_state
            self._answered_state = self._room.live.state
            self._ask()
            self._room.tell(self, state)

    def _check_seen(self, state: bytes) -> None:
        """A stale peer with insertions of its own is refused before it is sent the restored
        content. Once it had that, its state would say that it has seen the restore, and if the
        refusal got lost with the connection, its edits would pass at the next one.

        Errors: DocumentRefused; InvalidRequest when `state` is none.
        """
        lacks = self._room.lacks(state)
        if self._is_stale and lacks:
            raise self._stale()

    def _stale(self) -> DocumentRefused:
        reason = "made before a restore that its author had not seen"
        return DocumentRefused(self._room.key, "stale", reason)

    def _ask(self) -> None:
        """Request what the document lacks, once."""
        if not self._is_asked:
            self._is_asked = True
            self.deliver(ysync.write_step1(self._room.live.state))

    async def _edit(self, message: Step2 | Edit) -> None:
        """Commit an edit, and those that arrived right after it."""
        updates = [message.update]
        was_greeted, self._is_greeted = self._is_greeted, True
        if isinstance(message, Edit) and not was_greeted:
            # Edits from before the answer to our first request are part of that answer.
            self._is_greeted = False
            return
        # What was made before a restore and what was made after it are not committed together.
        if not self._is_stale:
            updates += self._take_edits(DOCUMENT_UPDATE_BYTES_MAX - len(message.update))
        if self.can_edit:
            await self._afford(sum(map(len, updates)))
        await self._commit(_together(updates))
        # Its earlier edits were accepted or refused, so from here on it is up to date.
        self._is_stale = False

    def _take_edits(self, bytes_max: int) -> list[bytes]:
        """The next edits in the queue, of at most so many bytes."""
        taken: list[bytes] = []
        while self._incoming and isinstance(message := self._incoming[0], Edit):
            bytes_max -= len(message.update)
            if bytes_max < 0:
                break
            taken.append(message.update)
            self._incoming.popleft()
        return taken

    async def _afford(self, size: int) -> None:
        """Wait until the account may add so many bytes to the logs. Meanwhile its peer's messages
        wait in the queue, which is bounded, and it still gets the edits of others."""
        while refusal := self._pay(size):
            self._check_token()
            await asyncio.sleep(min(refusal.retry_after_ms, _PAY_PAUSE_MS_MAX) / 1000)

    async def _report(self, message: Met) -> None:
        value = self._room.report_of(message, self)
        await self._afford(len(value))
        # A checkpoint waits for the agent's state. Nobody would miss the report, but an end of the
        # session would take its edits along.
        with suppress(SnapshotFirst):
            await self._room.report(value, self)

    async def _commit(self, update: bytes) -> None:
        # Stock clients answer our first request whatever their rights: only news are refused.
        if not self.can_edit:
            self._check_nothing_new(update)
            return
        found = self._room.read(update)
        if not self._is_stale:
            self._room.check_known(update, found, self)
        news = self._room.admit(update, found, self.signed)
        if news[0] == crdt.EMPTY_UPDATE:
            return
        if self._is_stale:
            self._room.forget()
            raise self._stale()
        await self._insist(news)

    def _check_nothing_new(self, update: bytes) -> None:
        if self._room.has_news(update):
            raise DocumentRefused(self._room.key, "read_only", f"{self.agent} may only read it")

    async def _insist(self, news: tuple[bytes, crdt.Update]) -> None:
        """Commit; while a checkpoint waits for the agent's state, wait for the cut."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (BARRIER_MS_MAX + BARRIER_GRACE_MS) / 1000
        while True:
            self._check_token()
            try:
                return await self._room.commit(news, self)
            except SnapshotFirst:
                if loop.time() > deadline:
                    raise
                # The refusal dropped the copy on which it was tried.
                self._room.admit(*news, self.signed)
                await asyncio.sleep(_BARRIER_PAUSE_S)

    async def leave(self, task: "asyncio.Task[None]") -> None:
        """The peer has left: process its remaining messages, for at most FINISH_TIMEOUT_MS."""
        self._leaving = True
        self._came.set()
        timeout_ms = self._room.limits.client.finish_timeout_ms
        await asyncio.wait([task], timeout=timeout_ms / 1000)
        task.cancel()


def _together(updates: list[bytes]) -> bytes:
    """Errors: InvalidRequest when one of several is malformed; DamagedError."""
    found = joined(updates)
    # Before the library merges them: what is malformed could end the process there.
    if len(found) > 1:
        for update in found:
            crdt.read_update(update)
    return merged(found)
