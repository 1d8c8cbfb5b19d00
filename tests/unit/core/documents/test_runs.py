"""Typing is joined, and nothing else is changed by that."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pycrdt import Doc, Text

from blackboard.client.documents.replica import Replica, merged
from blackboard.core.documents.runs import joined
from blackboard.core.documents.update import read_update

Edit = Callable[[Text], None]


def recorded(
    edits: list[Edit], base: bytes = b"\0\0", client: int = 7
) -> tuple[Doc[Any], list[bytes]]:
    """A document after `edits`, and the update of each."""
    doc: Doc[Any] = Doc(client_id=client)
    text = doc.get("text", type=Text)
    doc.apply_update(base)
    updates: list[bytes] = []
    subscription = doc.observe(lambda event: updates.append(event.update))
    try:
        for edit in edits:
            edit(text)
    finally:
        doc.unobserve(subscription)
    return doc, updates


def insert(at: int, what: str) -> Edit:
    return lambda text: text.insert(at, what)


def delete(at: int) -> Edit:
    def edit(text: Text) -> None:
        del text[at : at + 1]

    return edit


def typed(words: str, at: int = 0) -> list[Edit]:
    """A key at a time; places count UTF-8 bytes."""
    return [insert(at + len(words[:n].encode()), key) for n, key in enumerate(words)]


@pytest.mark.parametrize("words", ["hello", "naïve 漢字", "so 😀😀 it is", "x"])
def test_the_keys_of_a_word_become_what_one_insertion_would_be(words: str) -> None:
    keys, [whole] = recorded(typed(words))[1], recorded([insert(0, words)])[1]
    assert len(keys) == len(words)
    assert joined(keys) == [whole]


def test_a_run_between_others_keeps_both_neighbours() -> None:
    base = recorded([insert(0, "left right")], client=3)[0].get_update()
    keys, [whole] = recorded(typed("mid ", 5), base)[1], recorded([insert(5, "mid ")], base)[1]
    assert joined(keys) == [whole]


def test_a_run_is_what_the_library_makes_of_it() -> None:
    """So what is tried is what is new in it, and need not be encoded again. That is not so for
    the same keys merged by the library."""
    base = recorded([insert(0, "left right")], client=3)[0].get_update()
    keys = recorded(typed("mid ", 5), base)[1]
    for updates, is_same in ((joined(keys), True), (keys, False)):
        copy = Replica(base, listening=True)
        try:
            assert (copy.apply(merged(updates)) == merged(updates)) is is_same
        finally:
            copy.close()


def test_runs_end_where_the_cursor_moves_or_something_is_deleted() -> None:
    doc, updates = recorded([*typed("abc"), *typed("xy"), delete(0), *typed("de", 4)])
    found = joined(updates)
    assert len(found) == 4
    assert found[2] == updates[5]
    copy: Doc[Any] = Doc()
    for update in found:
        copy.apply_update(update)
    assert str(copy.get("text", type=Text)) == str(doc.get("text", type=Text))


def test_writers_are_not_joined() -> None:
    ann = recorded(typed("ab"), client=1)[1]
    ben = recorded(typed("ab"), client=2)[1]
    assert joined([ann[0], ben[0], ann[1], ben[1]]) == [ann[0], ben[0], ann[1], ben[1]]


def test_an_update_that_comes_again_is_left_alone() -> None:
    keys = recorded(typed("ab"))[1]
    assert joined([keys[0], keys[0]]) == [keys[0], keys[0]]
    assert joined([keys[1], keys[0]]) == [keys[1], keys[0]]


def test_what_is_malformed_is_left_alone() -> None:
    keys = recorded(typed("abc"))[1]
    cut = [keys[1][:n] for n in range(len(keys[1]))]
    for bad in (*cut, keys[1] + b"\0", keys[1][:-3] + b"\x01\xff\x00", b"", b"\xff" * 40):
        assert joined([keys[0], bad, keys[2]]) == [keys[0], bad, keys[2]]


def test_nothing_stays_nothing() -> None:
    assert joined([]) == []
    assert joined([b"\0\0"]) == [b"\0\0"]


@given(seed=st.integers(0, 2**32), count=st.integers(0, 40), data=st.data())
def test_any_session_means_the_same_when_joined(seed: int, count: int, data: st.DataObject) -> None:
    """Also when it is cut anywhere into parts that are joined one by one."""
    drawn, length, cursor = random.Random(seed), 0, 0
    edits: list[Edit] = []
    for _ in range(count):
        if drawn.random() < 0.15:
            cursor = drawn.randint(0, length)
        if drawn.random() < 0.2 and cursor:
            edits.append(delete(cursor - 1))
            cursor, length = cursor - 1, length - 1
        else:
            edits.append(insert(cursor, drawn.choice("abc ")))
            cursor, length = cursor + 1, length + 1
    doc, updates = recorded(edits)
    cut = data.draw(st.integers(0, len(updates)))
    copy: Doc[Any] = Doc()
    for update in (*joined(updates[:cut]), *joined(updates[cut:])):
        read_update(update)
        copy.apply_update(update)
    assert copy.get_update() == doc.get_update()
    assert str(copy.get("text", type=Text)) == str(doc.get("text", type=Text))
