"""The digest of a log entry: what it covers, and what it tells of what is not shown."""

import hashlib
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.msgpack import encode
from msgspec.structs import fields, replace

from blackboard.core import digest, log_entry
from blackboard.core.commit import Change, ChangeKind, CommitId, Epoch, Lease, LogEntry, Waiter
from blackboard.core.log_entry import (
    LEAVES_MIN,
    Leaves,
    content_of,
    digest_of,
    digest_over,
    is_proved,
    proof_of,
)
from blackboard.limits import PROOF_LEAVES_MAX

LEASE = Lease("public/l", "ada", 3, 99, (Waiter("bo", 5, 6),))
ENTRY = LogEntry(
    revision=7,
    time_ms=1_000,
    id=CommitId("ada.x", 1, "i", 4),
    changes=(
        Change(ChangeKind.PUT, "public/a", b"\x01", 5_000, item=2),
        Change(ChangeKind.GRANT, "public/l", lease=LEASE),
        Change(ChangeKind.DELETE, "private/ada/b"),
    ),
    digest=b"",
    based_on=(("public/a", 3),),
    note="why",
    epoch=Epoch(2, "e", "restore", 3, 7),
    results=(None, ("ada", 3, 99), 1),
    salt=b"0123456789abcdef",
)


def entry_of(count: int, salt: bytes = ENTRY.salt) -> LogEntry:
    """An entry with so many changes."""
    changes = [Change(ChangeKind.PUT, f"private/ada/k{n}", b"\x01") for n in range(count)]
    return LogEntry(1, 2, CommitId("ada", 0, "i", 1), tuple(changes), b"", salt=salt)


def leaves_of(entry: LogEntry) -> list[bytes]:
    """All of its leaves."""
    leaves = Leaves(entry)
    for change in entry.changes:
        leaves.add(change, content_of(change))
    return leaves.all()


def test_the_digest_is_what_the_protocol_says() -> None:
    """Computed step by step, as docs/protocol.md puts it."""
    change = Change(ChangeKind.PUT, "public/a", b"\x01", None, None)
    entry = replace(entry_of(0), changes=(change,), based_on=(("public/b", 3),), results=(None,))
    salts = hashlib.shake_256(b"\0" + entry.salt).digest(32)
    said = encode(["put", "public/a", hashlib.sha256(b"\x01").digest(), None, None, None, 1])
    leaves = [hashlib.sha256(b"\0" + salts[:16] + said).digest()]
    hidden = encode([0, "i", 1, [["public/b", 3]], [None]])
    leaves.append(hashlib.sha256(b"\0" + salts[16:] + hidden).digest())
    padding = hashlib.shake_256(b"\1" + entry.salt).digest(64)
    leaves += [padding[:32], padding[32:]]
    header = hashlib.sha256(encode([1, 2, "ada", "", None])).digest()
    expected = hashlib.sha256(b"\1" + header + b"".join(sorted(leaves))).digest()
    assert digest_of(entry) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("revision", 8),
        ("time_ms", 1_001),
        ("id", CommitId("bo", 1, "i", 4)),
        ("id", CommitId("ada.x", 1, "i", 5)),
        ("changes", ENTRY.changes[:2]),
        ("changes", (*ENTRY.changes[:2], replace(ENTRY.changes[2], key="private/ada/c"))),
        ("changes", (replace(ENTRY.changes[0], value=b"\x02"), *ENTRY.changes[1:])),
        ("changes", (replace(ENTRY.changes[0], expires_at_ms=None), *ENTRY.changes[1:])),
        ("changes", (replace(ENTRY.changes[0], item=None), *ENTRY.changes[1:])),
        ("based_on", ()),
        ("note", ""),
        ("epoch", None),
        ("results", (None, ("ada", 3, 99), 0)),
        ("salt", b"1123456789abcdef"),
        ("account", "ada"),
    ],
)
def test_the_digest_covers_every_field(field: str, value: Any) -> None:
    assert digest_of(replace(ENTRY, **{field: value})) != digest_of(ENTRY)
    covered = {"revision", "time_ms", "id", "changes", "based_on", "note", "epoch", "results"}
    assert {each.name for each in fields(LogEntry)} == covered | {
        "account",
        "salt",
        "kept",
        "digest",
    }


