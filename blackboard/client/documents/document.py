"""A collaborative document: edits are local first, and all replicas converge.

    doc = await board.document("public/memo")
    memo = doc.text()
    memo.append("Buy.")
    await doc.synced()

An edit is applied locally at once and sent in the background. You can continue while the connection
is broken; those edits are sent when it is back. Text positions are Unicode code points.
"""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from pycrdt import Array, Doc, Map, Subscription, Text, TransactionEvent, UndoManager

from blackboard.client.documents.inverse import digest_of
from blackboard.client.documents.overlap import Overlap, Overlaps
from blackboard.client.documents.replica import DamagedError, guarded, merged
from blackboard.client.documents.shared_types import (
    SharedList,
    SharedMap,
    SharedText,
    check_text,
    notify_observer,
    plain,
)
from blackboard.client.link import Pipe, Transport
from blackboard.core import freeze
from blackboard.core.documents import update as crdt
from blackboard.core.documents.runs import joined
from blackboard.core.path import check_document
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    DocumentRefused,
    InvalidRequest,
    LimitExceeded,
    LocalProtocolError,
    Unavailable,
)
from blackboard.limits import DOCUMENT_UPDATE_BYTES_MAX
from blackboard.units import Key, Milliseconds
from blackboard.wire import ysync
from blackboard.wire.ysync import Awareness, AwarenessState, Edit, QueryAwareness, Step1, Step2

log = logging.getLogger(__name__)
_PASSING = frozenset({"closed", "gap", "too_slow"})
"""Causes after which the document is opened again, with all local edits."""
_CROWDED = frozenset({"DOCUMENTS_MAX", "DOCUMENT_SESSIONS_MAX"})
"""Limits at which a service has no room for this replica now, and has room when others leave."""
Waiting = list[asyncio.Future[None]]
_TEXT = "text"
_OWN = "own"
_MEETINGS_MAX = 64
"""Overlaps to be reported; beyond the limit, the oldest are dropped."""


