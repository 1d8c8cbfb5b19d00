"""What is read of an update is what the library makes of it, and nothing hostile passes."""

import contextlib
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pycrdt import Array, Doc, Map, Text, XmlElement, XmlFragment, XmlText, merge_updates

from blackboard.core.documents import update as crdt
from blackboard.core.documents.update import (
    Span,
    Struct,
    read_state,
    read_update,
    write_number as n,
    write_state,
    write_text,
)
from blackboard.errors import InvalidRequest
from blackboard.limits import VALUE_DEPTH_MAX


def edited(seed: int, count: int, *, client: int = 7) -> tuple[Doc[Any], list[bytes]]:
    """A document after so many random edits of every kind, and the update of each."""
    rng = random.Random(seed)
    doc: Doc[Any] = Doc(client_id=client)
    text, array, mapping = (
        doc.get("t", type=Text),
        doc.get("a", type=Array),
        doc.get("m", type=Map),
    )
    xml, embeds = doc.get("x", type=XmlFragment), doc.get("e", type=Text)
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    for i in range(count):
        match rng.randrange(9):
            case 0 | 1:
                text.insert(0, rng.choice(["a", "é😀", "漢字 and more"]))
            case 2 if len(text) > 20:
                del text[0 : len(str(text)[:3].encode())]
            case 3:
                mapping[f"k{rng.randrange(4)}"] = {"x": [1, None, True, "s", 2.5, {"y": b"ab"}]}
            case 4:
                array.append(Map({"n": Text("hi"), "l": Array([1, 2])}))
            case 5 if len(text):
                text.format(0, len(str(text)[:1].encode()), {"bold": True})
            case 6 if len(array) > 3:
                del array[1:3]
            case 7:
                embeds.insert_embed(0, {"image": i})
            case _:
                xml.children.append(XmlElement("p", {"id": str(i)}, [XmlText("inner")]))
    return doc, updates


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_clocks_are_those_of_the_library(seed: int, count: int) -> None:
    doc, updates = edited(seed, count)
    clocks: dict[int, int] = {}
    for update in updates:
        found = read_update(update)
        assert found.gap(clocks) is None
        clocks |= found.news(clocks)
    assert clocks == read_state(doc.get_state())
    assert read_update(doc.get_update()).reached() == clocks


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_an_update_without_the_one_before_has_a_gap(seed: int) -> None:
    _, updates = edited(seed, 12)
    known: dict[int, int] = {}
    for update in updates[:-2]:
        known |= read_update(update).news(known)
    last, after = read_update(updates[-2]), read_update(updates[-1])
    if last.structs and after.structs:
        assert after.gap(known) is not None
    merged = read_update(merge_updates(*updates))
    assert merged.gap({}) is None


def test_a_deletion_of_what_is_unknown_is_a_gap() -> None:
    update = b"\x00" + n(1) + n(5) + n(1) + n(3) + n(2)
    found = read_update(update)
    assert found.deleted == (Span(5, 3, 2),)
    assert found.gap({5: 4}) == (5, 4)
    assert found.gap({5: 5}) is None


def test_neighbours_are_read() -> None:
    doc: Doc[Any] = Doc(client_id=9)
    text = doc.get("t", type=Text)
    text.insert(0, "ac")
    before = doc.get_state()
    text.insert(1, "b😀")
    (struct,) = read_update(doc.get_update(before)).structs
    assert struct == Struct(9, 2, 3, (9, 0), (9, 1), is_text=True)


def test_the_state_comes_back() -> None:
    clocks = {2**53 - 1: 3, 4: 2**31}
    assert read_state(write_state(clocks)) == clocks
    assert write_state({}) == crdt.EMPTY_STATE
    assert read_update(crdt.EMPTY_UPDATE).is_empty


def item(content: bytes, *, client: int = 5) -> bytes:
    """An update with one struct at the root `m`; `content` is its kind and what follows."""
    head = n(1) + n(1) + n(client) + n(0)
    return head + content[:1] + n(1) + write_text("m") + content[1:] + n(0)


def nested(depth: int) -> bytes:
    """A value of lists in each other."""
    return item(bytes((8,)) + n(1) + b"\x75\x01" * depth + b"\x7e")


def test_a_value_may_nest_only_so_deep() -> None:
    read_update(nested(VALUE_DEPTH_MAX))
    with pytest.raises(InvalidRequest, match="too deep"):
        read_update(nested(VALUE_DEPTH_MAX + 1))


def test_what_would_end_the_process_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="too deep"):
        read_update(nested(200_000))
    text = json.dumps({"a": 1}).replace("1", "[" * 100_000 + "]" * 100_000)
    with pytest.raises(InvalidRequest, match="too deep"):
        read_update(item(bytes((5,)) + write_text(text)))


HOSTILE = {
    "accepted, and breaks every later encoding": bytes.fromhex("01017f010000000000"),
    "more clients than bytes": n(2**40),
    "more structs than bytes": n(1) + n(2**40) + n(5) + n(0),
    "more deletions than bytes": n(0) + n(1) + n(5) + n(2**40),
    "a client twice": n(2) + 2 * (n(1) + n(5) + n(0) + b"\x00" + n(1)) + n(0),
    "a gap in itself": n(1) + n(1) + n(5) + n(0) + bytes((10,)) + n(1) + n(0),
    "an unknown content": item(bytes((11,))),
    "an unknown value": item(bytes((8,)) + n(1) + b"\x01"),
    "an unknown shared type": item(bytes((7,)) + n(7)),
    "an empty deletion": n(0) + n(1) + n(5) + n(1) + n(0) + n(0),
    "something after the end": crdt.EMPTY_UPDATE + b"\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_updates_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_update(data)


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.data())
def test_no_mutation_breaks_the_reader(seed: int, data: st.DataObject) -> None:
    doc, _ = edited(seed, 10)
    mutated = bytearray(doc.get_update())
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRequest):
        read_update(bytes(mutated))


def test_an_update_shows_what_its_author_knew() -> None:
    """As far as it refers to it, by a neighbour or by deleting it."""
    one: Doc[Any] = Doc(client_id=1)
    two: Doc[Any] = Doc(client_id=2)
    for doc in (one, two):
        doc["text"] = Text()
    one["text"] += "0123456789"
    two.apply_update(one.get_update())
    before = two.get_state()
    two["text"].insert(4, "x")
    assert read_update(two.get_update(before)).knew(1) == 5
    assert read_update(two.get_update(before)).knew(2) == 0
    before = two.get_state()
    del two["text"][8:10]
    assert read_update(two.get_update(before)).knew(1) >= 9
