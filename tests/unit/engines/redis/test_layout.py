"""Names of a board's keys, and the fields that they hold."""

import struct

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from blackboard.core.commit import RESTORE, Entry, Epoch, Head, PutBack
from blackboard.core.path import Ranges, ranges_of
from blackboard.core.state import BoardUsage
from blackboard.engines.redis.layout import (
    board_keys,
    index_ranges,
    log_key,
    pack_epoch,
    pack_usage,
    read_entry,
    read_epoch,
    read_head,
    unpack_bundle,
    write_entry,
)
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import Corrupt, InvalidRequest
from blackboard.units import Prefix
from tests.conformance.writer import Writer

FIELD = struct.pack(">QQQQBB", 7, 3, 1_000, 0, ord("v"), 3) + b"ada"
PACKED_EPOCH = b"\x95\x02\xa1e\xa6engine\x05\x09"


def test_all_keys_of_a_board_share_one_hash_tag() -> None:
    """So they lie in one slot, and one script reaches them."""
    assert {key.partition(":")[0] for key in board_keys("plan.1")} == {"{plan.1}"}
    assert len(set(board_keys("plan.1"))) == 7
    assert log_key("plan.1") == "{plan.1}:log"


@pytest.mark.parametrize("name", ["", "a}b", "{a", "a b", "a/b", "..", "x" * 129])
def test_a_name_that_would_leave_the_slot_is_refused(name: str) -> None:
    """A brace would end the tag."""
    with pytest.raises(InvalidRequest):
        board_keys(name)


@pytest.mark.parametrize(
    ("within", "after", "expected"),
    [
        ("public/a", None, ["[public/a/", "(public/a0"]),
        ("public/a", "public/a/b", ["[public/a/b\1", "(public/a0"]),
        ("public/a", "inbox/x/1", ["[public/a/", "(public/a0"]),
        ("public/a", "public/b", []),
        ("", None, ["[!", "(\x7f"]),
        ("", "public/a", ["[public/a\1", "(\x7f"]),
        ((("a", "b"), ("c", "e")), "d", ["[d\1", "(e"]),
    ],
)
def test_a_listing_is_intervals_of_the_index(
    within: Prefix | Ranges, after: str | None, expected: list[str]
) -> None:
    """It begins after `after`, but never before the first key below the prefix."""
    assert index_ranges(ranges_of(within, after)) == expected


@pytest.mark.parametrize("size", [1, 2_048, 2_049, 100_000])
@pytest.mark.parametrize("expires_at_ms", [None, 2_000_000_000_000])
async def test_what_is_written_here_is_what_the_script_writes(
    redis_store: RedisStore, redis: Redis, size: int, expires_at_ms: int | None
) -> None:
    """So that a board that was made of entries is as one that grew."""
    ada = await Writer.open(redis_store, "keys")
    begins = Epoch(2, "second", RESTORE, 0, 1)
    ops = (PutBack("public/a", b"\xc4" * size, expires_at_ms),)
    await ada.send(replace(ada.make(*ops), begins=begins))
    [entry] = (await redis_store.read("keys", ["public/a"])).entries
    field, large = write_entry(entry)
    kept = board_keys("keys")[3]
    assert await redis.hget(kept, "public/a") == field
    assert await redis.hget(kept, "\0public/a") == large
    assert read_entry(b"public/a", field, large) == entry
    meta = board_keys("keys")[0]
    assert await redis.hget(meta, "u:public") == pack_usage(BoardUsage(1, len("public/a") + size))
    assert await redis.hget(meta, "e") == pack_epoch(begins)


def test_a_bundle_that_is_none_is_corrupt() -> None:
    assert unpack_bundle(b"\x92\xa1a\xa0") == [b"a", b""]
    with pytest.raises(Corrupt):
        unpack_bundle(b"\xc1")


def test_a_field_is_an_entry() -> None:
    """The header is fixed, the author's name has its length before it, the value is the rest."""
    assert read_entry(b"public/a", FIELD + b"\x01", None) == Entry(
        "public/a", b"\x01", 7, 3, "ada", 1_000, None
    )


def test_a_large_value_stands_beside_its_field() -> None:
    """The field then holds its length and first byte, which no reader of the value needs."""
    field = struct.pack(">QQQQBB", 7, 3, 1_000, 9, ord("L"), 3) + b"ada" + b"\0\0\x10\0\xc5"
    assert read_entry(b"public/a", field, b"large").value == b"large"
    assert read_entry(b"public/a", field, b"large").expires_at_ms == 9
    with pytest.raises(Corrupt):
        read_entry(b"public/a", field, None)


@pytest.mark.parametrize(
    "field", [b"", FIELD[:20], FIELD.replace(b"v", b"?"), FIELD[:-1] + b"\xff"]
)
def test_a_damaged_field_is_corrupt(field: bytes) -> None:
    """It is never taken for something else."""
    with pytest.raises(Corrupt):
        read_entry(b"public/a", field, None)


def test_a_head_holds_its_epoch() -> None:
    """As prelude.lua replies it."""
    epoch = Epoch(2, "e", "engine", 5, 9)
    assert read_epoch(PACKED_EPOCH) == epoch
    assert read_head([12, 4, PACKED_EPOCH, 77, 8]) == Head(12, epoch, 4, 77, 8)
    with pytest.raises(Corrupt):
        read_epoch(b"\xc1")
    with pytest.raises(Corrupt):
        read_epoch(b"\x93\x01\x02\x03")
