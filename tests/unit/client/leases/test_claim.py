"""Where attempts are kept, which patterns are about what, and what makes an entry free."""

import asyncio
from pathlib import Path

import anyio
import pytest

import blackboard
from blackboard.client.leases.claim import (
    Claim,
    Record,
    check_pattern,
    dead_key,
    frees,
    is_meant,
    tries_key,
)
from blackboard.client.views import Change, Entry, RevisionEvent
from blackboard.client.watch import Watch
from blackboard.core.commit import Epoch
from blackboard.errors import InvalidRequest, StaleEpoch
from blackboard.limits import RESYNC_BYTES, VALUE_BYTES_MAX
from blackboard.wire.codec import decode_value
from tests.conformance.team import PATIENCE_S
from tests.conformance.workers import Block

TASKS = "public/tasks/*"
ONE = "public/tasks/1"


@pytest.mark.parametrize(
    ("key", "tries", "dead"),
    [
        (ONE, "public/~tries/tasks/1", "public/~dead/tasks/1"),
        ("public/a", "public/~tries/a", "public/~dead/a"),
        ("private/ada/a/b", "private/ada/~tries/a/b", "private/ada/~dead/a/b"),
        ("inbox/ada/messages/*", "inbox/ada/~tries/messages/*", "inbox/ada/~dead/messages/*"),
        ("private/*/**", "private/*/~tries/**", "private/*/~dead/**"),
    ],
)
def test_records_stay_within_the_namespace(key: str, tries: str, dead: str) -> None:
    """Of a key, and of a pattern."""
    assert (tries_key(key), dead_key(key)) == (tries, dead)


@pytest.mark.parametrize("pattern", [TASKS, "public/**", "private/*/a", "inbox/ada/**", "public/a"])
def test_a_pattern_of_one_kind_of_namespace_can_be_claimed(pattern: str) -> None:
    """Also over several agents."""
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ["**", "*/a", "private/**", "private/ada", "public", "", "x/y"])
def test_other_patterns_cannot(pattern: str) -> None:
    """There is no place for records beside what they match."""
    with pytest.raises(InvalidRequest):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "key", "meant"),
    [
        ("public/**", ONE, True),
        ("public/**", "public/~dead/tasks/1", False),
        ("public/*/tasks/1", "public/~tries/tasks/1", False),
        ("public/~dead/**", "public/~dead/tasks/1", True),
        ("public/**", "public/tasks/~1", True),
        ("private/ada/**", "private/ada/~identity", False),
    ],
)
def test_what_is_kept_beside_must_be_named(pattern: str, key: str, meant: bool) -> None:
    """A wildcard is not enough."""
    assert is_meant(pattern, key) is meant


def entry_of(value: object) -> Entry:
    """An entry that holds a record."""
    return Entry(tries_key(ONE), value, 9, 9, "ada", 0)


def test_a_record_comes_back_as_it_was_kept() -> None:
    """By the value of its entry, for the entry that it is about."""
    record = Record(3, 7, "ValueError: no", delayed=True)
    put = record.at(ONE)
    assert put.key == tries_key(ONE)
    assert Record.of(entry_of(decode_value(put.value)), 7) == record
    assert Record.of(entry_of(decode_value(put.value)), 8) == Record(0, 8)


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        {"created": 7},
        {"created": 7, "tries": "3", "last_error": ""},
        {"created": 7, "tries": True, "last_error": ""},
        {"created": 7, "tries": -1, "last_error": ""},
        {"created": 7, "tries": 3, "last_error": None},
    ],
)
def test_what_is_no_record_counts_nothing(value: object) -> None:
    """Anybody may write there."""
    assert Record.of(entry_of(value), 7) == Record(0, 7)
    assert Record.of(None, 7) == Record(0, 7)


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ([("put", ONE)], True),
        ([("release", ONE)], True),
        ([("expire", ONE)], True),
        ([("grant", ONE)], False),
        ([("renew", ONE)], False),
        ([("delete", ONE), ("release", ONE)], False),
        ([("delete", ONE), ("release", ONE), ("put", "public/tasks/2")], True),
        ([("put", tries_key(ONE))], False),
    ],
)
def test_what_makes_an_entry_free(changes: list[tuple[str, str]], free: bool) -> None:
    """Nobody is woken by what helps nobody."""
    revised = RevisionEvent(5, 0, "ada", tuple(Change(kind, key) for kind, key in changes))
    assert frees("public/**", revised) is free


def test_a_restore_makes_an_entry_free() -> None:
    """It ends every lease, also where it changes no entry."""
    epoch = Epoch(number=2, id="e", cause="restore", from_revision=1, revision=5)
    assert frees("public/**", RevisionEvent(5, 0, "~system", (), epoch=epoch))


async def test_what_a_restore_of_much_puts_back_is_noticed_by_a_claim_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no delivery for the watch of the claim. Its board is as after any other restore."""
    waits, until_free = asyncio.Event(), Claim._until_free

    async def noted(claim: Claim, watch: Watch, seen: int) -> None:
        waits.set()
        await until_free(claim, watch, seen)

    monkeypatch.setattr(Claim, "_until_free", noted)
    async with blackboard.open(tmp_path, level="memory") as client:
        board, operator = client.board().as_agent("ada"), client.board()
        for number in range(RESYNC_BYTES // VALUE_BYTES_MAX + 1):
            await operator.put(f"public/tasks/{number}", b"x" * (VALUE_BYTES_MAX - 8))
        await operator.checkpoint("full")
        await operator.delete_prefix("public/tasks")
        await board.put("public/begun", 1)
        with anyio.fail_after(PATIENCE_S):
            claiming = Block(board.claim(TASKS))
            await waits.wait()
            await operator.restore("full")
            with pytest.raises(StaleEpoch):
                await claiming.entered()
