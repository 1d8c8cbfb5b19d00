"""Rows of the archive, and the chain."""

import zlib
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import fields, replace

from blackboard.archive import rows as archive_rows
from blackboard.archive.tables import BLOB, DEFLATED, LOGGED, PLAIN
from blackboard.core.commit import (
    Change,
    ChangeKind,
    CommitId,
    Epoch,
    Kept,
    Lease,
    LogEntry,
    Waiter,
)
from blackboard.engines.base import LoggedValue
from blackboard.errors import Corrupt
from blackboard.limits import BLOB_BYTES, VALUE_BYTES_MAX

LEASE = Lease("public/l", "ada", 3, 99, (Waiter("bo", 5, 6),))
ENTRY = LogEntry(
    revision=7,
    time_ms=1_000,
    id=CommitId("ada", 1, "i", 4),
    changes=(
        Change(ChangeKind.PUT, "public/a", b"\x01", 5_000, item=2),
        Change(ChangeKind.GRANT, "public/l", lease=LEASE),
        Change(ChangeKind.DELETE, "public/b"),
    ),
    digest=b"d" * 32,
    based_on=(("public/a", 3),),
    note="why",
    epoch=Epoch(2, "e", "restore", 3, 7),
    results=(None, ("ada", 3, 99), 1),
)
OTHER: dict[str, Any] = {
    "revision": 8,
    "time_ms": 1_001,
    "id": CommitId("bo", 1, "i", 4),
    "changes": ENTRY.changes[:2],
    "digest": b"e" * 32,
    "based_on": (),
    "note": "",
    "epoch": None,
    "results": (None, ("ada", 3, 99), 0),
    "salt": b"t" * 16,
    "account": "ada",
    "kept": Kept((0,), (b"u" * 32,), (b"v" * 16,) * 4),
}
NARROWED = replace(ENTRY, id=CommitId("ada.x", 1, "i", 4))
SALTED = replace(NARROWED, salt=b"s" * 16)


@pytest.mark.parametrize("entry", [NARROWED, SALTED], ids=["plain", "salted"])
@pytest.mark.parametrize("field", [field.name for field in fields(LogEntry)])
def test_the_chain_covers_every_field(field: str, entry: LogEntry) -> None:
    """Of an entry; and nobody may add one that it does not cover."""
    changed = replace(entry, **{field: OTHER[field]})
    start = archive_rows.CHAIN_START
    assert archive_rows.next_chain(start, changed) != archive_rows.next_chain(start, entry)
    assert archive_rows.next_chain(b"x" * 32, entry) != archive_rows.next_chain(start, entry)


def test_the_chain_of_an_entry_without_a_salt_is_what_it_always_was() -> None:
    """Of archives that were written before there were salts."""
    expected = "4c2346d791007b3cacf65c37026725c85526d44d67103ec8c0e30ea8047c27ae"
    assert archive_rows.next_chain(archive_rows.CHAIN_START, ENTRY).hex() == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", ChangeKind.RENEW),
        ("key", "public/x"),
        ("value", b"\x02"),
        ("expires_at_ms", None),
        ("item", None),
        ("lease", LEASE),
    ],
)
@pytest.mark.parametrize("entry", [ENTRY, SALTED], ids=["plain", "salted"])
def test_the_chain_covers_every_change(field: str, value: Any, entry: LogEntry) -> None:
    """Whatever differs in one of them."""
    start = archive_rows.CHAIN_START
    first = replace(ENTRY.changes[0], **{field: value})
    changed = replace(entry, changes=(first, *ENTRY.changes[1:]))
    assert archive_rows.next_chain(start, changed) != archive_rows.next_chain(start, entry)
    assert {f.name for f in fields(Change)} == {
        "kind",
        "key",
        "value",
        "expires_at_ms",
        "item",
        "lease",
    }


