"""JSON merge patch, with the examples of RFC 7396."""

import copy
from typing import Any

import pytest
from hypothesis import given, strategies as st

from blackboard.client.compound import apply

# RFC 7396, appendix A: original, patch, result
EXAMPLES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize(("value", "patch", "result"), EXAMPLES)
def test_the_examples_of_the_rfc(value: Any, patch: Any, result: Any) -> None:
    assert apply(value, patch) == result


@given(VALUES, VALUES)
def test_neither_argument_is_changed_and_applying_twice_changes_nothing_more(
    value: Any, patch: Any
) -> None:
    before = copy.deepcopy((value, patch))
    once = apply(value, patch)
    assert (value, patch) == before
    assert apply(once, patch) == once