def test_two_changes_of_one_key_keep_their_order() -> None:
    one = Change(ChangeKind.PUT, "public/a", b"\x01")
    other = Change(ChangeKind.PUT, "public/a", b"\x02")
    forth, back = (replace(ENTRY, changes=pair) for pair in ((one, other), (other, one)))
    assert digest_of(forth) != digest_of(back)


@pytest.mark.parametrize("change", ENTRY.changes, ids=lambda change: change.kind.value)
def test_an_entry_with_one_change_is_hashed_like_any_other(change: Change) -> None:
    """By a shorter way, because most entries are of this form."""
    entry = replace(ENTRY, changes=(change,))
    leaves = Leaves(entry)
    leaves.add(change, content_of(change))
    assert digest_of(entry) == leaves.digest() == digest_over(entry, leaves_of(entry))


@given(st.integers(0, 40))
def test_the_number_of_changes_shows_as_a_power_of_two_only(count: int) -> None:
    """Leaves that stand for nothing look like the others."""
    leaves = leaves_of(entry_of(count))
    assert len(leaves) >= max(LEAVES_MIN, count + 1)
    assert len(leaves) & (len(leaves) - 1) == 0
    assert len(leaves) < max(LEAVES_MIN + 1, 2 * (count + 1))
    assert len(set(leaves)) == len(leaves)
    assert {len(leaf) for leaf in leaves} == {log_entry.HASH_BYTES}


def test_equal_changes_have_unlike_leaves() -> None:
    """In one entry, and in two that differ in nothing but their salt."""
    one, other = (leaves_of(entry_of(3, salt)) for salt in (b"a" * 16, b"b" * 16))
    assert not set(one) & set(other)


@given(st.lists(st.sampled_from(["public/a", "public/b", "private/ada/a"]), max_size=6))
def test_what_is_shown_with_its_proof_gives_the_digest(keys: list[str]) -> None:
    """Whatever is shown; and nothing else does."""
    changes = [Change(ChangeKind.PUT, key, bytes([n])) for n, key in enumerate(keys)]
    entry = replace(ENTRY, changes=tuple(changes))
    entry = replace(entry, digest=digest_of(entry))
    shown = [change for change in changes if change.key.startswith("public/")]
    seen = replace(entry, changes=tuple(shown), salt=b"", id=CommitId("ada.x", 0, "", 0))
    seen = replace(seen, based_on=(), results=())
    proof = proof_of(entry, lambda key: key.startswith("public/"), digest.content_of)
    assert proof is not None
    assert is_proved(seen, proof)
    assert list(proof.leaves) == sorted(proof.leaves)
    assert not is_proved(replace(seen, revision=8), proof)
    for place, change in enumerate(shown):
        other = replace(change, value=b"other")
        changed = (*shown[:place], other, *shown[place + 1 :])
        assert not is_proved(replace(seen, changes=changed), proof)


def test_what_has_no_salt_or_too_many_leaves_has_no_proof() -> None:
    """The edge of PROOF_LEAVES_MAX."""

    def proves(entry: LogEntry) -> bool:
        return proof_of(entry, lambda _: True, digest.content_of) is not None

    assert not proves(replace(ENTRY, salt=b""))
    assert proves(entry_of(PROOF_LEAVES_MAX - 1))
    assert not proves(entry_of(PROOF_LEAVES_MAX))


def test_a_value_that_is_kept_sealed_counts_as_it_is_kept() -> None:
    """The reader gets the hash, because the visible form differs from the stored one."""

    def sealed(value: bytes) -> bytes:
        return b"sealed " + value

    kept = [
        change if change.value is None else replace(change, value=sealed(change.value))
        for change in ENTRY.changes
    ]
    seen = replace(ENTRY, digest=digest_of(replace(ENTRY, changes=tuple(kept))))
    proof = proof_of(seen, lambda _: True, lambda value: digest.content_of(sealed(value)))
    assert proof is not None
    assert is_proved(seen, proof)
    assert [content is None for content in proof.contents] == [False, True, True]
