"""A document as entries: what is written is what is read, and what is neither is Corrupt."""

from collections.abc import Sequence
from typing import Any

import pytest

from blackboard.client.documents import layout as storage
from blackboard.client.documents.layout import PIECE_BYTES, Base
from blackboard.client.views import Entry
from blackboard.core.commit import ABSENT, Append, Delete, KeyAt, Op, Put, PutBack
from blackboard.core.path import (
    base_key,
    document_of,
    overlaps_prefix,
    parts_prefix,
    updates_prefix,
)
from blackboard.errors import Corrupt
from blackboard.limits import (
    COMMIT_BYTES_MAX,
    DOCUMENT_BYTES_MAX,
    DOCUMENT_UPDATE_BYTES_MAX,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
)
from blackboard.wire.codec import decode_value

KEY = "public/memo"


def entry(key: str, value: Any, revision: int = 1, author: str = "ada") -> Entry:
    """An entry below the document."""
    return Entry(key, value, revision, revision, author, 0)


def written(ops: Sequence[Op], revision: int = 1) -> dict[str, Entry]:
    """What operations leave on an empty board; an appended item has the number of its place."""
    found = {}
    for number, op in enumerate(ops):
        if isinstance(op, Append):
            key = f"{op.prefix}/{revision:06}{number:04}"
            found[key] = entry(key, decode_value(op.value), revision)
        elif isinstance(op, Put | PutBack):
            assert op.value is not None
            found[op.key] = entry(op.key, decode_value(op.value), revision)
    return found


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, DOCUMENT_UPDATE_BYTES_MAX])
def test_an_update_is_cut_into_values_and_put_together(size: int) -> None:
    update = b"u" * size or b"\0\0"
    ops = storage.append_update(KEY, update)
    assert all(len(op.value) <= VALUE_BYTES_MAX for op in ops)
    assert sum(len(op.value) for op in ops) < COMMIT_BYTES_MAX
    (item,) = storage.read_document(KEY, written(ops)).items
    assert (item.update, item.author, item.mark) == (update, "ada", None)
    assert len(item.keys) == len(ops)


def test_updates_are_read_in_the_order_of_the_log() -> None:
    """Whatever their keys: that of a restore is put back at its mark's."""
    entries = written(storage.append_update(KEY, b"first"), 1)
    entries |= written(storage.put_back_update(KEY, b"back" * PIECE_BYTES, 7), 2)
    entries |= written(storage.append_update(KEY, b"third"), 3)
    items = storage.read_document(KEY, entries).items
    assert [item.update[:5] for item in items] == [b"first", b"backb", b"third"]
    assert [item.mark for item in items] == [None, 7, None]


@pytest.mark.parametrize("size", [1, 2 * PIECE_BYTES + 1, DOCUMENT_BYTES_MAX])
def test_a_compaction_replaces_what_was_there(size: int) -> None:
    """The base appears as the updates in it go, in one commit that an engine takes."""
    old = storage.base_of(KEY, "old", 18, 5)
    new = Base(b"s" * size, {1: "ada", 2: "bob", 3: "ada"}, 9)
    tail = [(f"{updates_prefix(KEY)}/{i:010}", i + 6) for i in range(storage.TAIL_DELETED_MAX)]
    strays = [f"{parts_prefix(KEY, 'lost')}/{i:04}" for i in range(storage.STRAYS_DELETED_MAX)]
    made = storage.compaction(KEY, new, "new", old=old, keys=tail, strays=strays)
    for ops in (*made.pieces, made.ops):
        assert len(ops) <= OPERATIONS_MAX
        assert sum(len(op.value) for op in ops if isinstance(op, Put)) < COMMIT_BYTES_MAX
    assert made.conditions == (KeyAt(base_key(KEY), 5), KeyAt(*tail[0]))
    gone = {op.key for op in made.ops if isinstance(op, Delete)}
    assert gone == {*old.keys, *(key for key, _ in tail), *strays}
    assert all(not isinstance(op, Delete) for ops in made.pieces for op in ops)
    read = storage.read_document(
        KEY, written([op for ops in (*made.pieces, made.ops) for op in ops])
    )
    assert (read.base.state, read.base.owners, read.base.mark) == (new.state, new.owners, 9)
    assert read.items == ()
    assert storage.base_of(KEY, "new", len(read.base.keys), 1).keys == read.base.keys


def test_what_does_not_exist_is_empty() -> None:
    read = storage.read_document(KEY, {})
    assert (read.base, read.items) == (Base(), ())
    assert read.base.revision == ABSENT


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (base_key(KEY), 3),
        (base_key(KEY), {"parts": ["g", 1], "owners": {}, "mark": None}),
        (base_key(KEY), {"parts": ["g"], "owners": {}, "mark": None}),
        (base_key(KEY), {"parts": ["g", 0], "owners": 3, "mark": None}),
        (f"{updates_prefix(KEY)}/0", "text"),
        (f"{updates_prefix(KEY)}/0", {"upd": b""}),
        (f"{updates_prefix(KEY)}/0", {"update": 3}),
        (f"{updates_prefix(KEY)}/0", {"update": b"half", "more": True}),
    ],
)
def test_what_was_not_written_here_is_corrupt(key: str, value: Any) -> None:
    with pytest.raises(Corrupt):
        storage.read_document(KEY, {key: entry(key, value)})


def test_every_key_says_what_it_is() -> None:
    update, report = f"{updates_prefix(KEY)}/0", f"{overlaps_prefix(KEY)}/0"
    assert (storage.is_update(KEY, update), storage.is_update(KEY, report)) == (True, False)
    assert (storage.is_report(KEY, update), storage.is_report(KEY, report)) == (False, True)
    assert not storage.is_update("public/mem", update)
    assert {document_of(update), document_of(report)} == {KEY}
