"""What people type is what is kept."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from blackboard.cli.errors import CommandError
from blackboard.cli.values import compact, milliseconds, parse, parse_bytes, pretty

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text().filter(lambda key: key != "$bytes"), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2900", 2900),
        ("true", True),
        ("null", None),
        ('"quoted"', "quoted"),
        ('{"a": [1, 2]}', {"a": [1, 2]}),
        ("plain words", "plain words"),
        ("", ""),
        ("1, 2", "1, 2"),
        ("NaN", "NaN"),
        ("-", "-"),
        ('{"$bytes": "AAE="}', b"\x00\x01"),
    ],
)
def test_json_is_json_and_the_rest_is_text(text: str, value: Any) -> None:
    """Without an option, the text decides."""
    if text == "1, 2":
        with pytest.raises(CommandError):
            parse(text, is_json=True)
    assert parse(text) == value


@pytest.mark.parametrize("text", ['{"a": 1', "[1,", '"open', ' {"a": NaN}', '{"a": 1, "a": 2}'])
def test_broken_json_is_not_kept_as_text(text: str) -> None:
    """A forgotten quote must not become a string that looks like an object."""
    with pytest.raises(CommandError, match="not JSON") as refused:
        parse(text)
    assert refused.value.exit == 2
    assert parse(text, is_json=False) == text


def test_the_options_force_one_reading() -> None:
    """`--string` keeps digits as text, `--json-value` refuses words."""
    assert parse("5", is_json=False) == "5"
    assert parse("5", is_json=True) == 5
    with pytest.raises(CommandError):
        parse("five", is_json=True)


def test_the_position_of_a_mistake_is_given() -> None:
    """Counted in the text that was given."""
    with pytest.raises(CommandError, match="line 1, column 8"):
        parse('{"a": 1')


def test_files_hold_json_text_or_bytes() -> None:
    """The last newline, which editors add, is no part of the value unless asked for."""
    assert parse_bytes(b'{"a": 1}\n') == {"a": 1}
    assert parse_bytes(b"words\n") == "words"
    assert parse_bytes(b"words\n", is_json=False) == "words\n"
    assert parse_bytes(b"\xff\x00") == b"\xff\x00"
    with pytest.raises(CommandError, match="UTF-8"):
        parse_bytes(b"\xff", is_json=True)


@given(VALUES)
def test_what_is_printed_can_be_set_again(value: Any) -> None:
    """`blackboard get k --json | blackboard set k -` changes nothing."""
    assert parse(compact(value), is_json=True) == value
    assert "\n" not in compact(value)


@given(VALUES)
def test_the_pretty_form_is_the_same_json(value: Any) -> None:
    """Only white space differs."""
    assert json.loads(pretty(value)) == json.loads(compact(value))


@pytest.mark.parametrize(
    ("amount", "unit_ms", "span"),
    [
        (None, 1_000, None),
        (0, 1_000, 0),
        (1e-9, 1_000, 1),
        (1.1, 1_000, 1_100),
        (2, 60_000, 120_000),
    ],
)
def test_a_span_of_time_is_whole_milliseconds(
    amount: float | None, unit_ms: int, span: int | None
) -> None:
    """One that is more than 0 stays more than 0."""
    assert milliseconds(amount, "--ttl", unit_ms=unit_ms) == span


@pytest.mark.parametrize("amount", [float("inf"), float("-inf"), float("nan"), 1e300, 1e306])
def test_a_span_of_time_is_finite(amount: float) -> None:
    with pytest.raises(CommandError, match="--ttl"):
        milliseconds(amount, "--ttl")
