"""What is repeated as it is known passes; what is something else under a known number is found."""

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pycrdt import Array, Doc, Map, Text, merge_updates

from blackboard.core.documents.compare import differing, known_from
from blackboard.core.documents.update import read_state, read_update, write_state
from tests.unit.core.documents.test_update import edited


def found_in(doc: Doc[Any], data: bytes) -> tuple[int, int] | None:
    """As a room asks."""
    clocks = read_state(doc.get_state())
    since = known_from(read_update(data).structs, clocks)
    if not since:
        return None
    return differing(data, doc.get_update(write_state({**clocks, **since})), clocks)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 40), st.data())
def test_what_is_known_is_no_other(seed: int, count: int, data: st.DataObject) -> None:
    """Single edits, runs of them, merged or encoded again, from any state on: by edits of all
    kinds, whatever was deleted or merged in the document meanwhile. A state is one that was
    reached: within an emoji, which is two units, libraries have nothing to begin with."""
    doc, updates = edited(seed, count)
    first = data.draw(st.integers(0, len(updates)))
    last = data.draw(st.integers(first, len(updates)))
    for update in updates[first:last]:
        assert found_in(doc, update) is None
    if first < last:
        assert found_in(doc, merge_updates(*updates[first:last])) is None
    part, states = Doc[Any](), [write_state({})]
    for update in updates[:last]:
        part.apply_update(update)
        states.append(part.get_state())
    for state in {states[0], states[first], states[last], write_state({7: 10**6})}:
        assert found_in(doc, part.get_update(state)) is None


def pair(a: Any, b: Any) -> tuple[Doc[Any], bytes]:
    """A document that `a` wrote, and what `b` wrote under the same number."""
    first: Doc[Any] = Doc(client_id=7)
    a(first)
    second: Doc[Any] = Doc(client_id=7)
    b(second)
    return first, second.get_update()


def text(content: str, name: str = "t", at: int = 0) -> Any:
    """Somebody who writes text."""

    def write(doc: Doc[Any]) -> None:
        found = doc.get(name, type=Text)
        found.insert(at, content)

    return write


def listed(*values: Any) -> Any:
    """Somebody who writes a list."""
    return lambda doc: doc.get("l", type=Array).extend(list(values))


def mapped(key: str, value: Any) -> Any:
    """Somebody who sets a key."""
    return lambda doc: doc.get("m", type=Map).__setitem__(key, value)


def both(*parts: Any) -> Any:
    """One after the other."""
    return lambda doc: [part(doc) for part in parts]


DIFFERENT = {
    "text": (text("ann"), text("eve")),
    "the end of a text": (text("same then"), text("same now!")),
    "shorter, and in another text": (text("ann"), text("an", "u")),
    "a longer text": (text("aXb"), text("ann!")),
    "two units of a character": (text("😀"), text("ab")),
    "the place in a text": (both(text("ab"), text("c")), both(text("ab"), text("c", at=2))),
    "another key": (mapped("k", 1), mapped("l", 1)),
    "another value": (mapped("k", 1), mapped("k", 2)),
    "true for one": (mapped("k", True), mapped("k", 1.0)),
    "a value in a list": (listed("a", [1, {"x": 2}]), listed("a", [1, {"x": 3}])),
    "a list for a text": (text("a"), listed("a")),
    "bytes": (mapped("k", b"a"), mapped("k", b"b")),
    "a kind of shared type": (mapped("k", Text("")), mapped("k", Array([]))),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_each_kind_of_difference_is_found(name: str) -> None:
    """And nothing in what is repeated."""
    a, b = DIFFERENT[name]
    doc, data = pair(a, b)
    found = found_in(doc, data)
    assert found is not None
    assert found[0] == 7
    assert found_in(doc, pair(a, a)[1]) is None


def test_what_was_deleted_is_not_compared() -> None:
    """It has no content any more: so the one who wrote it is not accused."""
    doc, data = pair(text("gone"), text("gone"))
    del doc.get("t", type=Text)[0:4]
    assert found_in(doc, data) is None


def test_only_what_is_known_is_compared() -> None:
    """What goes on behind it is new."""
    doc, data = pair(text("ann"), text("ann one"))
    assert found_in(doc, data) is None
    assert found_in(Doc(), data) is None


@pytest.mark.parametrize(
    "value", [0, -1, 63, -64, 64, 2**31, -(2**40), 2**53 - 1, 1.5, 1e300, None]
)
def test_numbers_compare_as_values(value: Any) -> None:
    """However a library writes them: as an integer, a float or a double."""
    doc, data = pair(mapped("k", {"v": [value]}), mapped("k", {"v": [value]}))
    assert found_in(doc, data) is None
    _, other = pair(mapped("k", 1), mapped("k", {"v": ["x"]}))
    assert found_in(doc, other) == (7, 0)


def test_an_integer_and_the_same_double_are_one_value() -> None:
    """Yjs writes 1 as an integer where another library writes 1.0."""
    head = b"\x01\x01\x07\x00\x28\x01\x01m\x01k\x01"
    as_integer, as_double = (
        head + b"\x7d\x01\x00",
        head + b"\x7b" + b"\x3f\xf0" + bytes(6) + b"\x00",
    )
    doc: Doc[Any] = Doc()
    doc.apply_update(as_integer)
    assert json.loads(str(doc.get("m", type=Map))) == {"k": 1}
    assert found_in(doc, as_double) is None
    assert found_in(doc, head + b"\x7d\x02\x00") == (7, 0)
