"""The connections of one process that have not shown a valid token.

Any client can open them, so their number is bounded, in total and for each peer. Beyond the limit,
the oldest connection of the peer with the most is closed, not the new one: a client with a token
shows it in its first request or message, so it is known long before as many others have come. So
unauthenticated clients can only lock out each other.

Invariants
- at most `at_most` are kept, and `per_peer` of one peer.
- One that has entered is kept until it leaves or is turned out, which happens at most once.
"""

from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from blackboard.limits import DEFAULT

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