class Document:
    """One replica of the document at `key`. Made by `Board.document`; `await` or `async with` it.

    Errors of every edit: DocumentRefused once the service has refused this replica (see its
    `cause`); edits that were not sent are lost, and `Board.document` opens a new replica.
    """

    def __init__(self, link: Transport, board: str, key: Key) -> None:
        self.key = check_document(key)
        self._link = link
        self._limits = link.limits
        self._board = board
        self._doc: Doc[Any] = Doc()
        self.version = 0
        """As `Editing.version` (client/documents/shared_types.py)."""
        self._in_transaction = False
        self._between = asyncio.Event()
        """Set while no transaction is open."""
        self._between.set()
        self._unsent: list[bytes] = []
        self._failure: BlackboardError | None = None
        self._closed = False
        self._presence_clock = 0
        self._presence = ""
        self._others: dict[int, AwarenessState] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._asked: deque[tuple[int, Waiting]] = deque()
        self._is_answered = False
        self._failures = 0
        """Connections that ended since the service last confirmed what it was sent."""
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # 0: by default, edits that follow each other quickly are undone as one.
        self._undo = UndoManager(capture_timeout_millis=0)
        # Otherwise it would undo the edits of others, too.
        self._undo.include_origin(_OWN)
        self._scopes: set[str] = set()
        self._observed: dict[Subscription, Any] = {}
        """What each subscription observes. The library never frees a value that has one."""
        self._texts: dict[str, SharedText] = {}
        self._overlaps = Overlaps(self._met)
        self._overlap_observers: list[Callable[[Overlap], None]] = []
        self._authors: tuple[int, ...] = ()
        self._meetings: deque[ysync.Met] = deque(maxlen=_MEETINGS_MAX)
        self.observe_shared(self._doc, self._note)

    # --- life cycle -------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, "Document"]:
        return self._open().__await__()

    async def __aenter__(self) -> "Document":
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._failure is None:
                await self.synced()
        finally:
            await self.aclose()

    async def _open(self) -> "Document":
        """Load the document. Errors: AccessDenied, Unavailable, InvalidRequest; as of `synced`."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"replica of {self.key}")
            try:
                await self.synced()
            except BaseException:
                await self.aclose()
                raise
        return self

    async def aclose(self) -> None:
        """Close the document. Edits for which no `synced` waited may not have been sent."""
        self._closed = True
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
        finally:  # also if the caller does not wait for the end of the connection
            for subscription in tuple(self._observed):
                self._end(subscription)
            self._fail(Unavailable(what=f"document {self.key}", reason="it was closed"))

    async def synced(self, *, timeout_ms: Milliseconds | None = None) -> None:
        """Wait until every edit made here so far is committed, and everything that was committed
        before is here.

        Errors: DocumentRefused; AccessDenied; Unavailable after `timeout_ms` (None: after
        REQUEST_TIMEOUT_MS), BoardFrozen, or LimitExceeded (DOCUMENTS_MAX, DOCUMENT_SESSIONS_MAX):
        the edits are kept and still sent when the service is back, or has room, or the board is
        thawed.
        Cancellation: loses nothing.
        """
        if timeout_ms is None:
            timeout_ms = self._limits.connection.request_timeout_ms
        self._check()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._came.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError as error:
            reason = f"no answer within {timeout_ms} ms"
            raise Unavailable(what=f"document {self.key}", reason=reason) from error

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(**self._failure.fields())
        if self._closed:
            raise DocumentRefused(self.key, "closed", "it was closed here")

    # --- content ----------------------------------------------------------------------------------

    def text(self, name: str = _TEXT) -> SharedText:
        """The text called `name` at the top of the document."""
        found = self._root(name, Text)
        if name not in self._texts:
            self._texts[name] = text = SharedText(self, found)
            # One wrapper for each text: `follow` relies on being the only one that edits it.
            text.follow()
            text.observe(lambda deltas: self._overlaps.changed(name, deltas))
        return self._texts[name]

    def list(self, name: str) -> SharedList:
        """The list called `name` at the top of the document."""
        return SharedList(self, self._root(name, Array))

    def map(self, name: str) -> SharedMap:
        """The map called `name` at the top of the document."""
        return SharedMap(self, self._root(name, Map))

    def _root(self, name: str, kind: type[Any]) -> Any:
        self._check()
        check_text(name, "name")
        if name not in self._scopes and self._in_transaction:
            raise LocalProtocolError(reason=f"ask for {name!r} before the transaction begins")
        found = self._doc.get(name, type=kind)
        if name not in self._scopes:
            self._scopes.add(name)
            self._undo.expand_scope(found)
            if kind is not Text:
                below = self._overlaps.changed_below
                self.observe_shared(found, lambda events: below(name, events), deep=True)
        return found

    def observe_shared(
        self, shared: Any, notify: Callable[[Any], None], *, deep: bool = False
    ) -> Callable[[], None]:
        """Call `notify` with each event of a value of the library, with `deep` also of what is in
        it; until the document is closed, or the returned function is called. What `text`, `list`
        and `map` give has an `observe` of its own."""
        subscription = shared.observe_deep(notify) if deep else shared.observe(notify)
        self._observed[subscription] = shared
        return lambda: self._end(subscription)

    def _end(self, subscription: Subscription) -> None:
        shared = self._observed.pop(subscription, None)
        if shared is not None:
            shared.unobserve(subscription)

    def value(self) -> dict[str, Any]:
        """All top-level types that were requested by name, as plain values."""
        return {n: plain(v) for n, v in sorted(self._doc.items()) if n in self._scopes}

    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal; it does not depend on the history. The cost grows
        with the size of the document.
        """
        self._check()
        return digest_of(self._lacking(crdt.EMPTY_STATE))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Edits of the block are one update and one step of undo; they are all made or, if the
        process dies before, none. An exception does not undo the edits before it.

        Request the top-level types that you edit before it begins. The edits of others wait for its
        end, also if it awaits something."""
        self._check()
        self.version += 1
        outer, self._in_transaction = self._in_transaction, True
        self._between.clear()
        try:
            with self._doc.transaction(origin=_OWN):
                yield
        finally:
            self._in_transaction = outer
            if not outer:
                self._between.set()

    def observe_overlaps(self, observer: Callable[[Overlap], None]) -> None:
        """Call `observer` when an edit of another replica meets one made here at the same time.

        If two replicas edit one region concurrently, the one whose edit is later in the log gets
        the report, sometimes both; both are named. The report is also an entry below
        `<key>/~doc/overlap`, which can be watched. Only top-level types that were requested by
        name, and their contents, are checked. The observer must not edit the document. What it
        raises is logged.
        """
        self._overlap_observers.append(observer)

    def _met(self, path: str, region: tuple[int, int]) -> None:
        self._meetings.append(ysync.Met(path, *region, self._authors))
        names = {self._link.agent, *self._names_of(self._authors)}
        for observer in self._overlap_observers:
            notify_observer(observer, Overlap(path, *region, tuple(sorted(names))))

    def undo(self) -> bool:
        """Undo the last edit of this replica; those of others stay. False when there is none."""
        self._check()
        self.version += 1
        return self._undo.undo()

    def redo(self) -> bool:
        """Redo the edit that was undone last."""
        self._check()
        self.version += 1
        return self._undo.redo()

    def merge(self, other: "Document") -> None:
        """Merge the edits of `other` that this one lacks, for instance those of a branch.

        Both must descend from one document (`Board.branch`); then merging again changes nothing.
        """
        self._check()
        lacking = other._doc.get_update(self._doc.get_state())
        self.version += 1
        # Without an origin, so `undo` leaves it alone. `_note` sends it like an edit made here.
        self._doc.apply_update(lacking)

    # --- awareness --------------------------------------------------------------------------------

    def tell(self, state: dict[str, Any] | None) -> None:
        """Publish the awareness state of this replica (a colour, a cursor), in addition to its
        agent's name, until it is closed; None: only the name."""
        self._check()
        self._presence_clock += 1
        self._presence = ysync.write_json({**(state or {}), "agent": self._link.agent})
        self._came.set()

    def others(self) -> dict[int, Any]:
        """The awareness states of other replicas, by client id."""
        return {c: ysync.read_json(p.state) for c, p in self._others.items() if p.state is not None}

    # --- the connection ---------------------------------------------------------------------------

    def _note(self, event: TransactionEvent) -> None:
        self.version += 1
        if not self._overlaps.applying:
            mine = crdt.read_update(event.update).reached().get(self._doc.client_id)
            if mine is not None:
                self._overlaps.reached(mine)
            self._unsent.append(event.update)
            self._came.set()

    async def _run(self) -> None:
        while not self._closed:
            if self._link.is_closed:
                return self._give_up(Unavailable(f"document {self.key}", "the client was closed"))
            try:
                async with self._link.document(self._board, self.key) as pipe:
                    await self._talk(pipe)
            except Unavailable as error:
                log.debug("document %s: %s", self.key, error)
            except DocumentRefused as refusal:
                if refusal.cause == "frozen":
                    await self._note_frozen(refusal)
                elif refusal.cause not in _PASSING:
                    return self._give_up(refusal)
            except (InvalidRequest, LimitExceeded, DamagedError) as error:
                if not (isinstance(error, LimitExceeded) and error.limit in _CROWDED):
                    return self._give_up(DocumentRefused(self.key, "malformed", str(error)))
                self._fail(error)
            except BlackboardError as error:
                return self._give_up(error)
            except Exception as error:  # a bug of ours: nobody awaits this task
                log.exception("document %s: its replica ends", self.key)
                return self._give_up(DocumentRefused(self.key, "closed", repr(error)))
            pauses_ms = self._limits.client.connect_pauses_ms
            pause_ms = pauses_ms[min(self._failures, len(pauses_ms) - 1)]
            self._failures += 1
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause_ms / 1000)
        return None

    async def _note_frozen(self, refused: DocumentRefused) -> None:
        """Fail the waiting calls, unless the board was thawed in the meantime. The edits are kept
        and sent again."""
        # A call that begins during the read may be made after a thaw, which the read has not seen.
        waiting = self._all_waiting()
        try:
            reading = await self._link.read(self._board, [freeze.FROZEN_KEY])
        except AccessDenied:  # a token of narrow grants
            _fail_all(waiting, refused)
        except BlackboardError as error:
            log.debug("document %s: %s", self.key, error)
        else:
            for entry in reading.entries:
                _fail_all(waiting, freeze.refusal(entry.value, entry.time_ms, entry.mod_revision))

    def _give_up(self, failure: BlackboardError) -> None:
        """End this replica: all waiting and later calls raise `failure`."""
        log.info("document %s: %s", self.key, failure)
        self._failure = failure
        self._fail(failure)

    def _fail(self, error: Exception) -> None:
        _fail_all(self._all_waiting(), error)
        self._waiting.clear()
        self._asked.clear()

    def _all_waiting(self) -> "Waiting":
        """The calls that wait for an answer, asked for or not."""
        found = (*self._waiting, *(w for _, asked in self._asked for w in asked))
        return [waiter for waiter in found if not waiter.done()]

    async def _talk(self, pipe: Pipe) -> None:
        """Exchange messages. Errors: whatever ends the connection."""
        self._is_answered = False
        # The answers for which they wait were lost with the last connection.
        self._waiting = self._all_waiting()
        self._asked.clear()
        # The service sends all states again. A replica that left meanwhile is not among them.
        self._others.clear()
        # The service must first know what this replica has seen. The answer confirms no edits:
        # these follow.
        await self._ask(pipe, [])
        hello = self._overlaps.batch
        self._came.set()
        # If either ends, so does the connection: a writer that failed sends nothing any more.
        tasks = [asyncio.create_task(work) for work in (self._read(pipe, hello), self._write(pipe))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if task in done:
                task.result()

    async def _read(self, pipe: Pipe, hello: int) -> None:
        while True:
            for message in ysync.read_frame(await pipe.receive()):
                await self._until_between()
                match message:
                    case Step1():
                        self._is_answered = True
                        # Step2 contains these edits. Cleared before the send, during
                        # which more may be made.
                        self._unsent.clear()
                        lacking = self._lacking(message.state)
                        await pipe.send(ysync.write_step2(lacking))
                        self._came.set()
                    case Step2():
                        self._apply(message.update)
                        self._answered(hello)
                    case Edit():
                        self._apply(message.update)
                    case Awareness():
                        self._note_present(message.present)
                    case QueryAwareness():
                        await self._send_presence(pipe)

    def _note_present(self, present: Sequence[AwarenessState]) -> None:
        for presence in present:
            if presence.state is None:
                # Not kept as gone: each replica that ever comes has a number of its own.
                self._others.pop(presence.client, None)
            else:
                self._others[presence.client] = presence

    async def _until_between(self) -> None:
        """Wait for the end of a transaction: what is applied in it would count as its edit."""
        while self._in_transaction:
            await self._between.wait()

    def _lacking(self, state: bytes) -> bytes:
        """The update that a peer with `state` lacks. Errors: DamagedError."""
        return guarded(lambda: self._doc.get_update(state))

    def _apply(self, update: bytes) -> None:
        """Errors: DamagedError."""
        self._authors = ()
        self.version += 1
        if self._overlaps:
            found = crdt.read_update(update)
            self._authors = tuple(found.reached())
            self._overlaps.known = found.knew(self._doc.client_id)
        self._overlaps.applying = True
        try:
            guarded(lambda: self._doc.apply_update(update))
        finally:
            self._overlaps.applying = False

    def _names_of(self, clients: tuple[int, ...]) -> set[str]:
        """The agents of these clients, as far as known."""
        peers = [p for c in clients if (p := self._others.get(c))]
        states = [ysync.read_json(p.state) for p in peers if p.state]
        return {
            str(state["agent"]) for state in states if isinstance(state, dict) and "agent" in state
        }

    def _answered(self, hello: int) -> None:
        if not self._asked:
            return
        # The service answers in the order of the requests, so the oldest one is meant.
        batch, waiting = self._asked.popleft()
        self._overlaps.committed(batch)
        if batch > hello:
            # `hello` is answered before the edits are looked at: a service that refuses them each
            # time answers it, too.
            self._failures = 0
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._came.set()

    async def _write(self, pipe: Pipe) -> None:
        """Send the edits, then request an answer if a `synced` waits for it."""
        loop = asyncio.get_running_loop()
        # Published for each connection, because the other peers removed it with the last one.
        sent, renewal = self._presence_clock, loop.time()
        while True:
            if self._presence_clock != sent or loop.time() >= renewal:
                self._presence_clock += 1
                sent, renewal = (
                    self._presence_clock,
                    loop.time() + self._limits.client.awareness_renew_ms / 1000,
                )
                await self._send_presence(pipe)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(renewal):
                    await self._came.wait()
            self._came.clear()
            if not self._is_answered:
                continue
            # A loop, as more edits are made while these are sent: the answer below
            # must cover them all.
            while self._unsent or self._meetings:
                if updates := self._next_to_send():
                    await pipe.send(ysync.write_update(merged(joined(updates))))
                else:
                    await pipe.send(ysync.write_met(self._meetings.popleft()))
            waiting, self._waiting = self._waiting, []
            # Also without a caller: the answer says which own edits are in the log, so that they no
            # longer count as concurrent, and that the connection is a good one.
            if waiting or ((self._overlaps or self._failures) and not self._asked):
                await self._ask(pipe, waiting)

    def _next_to_send(self) -> Sequence[bytes]:
        """The oldest edits that were not sent, as many as one update may hold, or one of them."""
        size = count = 0
        for update in self._unsent:
            size += len(update)
            if count and size > DOCUMENT_UPDATE_BYTES_MAX:
                break
            count += 1
        taken, self._unsent = self._unsent[:count], self._unsent[count:]
        return taken

    async def _ask(self, pipe: Pipe, waiting: "Waiting") -> None:
        """Request what this replica lacks; the answer completes the calls in `waiting`."""
        self._overlaps.batch += 1
        self._asked.append((self._overlaps.batch, waiting))
        await self._until_between()
        await pipe.send(ysync.write_step1(self._doc.get_state()))

    async def _send_presence(self, pipe: Pipe) -> None:
        client = self._doc.client_id
        state = self._presence or ysync.write_json({"agent": self._link.agent})
        presence = AwarenessState(client, self._presence_clock, state)
        await pipe.send(ysync.write_awareness([presence]))


def _fail_all(waiting: "Waiting", error: Exception) -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_exception(error)