def test_values_take_the_form_that_suits_them() -> None:
    """Small ones as they are, repetitive ones deflated, large ones by their hash."""
    assert archive_rows.content_of(b"a" * 511) == (PLAIN, b"a" * 511)
    for size in (512, 1_024, 1_025, 8_192, 8_193, 32_768, BLOB_BYTES):
        form, content = archive_rows.content_of(b"a" * size)
        assert form == DEFLATED
        assert len(content) < 100 + size // 100
        assert zlib.decompress(content) == b"a" * size
    noise = bytes(range(256)) * 4
    assert archive_rows.content_of(noise) == (PLAIN, noise)
    assert archive_rows.content_of(b"a" * BLOB_BYTES)[0] == DEFLATED
    form, content = archive_rows.content_of(b"a" * (BLOB_BYTES + 1))
    assert form == BLOB
    assert len(content) == 32


def row(form: int, content: bytes | None) -> Any:
    """A version's row, as far as it matters here."""
    return SimpleNamespace(form=form, content=content, key="public/a", revision=3)


@pytest.mark.parametrize(
    ("form", "content"), [(DEFLATED, b"junk"), (7, b"x"), (PLAIN, None), (DEFLATED, None)]
)
def test_damaged_content_is_named(form: int, content: bytes | None) -> None:
    """The key and the revision."""
    with pytest.raises(Corrupt, match="public/a at revision 3"):
        archive_rows.inline_value(row(form, content))
    assert archive_rows.inline_value(row(DEFLATED, zlib.compress(b"x"))) == b"x"


@pytest.mark.parametrize(
    "content", [None, b"", bytes(32), bytes(32) + b"7", bytes(32) + b"x@7", bytes(32) + b"-1@7"]
)
def test_a_damaged_place_is_named(content: bytes | None) -> None:
    """Of a value that lies in the log."""
    found = archive_rows.referred(row(LOGGED, content))
    assert isinstance(found, Corrupt)
    assert "public/a at revision 3" in str(found)
    where = LoggedValue(3, 17, 600)
    content = archive_rows.reference(bytes(32), where)
    assert archive_rows.referred(row(LOGGED, content)) == where
    assert archive_rows.hash_of(row(LOGGED, content)) == bytes(32)


def test_a_value_that_swells_is_refused() -> None:
    """Up to VALUE_BYTES_MAX it is a value; a bomb and half a value are named."""
    most = zlib.compress(bytes(VALUE_BYTES_MAX))
    assert archive_rows.inline_value(row(DEFLATED, most)) == bytes(VALUE_BYTES_MAX)
    for content, words in (
        (zlib.compress(bytes(VALUE_BYTES_MAX + 1)), "more than VALUE_BYTES_MAX"),
        (zlib.compress(bytes(32 * VALUE_BYTES_MAX)), "more than VALUE_BYTES_MAX"),
        (most[:-1], "cut short"),
    ):
        with pytest.raises(Corrupt, match=f"public/a at revision 3.*{words}"):
            archive_rows.inline_value(row(DEFLATED, content))
        with pytest.raises(Corrupt, match=words):
            archive_rows.hash_of(row(DEFLATED, content))


def test_a_damaged_commit_is_named() -> None:
    """Its revision."""
    commit = SimpleNamespace(**archive_rows.commit_row(1, ENTRY, bytes(32)))
    commit.details = commit.details[:-2]
    with pytest.raises(Corrupt, match="revision 7"):
        archive_rows.entry_of(commit, [], None, [])


def test_a_manifest_comes_out_as_it_went_in() -> None:
    """Also one that was packed without what all say alike; a damaged one is named."""
    manifest = b'{"agents":{},"author":"~system","board":"main","chain":"00","checkpoint":"a"}'
    packed = archive_rows.pack_manifest(manifest)
    assert len(packed) < len(zlib.compress(manifest, 9)) - 20
    for kept in (packed, zlib.compress(manifest)):
        assert archive_rows.unpack_manifest(kept) == manifest
        for damaged in (kept[:-1], b"", b"junk", kept[:8] + b"x" + kept[9:]):
            with pytest.raises(ValueError, match=r"\w"):
                archive_rows.unpack_manifest(damaged)
