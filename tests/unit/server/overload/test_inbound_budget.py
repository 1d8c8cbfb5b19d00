"""The budget of incoming bytes: it is bounded, the account with the most has to reconnect, and all
get through in the end."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from blackboard.limits import DEFAULT, FRAME_BYTES_MAX
from blackboard.server.overload import connections as intake_module
from blackboard.server.overload.connections import Held, Intake
from tests.lowered import lowered

SERVICE = DEFAULT.service
ALL_OF_ONE = SERVICE.intake_account_bytes_max
ACCOUNTS = [f"agent{number}" for number in range(SERVICE.intake_bytes_max // ALL_OF_ONE)]
"""The number of accounts that fill the budget if each uses its maximum."""


@dataclass(eq=False)
class Peer:
    """A connection that drops its waiting messages when it ends, as a real one does."""

    intake: Intake
    account: str = "ada"
    waiting: int = 0
    shown: int = 0
    ended: list[int] = field(default_factory=list)
    """The bytes that waited when it had to end."""

    def hold(self, waiting: int, shown: int = 0) -> "Peer":
        """Hold this many bytes from now on."""
        self.waiting, self.shown = waiting, shown
        self.intake.note(self, Held(self.account, waiting, shown))
        return self

    def let_go(self) -> None:
        """As the protocol says."""
        self.ended.append(self.waiting)
        self.hold(0, self.shown)


@pytest.mark.parametrize("over", [0, 1])
def test_the_edge_of_what_is_on_its_way_in(over: int) -> None:
    """INTAKE_BYTES_MAX for all accounts. Above it, the newest connection of the account with the
    most ends."""
    intake = Intake()
    peers = [Peer(intake, account).hold(ALL_OF_ONE) for account in ACCOUNTS]
    assert intake.bytes_held == SERVICE.intake_bytes_max
    last = Peer(intake, "bob").hold(over * SERVICE.intake_small_bytes)
    assert [peer.ended for peer in peers] == [[]] * (len(peers) - 1) + [[ALL_OF_ONE] * over]
    assert (last.ended, intake.ended) == ([], over)


@pytest.mark.parametrize("over", [0, 1])
def test_the_edge_of_what_one_account_may_have(over: int) -> None:
    """INTAKE_ACCOUNT_BYTES_MAX, on any number of connections. Other accounts are not affected."""
    intake = Intake()
    other = Peer(intake, "bob").hold(ALL_OF_ONE)
    first = Peer(intake).hold(ALL_OF_ONE // 2)
    second = Peer(intake).hold(ALL_OF_ONE // 2 + over)
    assert (other.ended, first.ended) == ([], [])
    assert second.ended == [ALL_OF_ONE // 2 + 1] * over
    assert intake.bytes_held == ALL_OF_ONE + (ALL_OF_ONE // 2 if over else ALL_OF_ONE)


def test_a_crowd_on_one_account_ends_nobody_else() -> None:
    """Not even another account that comes last, with one large message."""
    intake = Intake()
    size = FRAME_BYTES_MAX // 2
    crowds = [
        Peer(intake, account).hold(size) for account in ACCOUNTS for _ in range(ALL_OF_ONE // size)
    ]
    alone = Peer(intake, "bob").hold(FRAME_BYTES_MAX - 1)
    assert alone.ended == []
    assert sum(len(peer.ended) for peer in crowds) == 2
    assert crowds[-1].ended == [size]


def test_it_is_one_that_can_release_bytes() -> None:
    """Ending a connection whose message is being processed would free nothing."""
    intake = Intake()
    Peer(intake, "eve").hold(0, ALL_OF_ONE + 1)
    partly = Peer(intake, "eve").hold(SERVICE.intake_small_bytes)
    assert (partly.ended, intake.bytes_held) == (
        [SERVICE.intake_small_bytes],
        ALL_OF_ONE + 1,
    )
    both = Peer(intake, "eve").hold(ALL_OF_ONE, ALL_OF_ONE)
    assert (both.ended, intake.bytes_held) == ([ALL_OF_ONE], 2 * ALL_OF_ONE + 1)
    other = Peer(intake, "ada").hold(ALL_OF_ONE)
    assert other.ended == []


@pytest.mark.parametrize("under", [0, 1])
def test_the_edge_of_what_does_not_count(under: int) -> None:
    """INTAKE_SMALL_BYTES: a connection below it is never closed for this."""
    intake = Intake()
    size = SERVICE.intake_small_bytes - under
    small = Peer(intake).hold(size - 1, 1)
    assert intake.bytes_held == (0 if under else size)
    Peer(intake).hold(0, ALL_OF_ONE)
    assert small.ended == ([] if under else [size - 1])


@pytest.mark.parametrize("of_one", [False, True], ids=["accounts", "one account"])
def test_all_get_through_in_the_end(of_one: bool) -> None:
    """Sixty slow senders, each with several times its share, which start again when they are
    closed.

    If the connections that had sent most were closed, no message would ever be completed.
    """
    intake, count = Intake(), 60
    whole = FRAME_BYTES_MAX - SERVICE.intake_small_bytes
    peers = [Peer(intake, "ada" if of_one else f"agent{number}") for number in range(count)]
    done: set[int] = set()
    for _ in range(count * whole // FRAME_BYTES_MAX * 64):
        for number, peer in enumerate(peers):
            if number not in done:
                peer.hold(peer.waiting + whole // 32)
                if peer.waiting >= whole:
                    done.add(number)
                    peer.hold(0)
        if len(done) == count:
            break
    assert (len(done), intake.bytes_held) == (count, 0)
    assert intake.ended > 0


sizes = st.integers(0, 4) | st.integers(0, 120)
steps = st.lists(st.tuples(st.integers(0, 5), sizes, sizes), max_size=60)


@given(steps)
def test_the_sum_is_that_of_what_was_noted_last(given_steps: list[tuple[int, int, int]]) -> None:
    """For any sequence of arrivals and ends. Only messages that are being processed exceed the
    bounds."""
    chosen = lowered(intake_bytes_max=200, intake_account_bytes_max=150, intake_small_bytes=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake_module, "FRAME_BYTES_MAX", 40)
        intake = Intake(chosen.service)
        peers = [Peer(intake, account) for account in ("", "ada", "ada", "eve", "eve", "eve")]
        for number, waiting, shown in given_steps:
            peers[number].hold(waiting, shown)
            held = list(intake._held.values())
            assert intake.bytes_held == sum(each.waiting + each.shown for each in held)
            assert intake.bytes_held <= 200 or not any(each.waiting for each in held)
            for account, size in intake._per_account.items():
                mine = [each for each in held if each.account == account]
                assert size == sum(each.waiting + each.shown for each in mine) > 0
                assert size <= 150 or not any(each.waiting for each in mine)
        for peer in peers:
            peer.hold(0)
        assert (intake.bytes_held, intake._held, intake._per_account) == (0, {}, {})
