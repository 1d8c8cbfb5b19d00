"""Awareness: information of a document's peers about themselves, which is not stored.

Each client has a clock; its latest state counts. Peers repeat the states of others, so a message
about a client that another connection introduced, or that just left, is not trusted.

Invariants
- at most AWARENESS_STATES_MAX clients are known, AWARENESS_PER_SESSION_MAX of one member.
- states of a member are removed with it; states from another process are removed AWARENESS_TTL_MS
  after its last message.
- only its own agent, on the same account, can announce a client that has written to the document.
- the announcement of a member that may only read keeps nobody from writing as that client.
- the `agent` in a state is the member's own name; `account` is there if that differs.

Source: y-protocols/awareness.js.

Exchange of awareness with the other processes that serve a board.

It is not logged, because it has no lasting value, but published over pub/sub (`PubSub` in
engines/base.py), if the engine has it. A message may be lost: periodic repetition repairs that. A
new listener sends a query, which all others answer.

    <this process> <frame>     a frame of the y-websocket protocol: awareness, or a question for it

Invariants
- only the newest state of each client waits to be published, so nothing grows when the engine is
  unavailable.
- a listener does not receive its own messages.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

from blackboard.client.cancellation import heed_cancellation
from blackboard.core.access import Principal
from blackboard.core.documents.update import Reader, write_text
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import PubSub, Store
from blackboard.errors import BlackboardError, InvalidRequest, LimitExceeded
from blackboard.limits import AWARENESS_STATES_MAX, DEFAULT, DocumentLimits, Limits
from blackboard.units import Key
from blackboard.wire import ysync
from blackboard.wire.ysync import Awareness, AwarenessState, QueryAwareness


class RoomPeer(Protocol):
    """A connected peer, from the view of a room."""

    @property
    def principal(self) -> Principal:
        """The principal whose token let it in."""

    @property
    def agent(self) -> str:
        """The agent that it writes as."""

    @property
    def account(self) -> str:
        """Its account."""

    @property
    def signed(self) -> str:
        """The signature of agent and account."""

    @property
    def can_edit(self) -> bool:
        """Whether it may write at all."""

    def deliver(self, frame: bytes) -> None:
        """Send a frame, in order; it must not wait."""

    def answer(self, frame: bytes) -> None:
        """As `deliver`, for an answer, which may be as large as a document."""

    def end(self, cause: str, reason: str) -> None:
        """Disconnect. `cause` is that of a DocumentRefused."""


@dataclass(slots=True)
class _There:
    """A present client; `member` announced it, None: another process did."""

    presence: AwarenessState
    member: RoomPeer | None
    heard_at: float


class Presences:
    """The clients of one document. Methods return the new states, to be sent to all members."""

    def __init__(
        self,
        owner: Callable[[int], str | None],
        limits: DocumentLimits = DEFAULT.documents,
    ) -> None:
        self._owner = owner
        self._limits = limits
        self._there: dict[int, _There] = {}
        self._gone: dict[int, tuple[int, float]] = {}
        """By client: its clock when it left, and when that was."""

    def known(self) -> list[AwarenessState]:
        """The states of all clients."""
        return [there.presence for there in self._there.values()]

    def signed_of(self, client: int) -> str | None:
        """The signature of the member that announced a client, and may write as it; None if none
        did, or another process."""
        there = self._there.get(client)
        member = None if there is None else there.member
        return None if member is None or not member.can_edit else member.signed

    def brought_here(self) -> list[AwarenessState]:
        """Clients announced by members of this process."""
        return [there.presence for there in self._there.values() if there.member is not None]

    def note(self, member: RoomPeer, states: Iterable[AwarenessState]) -> list[AwarenessState]:
        """A member announces itself; what it repeats of others is left out."""
        own = (_named(p, member) for p in states if self._is_its_own(member, p))
        return [p for p in own if self._take(p, member)]

    def hear(self, states: Iterable[AwarenessState]) -> list[AwarenessState]:
        """Another process announces its members; messages about members of this process are
        ignored."""
        news = []
        for presence in states:
            there = self._there.get(presence.client)
            if there is not None and there.member is not None:
                continue
            if there is not None and there.presence == presence:
                there.heard_at = _now()
            elif self._take(presence, None):
                news.append(presence)
        return news

    def leave(self, member: RoomPeer) -> list[AwarenessState]:
        """A member left, and with it the clients that it announced."""
        return [self._drop(there) for there in self._all() if there.member is member]

    def expire(self) -> list[AwarenessState]:
        """Forget clients that another process has not announced for too long: it may be dead."""
        since = _now() - self._limits.awareness_ttl_ms / 1000
        self._gone = {c: gone for c, gone in self._gone.items() if gone[1] > since}
        return [
            self._drop(there)
            for there in self._all()
            if there.member is None and there.heard_at < since
        ]

    def _all(self) -> list[_There]:
        return list(self._there.values())

    def _is_its_own(self, member: RoomPeer, presence: AwarenessState) -> bool:
        owner = self._owner(presence.client)
        if owner is not None and owner != member.signed:
            return False
        there = self._there.get(presence.client)
        if there is None:
            mine = sum(1 for other in self._there.values() if other.member is member)
            return mine < self._limits.awareness_per_session_max
        # A client that moved here from another process has a newer state.
        came = there.member is None and presence.clock > there.presence.clock
        return there.member is member or came

    def _take(self, presence: AwarenessState, member: RoomPeer | None) -> bool:
        """Record the state of a client; False when it is not new."""
        there = self._there.get(presence.client)
        if there is None:
            # Others repeat the last state of a client: that echo must not bring it back.
            gone_clock, _ = self._gone.get(presence.client, (-1, 0.0))
            if presence.state is None or presence.clock <= gone_clock:
                return False
            if len(self._there) >= AWARENESS_STATES_MAX:
                return False
        elif presence.state is None:
            # A removal counts with the clock of the state that it ends, as in y-protocols.
            if presence.clock < there.presence.clock:
                return False
            self._drop(there)
            return True
        elif presence.clock <= there.presence.clock:
            return False
        self._there[presence.client] = _There(presence, member, _now())
        return True

    def _drop(self, there: _There) -> AwarenessState:
        """Forget a client; returns the message for others, with the client's clock."""
        client, clock = there.presence.client, there.presence.clock
        del self._there[client]
        self._gone[client] = clock, _now()
        if len(self._gone) > AWARENESS_STATES_MAX:
            del self._gone[next(iter(self._gone))]
        # With the client's own clock, not a later one: if it comes back, it goes on from there.
        return AwarenessState(client, clock, None)


