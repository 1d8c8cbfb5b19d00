"""How a page of the log is cut, and what a checkpoint's record says."""

import pytest

from blackboard.archive.append import NAMED, kind_of
from blackboard.archive.appender.pages import loses, runs
from blackboard.core.commit import Epoch, LogEntry, Put
from blackboard.wire.codec import encode_value, marker_entry
from tests.unit.core.trial import Trial


def history() -> list[LogEntry]:
    """Three commits, a marker, a commit."""
    trial = Trial()
    for _ in range(4):
        trial.commit(Put("public/a", b"\x01"))
    marker = marker_entry(Epoch(2, "e", "engine", 3, 100), 5)
    return [*trial.log[:3], marker, trial.log[3]]


def test_a_page_is_cut_before_a_marker() -> None:
    """What follows one may follow something else than what came before it."""
    entries = history()
    assert list(runs(entries)) == [entries[:3], entries[3:]]
    assert list(runs(entries[3:])) == [entries[3:]]
    assert list(runs([])) == []


@pytest.mark.parametrize(
    ("cause", "through", "lost"), [("engine", 3, False), ("engine", 4, True), ("restore", 9, False)]
)
def test_a_marker_may_say_that_revisions_were_lost(cause: str, through: int, lost: bool) -> None:
    """A restore goes back too, but loses nothing."""
    assert loses(Epoch(2, "e", cause, 3, 100), through) is lost


def test_a_record_says_its_kind() -> None:
    """And whatever else stands there is a checkpoint all the same."""
    assert kind_of(encode_value({"kind": "automatic"})) == "automatic"
    others: list[object] = [{}, 1, "text", None]
    for value in others:
        assert kind_of(encode_value(value)) == NAMED
    assert kind_of(b"\xc1") == NAMED
