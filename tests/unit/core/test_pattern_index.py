"""Patterns in an index find what each of them would find by itself, and cost nothing else."""

from hypothesis import given, strategies as st

from blackboard.core.path import parse_pattern
from blackboard.core.view import PatternIndex, intersection, intersections

_names = st.sampled_from(["public", "a", "b"])
_keys = st.lists(_names, min_size=2, max_size=4).map("/".join)
_middle = st.lists(st.one_of(_names, st.just("*")), min_size=1, max_size=4)
_patterns = st.one_of(
    st.just("**"),
    _middle.map("/".join),
    _middle.map(lambda segments: "/".join([*segments, "**"])),
)


def meant_by(views: list[list[str]], key: str) -> set[int]:
    """The numbers of the views that `key` concerns."""
    return {n for n, texts in enumerate(views) if any(parse_pattern(t).matches(key) for t in texts)}


@given(st.lists(st.lists(_patterns, max_size=3), max_size=6), _keys)
def test_the_index_finds_what_the_patterns_match(views: list[list[str]], key: str) -> None:
    """An item is found if and only if one of its patterns matches."""
    index: PatternIndex[int] = PatternIndex()
    for number, patterns in enumerate(views):
        index.add(patterns, number)
    meant = {
        n for n, texts in enumerate(views) if any(parse_pattern(t).matches(key) for t in texts)
    }
    assert set(index.matching(key)) == meant


@given(st.lists(st.lists(_patterns, max_size=3), min_size=1, max_size=6), _keys)
def test_what_is_discarded_is_found_no_more(views: list[list[str]], key: str) -> None:
    """The others still are; at the end the index is as empty as a new one."""
    index: PatternIndex[int] = PatternIndex()
    for number, patterns in enumerate(views):
        index.add(patterns, number)
    index.discard(views[0], 0)
    index.discard(["public/of/nobody", "public/of/**"], 99)
    assert set(index.matching(key)) == meant_by(views, key) - {0}
    for number, patterns in enumerate(views[1:], 1):
        index.discard(patterns, number)
    assert index._root.is_empty


@given(_patterns, _patterns, _keys)
def test_an_intersection_matches_what_both_match(first: str, second: str, key: str) -> None:
    """And nothing else."""
    met = intersection(first, second)
    both = parse_pattern(first).matches(key) and parse_pattern(second).matches(key)
    assert both == (met is not None and parse_pattern(met).matches(key))


def test_two_stars_match_a_segment_at_least() -> None:
    """So a path and what lies below it have nothing in common."""
    assert intersection("public/a", "public/a/**") is None
    assert intersection("public/a/**", "public/a") is None
    assert intersection("public/a/**", "public/a/*") == "public/a/*"
    assert intersection("public/a/**", "public/a/**") == "public/a/**"


def test_intersections_are_listed_once() -> None:
    """What cannot meet is left out."""
    assert intersections(["public/*", "private/x"], ["public/**", "**"]) == (
        "public/*",
        "private/x",
    )
    assert intersections(["public/*/a"], ["public/zzz/**"]) == ("public/zzz/a",)
    assert intersections(["public/**"], ["private/ann/**"]) == ()
