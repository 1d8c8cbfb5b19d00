"""What connections of one process may take together: bytes of messages, places without a token.

A message is in memory from its first byte until it has been processed, for a while in several
copies, and each connection may send one of FRAME_BYTES_MAX. Above INTAKE_ACCOUNT_BYTES_MAX of one
account, or INTAKE_BYTES_MAX of all, a connection is closed, and its client reconnects. Senders are
not made to wait instead, because a waiting connection keeps its memory.

The newest connection is closed: if it were the one with the most bytes, many concurrent senders
would never complete a message. It is one of the account with the most bytes, counted in whole
messages of the largest size, so a crowd on one account closes no other connections.

Invariants of `Intake`
- `bytes_held` is the sum of the last reports of the connections.
- After `note` the total is within both limits, or no connection can release more: the rest is being
  processed, at most one message of each connection.

Connections that have not shown a valid token are `Strangers`. Any client can open them, so their
number is bounded, in total and for each peer. Beyond the limit, the oldest connection of the peer
with the most is closed, not the new one: a client with a token shows it in its first request or
message, so it is known long before as many others have come. So unauthenticated clients can only
lock out each other.

Invariants of `Strangers`
- At most `at_most` are kept, and `per_peer` of one peer.
- One that has entered is kept until it leaves or is turned out, which happens at most once.
"""

import logging
from collections import Counter
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from blackboard.limits import DEFAULT, FRAME_BYTES_MAX, ServiceLimits

log = logging.getLogger(__name__)
PIECE_BYTES: Final = 256
"""Memory of a message, or of a fragment, besides its content; it may be empty."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one connection of `account`: those that wait, whole or not, and those of the message
    that is being looked at."""

    account: str
    waiting: int
    shown: int


class Holder(Protocol):
    """A connection."""

    def let_go(self) -> None:
        """Close, and report that nothing is held any more."""


_NOTHING: Final = Held("", 0, 0)


class Intake:
    """The inbound budget of one process."""

    def __init__(self, limits: ServiceLimits = DEFAULT.service) -> None:
        self._limits = limits
        self.bytes_held = 0
        self.ended = 0
        """Connections that were closed."""
        self._held: dict[Holder, Held] = {}  # in the order of arrival
        self._per_account: Counter[str] = Counter()

    def counted(self, held: Held) -> int:
        """The bytes of a connection that count: few bytes do not, they come and go too often."""
        size = held.waiting + held.shown
        return size if size >= self._limits.intake_small_bytes else 0

    def note(self, holder: Holder, held: Held) -> None:
        """Record how much a connection holds now; it may be closed at once."""
        before, counted = self._held.get(holder, _NOTHING), self.counted(held)
        self._count(before, -self.counted(before))
        self._count(held, counted)
        if counted:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)
        while (doomed := self._doomed(held.account)) is not None:
            self.ended += 1
            is_tenfold = str(self.ended).rstrip("0") == "1"  # 1, 10, 100: a log can be flooded too
            level = logging.WARNING if is_tenfold else logging.DEBUG
            account = self._held[doomed].account or "strangers"
            said = "%d bytes of messages are in memory: closed connection number %d, of %s"
            log.log(level, said, self.bytes_held, self.ended, account)
            doomed.let_go()

    def _count(self, held: Held, size: int) -> None:
        self.bytes_held += size
        self._per_account[held.account] += size
        if not self._per_account[held.account]:
            del self._per_account[held.account]

    def _doomed(self, account: str) -> Holder | None:
        """The connection to close after a report of `account`; None if there is none to close."""
        is_over = self._per_account[account] > self._limits.intake_account_bytes_max
        found = self._newest(account) if is_over else None
        if found is None and self.bytes_held > self._limits.intake_bytes_max:
            found = self._newest()
        return found

    def _newest(self, account: str | None = None) -> Holder | None:
        """Choose a connection that can release bytes, of one account or of the one with the
        most."""
        able = [
            holder
            for holder in reversed(self._held)
            if self._held[holder].waiting and account in (None, self._held[holder].account)
        ]
        size_of = self._per_account
        # Of equals `max` returns the first: the newest connection of the account with the most.
        return max(
            able, key=lambda h: size_of[self._held[h].account] // FRAME_BYTES_MAX, default=None
        )


# --- connections without a token ------------------------------------------------------------------


_NETWORK_BITS: Final = 64
"""Prefix length of an IPv6 address that identifies a peer: its owner chooses the rest freely."""


class Stranger(Protocol):
    """A connection."""

    def turn_out(self) -> None:
        """Close it. It was already removed from the list."""


class Strangers:
    """The unauthenticated connections of one process."""

    def __init__(
        self,
        at_most: int = DEFAULT.service.strangers_max,
        per_peer: int = DEFAULT.service.strangers_per_peer_max,
    ) -> None:
        self._at_most = at_most
        self._per_peer = per_peer
        self._peer_of: dict[Stranger, str] = {}
        self._by_peer: dict[str, dict[Stranger, None]] = {}  # in the order of arrival
        self.turned_out = 0
        """How many were turned out."""

    def __len__(self) -> int:
        return len(self._peer_of)

    def enter(self, stranger: Stranger, peer: str) -> None:
        """Add a connection of the address `peer`; another one may be turned out for it."""
        self.leave(stranger)
        self._peer_of[stranger] = peer
        mine = self._by_peer.setdefault(peer, {})
        mine[stranger] = None
        # One of the same peer first, so that nobody but itself is hurt by a peer with many.
        if len(mine) > self._per_peer:
            self._turn_out(mine)
        elif len(self._peer_of) > self._at_most:
            self._turn_out(max(self._by_peer.values(), key=len))

    def leave(self, stranger: Stranger) -> None:
        """Remove a connection that is authenticated now, or closed; does nothing if it is not
        listed."""
        peer = self._peer_of.pop(stranger, None)
        if peer is None:
            return
        mine = self._by_peer[peer]
        del mine[stranger]
        if not mine:
            del self._by_peer[peer]

    def _turn_out(self, some: dict[Stranger, None]) -> None:
        oldest = next(iter(some))
        self.leave(oldest)
        self.turned_out += 1
        oldest.turn_out()


def peer_of(address: object) -> str:
    """The identity of a peer, from the address of a socket or an ASGI scope.

    An IPv4 address, or the network of an IPv6 address; all unknown addresses, as on a Unix socket,
    count as one peer. Behind a proxy all are one peer.
    """
    host = address[0] if isinstance(address, tuple | list) and address else ""
    try:
        found = ip_address(str(host))
    except ValueError:
        return str(host)
    if isinstance(found, IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped) if mapped else str(int(found) >> (128 - _NETWORK_BITS))
    return str(found)
