"""Who is there: what the peers of a document tell of themselves, which nothing keeps.

Each client has a clock; what it said last is what counts. A peer repeats what it heard of others,
so nobody is believed about a client that somebody else brought, or that just left.

Invariants
- at most AWARENESS_STATES_MAX clients are known, AWARENESS_PER_SESSION_MAX of one member.
- what a member told of goes with it; what another process told of goes AWARENESS_TTL_MS after the
  last word.
- a client that has written to the document is told of by its agent alone.

Source: y-protocols/awareness.js.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from blackboard.types import (
    AWARENESS_PER_SESSION_MAX,
    AWARENESS_STATES_MAX,
    AWARENESS_TTL_MS,
)
from blackboard.wire.ysync import Presence


class Member(Protocol):
    """Somebody connected, as a room sees it."""

    @property
    def agent(self) -> str:
        """In whose name it writes."""

    def deliver(self, frame: bytes) -> None:
        """Send a frame, in order; it must not wait."""

    def answer(self, frame: bytes) -> None:
        """As `deliver`, for what it asked for: that may be as large as a document."""

    def end(self, cause: str, reason: str) -> None:
        """Disconnect. `cause` is that of a DocumentRefused."""


@dataclass(slots=True)
class _There:
    """A client that is there; `member` brought it, None: another process did."""

    presence: Presence
    member: Member | None
    heard_at: float


class Presences:
    """The clients of one document. Methods return what is new, for everybody to be told."""

    def __init__(self, owner: Callable[[int], str | None]) -> None:
        self._owner = owner
        self._there: dict[int, _There] = {}
        self._gone: dict[int, tuple[int, float]] = {}
        """By client: its clock when it left, and when that was."""

    def known(self) -> list[Presence]:
        """Everybody."""
        return [there.presence for there in self._there.values()]

    def brought_here(self) -> list[Presence]:
        """Those that members of this process told of."""
        return [there.presence for there in self._there.values() if there.member is not None]

    def note(self, member: Member, told: Iterable[Presence]) -> list[Presence]:
        """Somebody tells of itself; what it repeats of others is left out."""
        return [p for p in told if self._is_its_own(member, p) and self._take(p, member)]

    def hear(self, told: Iterable[Presence]) -> list[Presence]:
        """Another process tells of its members; of members here it knows nothing better."""
        news = []
        for presence in told:
            there = self._there.get(presence.client)
            if there is not None and there.member is not None:
                continue
            if there is not None and there.presence == presence:
                there.heard_at = _now()
            elif self._take(presence, None):
                news.append(presence)
        return news

    def leave(self, member: Member) -> list[Presence]:
        """A member is gone, and with it what it told of."""
        return [self._drop(there) for there in self._all() if there.member is member]

    def expire(self) -> list[Presence]:
        """Forget whom another process has not told of for too long: it may be dead."""
        since = _now() - AWARENESS_TTL_MS / 1000
        self._gone = {c: gone for c, gone in self._gone.items() if gone[1] > since}
        return [
            self._drop(there)
            for there in self._all()
            if there.member is None and there.heard_at < since
        ]

    def _all(self) -> list[_There]:
        return list(self._there.values())

    def _is_its_own(self, member: Member, presence: Presence) -> bool:
        owner = self._owner(presence.client)
        if owner is not None and owner != member.agent:
            return False
        there = self._there.get(presence.client)
        if there is None:
            mine = sum(1 for other in self._there.values() if other.member is member)
            return mine < AWARENESS_PER_SESSION_MAX
        # A client that came here from another process says more than is known of it.
        came = there.member is None and presence.clock > there.presence.clock
        return there.member is member or came

    def _take(self, presence: Presence, member: Member | None) -> bool:
        """Take in what a client says; False when it is nothing new."""
        there = self._there.get(presence.client)
        if there is None:
            gone_clock, _ = self._gone.get(presence.client, (-1, 0.0))
            if presence.state is None or presence.clock <= gone_clock:
                return False
            if len(self._there) >= AWARENESS_STATES_MAX:
                return False
        elif presence.state is None:
            if presence.clock < there.presence.clock:
                return False
            self._drop(there)
            return True
        elif presence.clock <= there.presence.clock:
            return False
        self._there[presence.client] = _There(presence, member, _now())
        return True

    def _drop(self, there: _There) -> Presence:
        """Forget a client; returns what others are told, who know it by the clock it has."""
        client, clock = there.presence.client, there.presence.clock
        del self._there[client]
        self._gone[client] = clock, _now()
        if len(self._gone) > AWARENESS_STATES_MAX:
            del self._gone[next(iter(self._gone))]
        return Presence(client, clock, None)


def _now() -> float:
    return asyncio.get_running_loop().time()
