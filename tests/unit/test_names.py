"""Texts as segments of keys: reversible, in order, readable."""

import pytest
from hypothesis import given, strategies as st

from blackboard.core.path import check_key, check_name
from blackboard.errors import BlackboardError, InvalidRequest, LimitExceeded
from blackboard.limits import SEGMENT_BYTES_MAX
from blackboard.names import segment, text

TEXTS = st.text(max_size=10) | st.text("-.~9Zz_/ :@[`{}aA0\x00\x7f\u00e9\U0001f600", max_size=10)


@given(TEXTS)
def test_a_segment_can_be_turned_back(one: str) -> None:
    written = segment(one)
    assert text(written) == one
    assert check_name(written) == written
    assert check_key(f"public/{written}/x") == f"public/{written}/x"
    assert not written.startswith("~")  # as the branches of the runtime do


@given(TEXTS, TEXTS)
def test_segments_sort_as_their_texts(one: str, other: str) -> None:
    assert (segment(one) < segment(other)) == (one < other)
    assert (segment(one) == segment(other)) == (one == other)


@given(st.text("-.~9Zz_0123456789ABCDEF", max_size=12))
def test_what_no_text_has_is_refused(written: str) -> None:
    """A segment has one text, or none."""
    try:
        found = text(written)
    except BlackboardError:
        return
    assert segment(found) == written


@pytest.mark.parametrize(
    ("one", "written"),
    [
        ("plan_2.final", "plan_2.final"),
        ("3f2b-11ee-be56", "3f2b-11ee-be56"),
        ("user@example.com", "user9~~40example.com"),
        ("child:1f0|x", "child9~~3A1f0z~~7Cx"),
        ("two words", "two--20words"),
        ("a--b", "a--~-b"),
        ("caf\u00e9", "cafz~~C3A9"),
        ("", "-"),
        ("-", "--~"),
        (".", ".-"),
        ("..", "..-"),
        ("...", "..."),
        ("a/b", "a.~~2Fb"),
    ],
)
def test_ordinary_text_is_readable(one: str, written: str) -> None:
    assert segment(one) == written
    assert text(written) == one


def test_a_text_that_is_too_long() -> None:
    assert text(segment("a" * SEGMENT_BYTES_MAX)) == "a" * SEGMENT_BYTES_MAX
    with pytest.raises(LimitExceeded, match="SEGMENT_BYTES_MAX"):
        segment("a" * SEGMENT_BYTES_MAX + "a")


def test_a_text_that_is_none() -> None:
    with pytest.raises(InvalidRequest):
        segment("\ud800")


@pytest.mark.parametrize("written", ["a b", "--", "-a-", "9~~4", "z~~C3", "z~~FFFF", "9~~41", ""])
def test_a_segment_that_is_none(written: str) -> None:
    with pytest.raises(InvalidRequest):
        text(written)