def _named(states: AwarenessState, member: RoomPeer) -> AwarenessState:
    """The state of a client, with its true name and account."""
    try:
        state = None if states.state is None else ysync.read_json(states.state)
    except (ValueError, RecursionError):  # not JSON: left to the reader
        return states
    if not isinstance(state, dict) or not state.keys() & {"agent", "account"}:
        return states
    name = {"agent": member.agent}
    if member.account != member.agent:
        name["account"] = member.account
    rest = {key: value for key, value in state.items() if key not in ("agent", "account")}
    try:
        return AwarenessState(states.client, states.clock, ysync.write_json({**name, **rest}))
    except (InvalidRequest, LimitExceeded):  # its state leaves no room for its name
        return AwarenessState(states.client, states.clock, ysync.write_json(name))


def _now() -> float:
    return asyncio.get_running_loop().time()


log = logging.getLogger(__name__)
_RETRY_S = 1.0


class Listener(Protocol):
    """An open document of this process."""

    def hear(self, states: Iterable[AwarenessState]) -> None:
        """Another process announces its peers."""

    def present(self) -> list[AwarenessState]:
        """The peers that are connected here."""

    def expire(self) -> None:
        """Forget clients that were not announced for too long."""


def pubsub_of(store: Store) -> PubSub | None:
    """The engine's pub/sub port, if it has one."""
    found = store.pubsub if isinstance(store, SealedStore) else isinstance(store, PubSub)
    return cast("PubSub", store) if found else None


class Publishing:
    """The awareness exchange of this process: `join` open documents, `tell` new states."""

    def __init__(self, engine: PubSub, limits: Limits = DEFAULT) -> None:
        self._engine = engine
        self._limits = limits
        self._boards: dict[str, _BoardAwareness] = {}

    def join(self, board: str, key: Key, listener: Listener) -> None:
        """Listen for a document, and ask for the present states."""
        found = self._boards.get(board)
        if found is None:
            found = self._boards[board] = _BoardAwareness(self._engine, board, self._limits)
            found.start()
        found.listeners[key] = listener
        found.ask(key)

    async def leave(self, board: str, key: Key, listener: Listener) -> None:
        """Stop listening; queued messages are still sent."""
        found = self._boards.get(board)
        # A room that ends late must not end that of the next one of its document.
        if found is None or found.listeners.get(key) is not listener:
            return
        del found.listeners[key]
        if not found.listeners:
            del self._boards[board]
            await found.aclose()

    def tell(self, board: str, key: Key, news: Iterable[AwarenessState]) -> None:
        """Publish new states of the peers here, soon."""
        found = self._boards.get(board)
        if found is not None:
            found.tell(key, news)


