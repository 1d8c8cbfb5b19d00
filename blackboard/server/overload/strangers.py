"""The connections of one process that have not shown a valid token.

Anybody can open them, so their number is bounded, in all and for each peer. Beyond the limit, the
oldest connection of the peer with the most is closed, not the new one: a client with a token shows
it in its first request or message, so it is known long before as many others have come. Strangers
can therefore lock out only strangers.

Invariants
- at most `at_most` are kept, and `per_peer` of one peer.
- one that has entered is kept until it leaves or is turned out; it is turned out once.
"""

from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from blackboard.limits import STRANGERS_MAX, STRANGERS_PER_PEER_MAX

_NETWORK_BITS: Final = 64
"""Of an IPv6 address: the rest its owner chooses freely."""


class Stranger(Protocol):
    """A connection."""

    def turn_out(self) -> None:
        """End it. It has been forgotten already."""


class Strangers:
    """Those of one process."""

    def __init__(
        self, at_most: int = STRANGERS_MAX, per_peer: int = STRANGERS_PER_PEER_MAX
    ) -> None:
        self._at_most = at_most
        self._per_peer = per_peer
        self._peer_of: dict[Stranger, str] = {}
        self._by_peer: dict[str, dict[Stranger, None]] = {}  # who came first is first
        self.turned_out = 0
        """How many had to go."""

    def __len__(self) -> int:
        return len(self._peer_of)

    def enter(self, stranger: Stranger, peer: str) -> None:
        """Keep one more, of the address `peer`; another may be turned out for it."""
        self.leave(stranger)
        self._peer_of[stranger] = peer
        mine = self._by_peer.setdefault(peer, {})
        mine[stranger] = None
        if len(mine) > self._per_peer:
            self._turn_out(mine)
        elif len(self._peer_of) > self._at_most:
            self._turn_out(max(self._by_peer.values(), key=len))

    def leave(self, stranger: Stranger) -> None:
        """Forget one that is known now, or gone; nothing happens if it was not kept."""
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
    """What counts as one peer, of the address that a socket or an ASGI scope tells.

    An IPv4 address, or the network of an IPv6 address; one for all whose address is not known, as
    on a Unix socket. Behind a proxy all are one peer.
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
