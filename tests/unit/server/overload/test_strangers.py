"""Which connections are closed when there are too many unauthenticated ones."""

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from blackboard.limits import DEFAULT
from blackboard.server.overload.connections import Strangers, peer_of

SERVICE = DEFAULT.service


class Somebody:
    """A connection that records that it was closed."""

    def __init__(self) -> None:
        self.turned_out = 0

    def turn_out(self) -> None:
        """See `Stranger`."""
        self.turned_out += 1


def arrive(strangers: Strangers, *peers: str) -> list[Somebody]:
    """One connection of each peer, in this order."""
    found = [Somebody() for _ in peers]
    for one, peer in zip(found, peers, strict=True):
        strangers.enter(one, peer)
    return found


def gone(some: Sequence[Somebody]) -> list[int]:
    """The indexes of the closed connections."""
    return [place for place, one in enumerate(some) if one.turned_out]


def test_the_oldest_of_a_peer_goes() -> None:
    strangers = Strangers(at_most=10, per_peer=2)
    assert gone(arrive(strangers, "a", "b", "a", "a")) == [0]
    assert len(strangers) == 3


def test_the_peer_that_has_most_makes_room_for_others() -> None:
    """Even if the only connection of another peer is older."""
    strangers = Strangers(at_most=4, per_peer=4)
    assert gone(arrive(strangers, "b", "a", "a", "a", "c", "d")) == [1, 2]


def test_who_has_left_is_not_turned_out() -> None:
    strangers = Strangers(at_most=1, per_peer=1)
    [known] = arrive(strangers, "a")
    strangers.leave(known)
    strangers.leave(known)
    arrive(strangers, "a")
    assert not known.turned_out


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_never_more_than_so_many_and_the_newest_stays(moves: list[tuple[int, bool]]) -> None:
    """A new connection is always accepted, regardless of the others."""
    strangers, inside = Strangers(at_most=5, per_peer=3), list[tuple[Somebody, str]]()
    for number, leaves in moves:
        if leaves and inside:
            strangers.leave(inside.pop(number % len(inside))[0])
        else:
            [one] = arrive(strangers, f"peer{number}")
            assert not one.turned_out
            inside.append((one, f"peer{number}"))
        assert all(one.turned_out <= 1 for one, _ in inside)
        inside = [(one, peer) for one, peer in inside if not one.turned_out]
        peers = [peer for _, peer in inside]
        assert len(strangers) == len(inside) <= 5
        assert all(peers.count(peer) <= 3 for peer in peers)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("10.0.0.1", 1), ("10.0.0.1", 2), True),
        (("10.0.0.1", 1), ("10.0.0.2", 1), False),
        (("2001:db8::1", 1, 0, 0), ("2001:db8::ffff:2", 9, 0, 0), True),
        (("2001:db8::1", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0), False),
        (("::ffff:10.0.0.1", 1, 0, 0), ("10.0.0.1", 1), True),
        (None, "", True),
        (["10.0.0.1", 1], ("10.0.0.1", 2), True),
    ],
)
def test_what_counts_as_one_peer(one: object, other: object, same: bool) -> None:
    """An address, or an IPv6 network: the owner of such a network has billions of addresses."""
    assert (peer_of(one) == peer_of(other)) is same


@pytest.mark.parametrize(
    ("limit", "peers"),
    [
        (SERVICE.strangers_per_peer_max, 1),
        (SERVICE.strangers_max, SERVICE.strangers_max),
    ],
)
def test_the_edges_of_a_process(limit: int, peers: int) -> None:
    """The limits per address and in all. With one more connection, the first one is closed."""
    strangers = Strangers()
    some = arrive(strangers, *(f"peer{number % peers}" for number in range(limit)))
    assert gone(some) == []
    arrive(strangers, f"peer{limit % (peers + 1)}")
    assert gone(some) == [0]


@pytest.mark.parametrize(
    ("limit", "peers"),
    [(SERVICE.ungreeted_per_peer_max, 1), (SERVICE.ungreeted_max, 4)],
)
def test_the_edges_of_connections_without_hello(limit: int, peers: int) -> None:
    """The same limits for the WebSockets among them."""
    strangers = Strangers(SERVICE.ungreeted_max, SERVICE.ungreeted_per_peer_max)
    some = arrive(strangers, *(f"peer{number % peers}" for number in range(limit)))
    assert gone(some) == []
    arrive(strangers, "peer0")
    assert gone(some) == [0]
