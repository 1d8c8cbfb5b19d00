"""A copy whose failures are errors: what it takes, what it refuses, and what it says of itself."""

from typing import Any

import pytest
from pycrdt import Doc, Text

from blackboard.client.documents.replica import (
    DamagedError,
    Replica,
    check_harmless,
    guarded,
    merged,
)
from blackboard.core.documents import update as crdt
from blackboard.errors import InvalidRequest
from tests.unit.core.documents.test_update import HOSTILE

POISON = bytes.fromhex("01017f010000000000")
"""Is accepted, and makes every later encoding panic."""


def history(*words: str) -> list[bytes]:
    """An update for each word that is appended."""
    doc: Doc[Any] = Doc()
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    text = doc.get("text", type=Text)
    for word in words:
        text += word
    return updates


def text_of(replica: Replica) -> str:
    """The text that all of these write."""
    return str(replica.doc.get("text", type=Text))


def test_what_is_applied_is_known() -> None:
    first, second = history("one ", "two ")
    replica = Replica()
    replica.apply(first)
    replica.apply(second)
    assert text_of(replica) == "one two "
    assert list(replica.clocks.values()) == [8]
    assert replica.clocks == crdt.read_state(replica.state)
    again = Replica(replica.update_since())
    assert (text_of(again), again.clocks) == ("one two ", replica.clocks)
    assert replica.update_since(again.state) == crdt.EMPTY_UPDATE


def test_a_listening_copy_tells_what_was_new() -> None:
    first, second = history("one ", "two ")
    both = merged([first, second])
    replica = Replica(listening=True)
    assert replica.apply(first) == first
    news = replica.apply(both)
    assert crdt.read_update(news).structs == crdt.read_update(second).structs
    assert replica.apply(both) == crdt.EMPTY_UPDATE
    replica.close()
    replica.close()
    assert Replica().apply(first) == crdt.EMPTY_UPDATE, "nobody listens"


def test_an_update_that_builds_on_what_is_missing_changes_nothing() -> None:
    """The library would keep it, and tell nobody."""
    _, second = history("one ", "two ")
    replica = Replica()
    with pytest.raises(InvalidRequest, match="missing"):
        replica.apply(second)
    assert (text_of(replica), replica.clocks) == ("", {})
    assert replica.update_since() == crdt.EMPTY_UPDATE


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_what_is_hostile_is_an_error(name: str) -> None:
    """Of one kind or the other; a new copy goes on."""

    def take() -> None:
        replica = Replica()
        replica.apply(HOSTILE[name])
        check_harmless(HOSTILE[name])
        replica.update_since()

    with pytest.raises((InvalidRequest, DamagedError)):
        take()
    assert text_of(Replica(history("fine")[0])) == "fine"


def test_poison_is_seen_on_an_empty_copy() -> None:
    with pytest.raises(DamagedError):
        check_harmless(POISON)
    check_harmless(history("fine")[0])


def test_a_damaged_state_is_an_error() -> None:
    with pytest.raises(DamagedError):
        Replica(b"\xff\xff\xff")


def test_only_panics_and_exceptions_of_the_library_are_damage() -> None:
    """Somebody who interrupts the program is heard."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    def failed() -> None:
        raise ValueError("why")

    with pytest.raises(KeyboardInterrupt):
        guarded(interrupted)
    with pytest.raises(DamagedError, match="why"):
        guarded(failed)
    assert guarded(lambda: 3) == 3


def test_several_updates_are_one() -> None:
    updates = history("a", "b", "c")
    assert merged(updates[:1]) is updates[0]
    replica = Replica(merged(updates))
    assert text_of(replica) == "abc"