class _BoardAwareness:
    """The exchange of one board: tasks for listening, publishing and expiry."""

    def __init__(self, engine: PubSub, board: str, limits: Limits) -> None:
        self._finish_ms = limits.client.finish_timeout_ms
        self._expiry_ms = limits.documents.awareness_ttl_ms / 6
        self.listeners: dict[Key, Listener] = {}
        self._engine = engine
        self._board = board
        self._name = secrets.token_hex(8)
        self._news: dict[Key, dict[int, AwarenessState]] = {}
        self._asked: set[Key] = set()
        self._came = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        parts = {"listener": self._listen(), "speaker": self._speak(), "clock": self._watch_time()}
        self._tasks = [
            asyncio.create_task(part, name=f"{name} of {self._board}")
            for name, part in parts.items()
        ]

    def ask(self, key: Key) -> None:
        """Query the present states."""
        self._asked.add(key)
        self._came.set()

    def tell(self, key: Key, news: Iterable[AwarenessState]) -> None:
        """See `Publishing.tell`."""
        waiting = self._news.setdefault(key, {})
        for presence in news:
            if presence.client in waiting or len(waiting) < AWARENESS_STATES_MAX:
                waiting[presence.client] = presence
        self._came.set()

    async def aclose(self) -> None:
        """End; queued states are published first, if that is possible soon."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()  # their errors refer to this object
        with suppress(BlackboardError, TimeoutError):
            async with asyncio.timeout(self._finish_ms / 1000):
                await self._say_all()

    async def _listen(self) -> None:
        while True:
            try:
                async with self._engine.subscribe(self._board) as heard:
                    self._greet()
                    async for key, data in heard:
                        self._hear(key, data)
            except BlackboardError as error:
                log.debug("board %s: cannot receive awareness: %s", self._board, error)
            # A driver may have swallowed the cancellation, and `aclose` waits for this task.
            heed_cancellation()
            await asyncio.sleep(_RETRY_S)

    def _greet(self) -> None:
        """Publish our states, and query those of others, because earlier messages were missed.

        This is not inlined into `_listen`: its frame lives as long as the connection, and its
        variables would keep a closed document alive.
        """
        for key, listener in self.listeners.items():
            self.tell(key, listener.present())
            self.ask(key)

    def _hear(self, key: Key, data: bytes) -> None:
        listener = self.listeners.get(key)
        if listener is None:
            return
        try:
            reader = Reader(data, "pub/sub message")
            if reader.text() == self._name:
                return
            messages = ysync.read_frame(data[reader.position :])
        except (InvalidRequest, LimitExceeded) as error:
            log.warning("board %s: a malformed message about %s: %s", self._board, key, error)
            return
        for message in messages:
            if isinstance(message, QueryAwareness):
                self.tell(key, listener.present())
            elif isinstance(message, Awareness):
                listener.hear(message.present)

    async def _speak(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            try:
                await self._say_all()
            except BlackboardError as error:
                log.debug("board %s: cannot publish awareness: %s", self._board, error)
                await asyncio.sleep(_RETRY_S)
            heed_cancellation()

    async def _say_all(self) -> None:
        """Publish all queued states. Errors: Unavailable; the state being published is lost."""
        while self._asked:
            await self._say(self._asked.pop(), ysync.QUERY_AWARENESS)
        while self._news:
            key, news = self._news.popitem()
            if news:
                await self._say(key, ysync.write_awareness(news.values()))

    async def _say(self, key: Key, frame: bytes) -> None:
        await self._engine.publish(self._board, key, write_text(self._name) + frame)

    async def _watch_time(self) -> None:
        while True:
            await asyncio.sleep(self._expiry_ms / 1000)
            self._expire()

    def _expire(self) -> None:
        for listener in list(self.listeners.values()):
            listener.expire()
