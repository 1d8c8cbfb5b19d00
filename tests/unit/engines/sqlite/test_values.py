"""A value that the log holds is stored once: where it lies, what is compared, and what cutting the
log moves."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from blackboard.core.commit import (
    Change,
    ChangeKind,
    CommitId,
    Delete,
    Increment,
    LogEntry,
    Op,
    Put,
)
from blackboard.engines.sqlite import follower, rows as values
from blackboard.engines.sqlite.file import WriteError
from blackboard.engines.sqlite.rows import REFERRED_BYTES, LogRows, Taken
from blackboard.errors import Corrupt
from blackboard.limits import VALUE_INLINE_BYTES_MAX
from tests.unit.core.trial import packed
from tests.unit.engines.sqlite.test_follower import Written, load
from tests.unit.engines.sqlite.test_rows import forget, same_state

DICE = random.Random(1)
SMALL = packed("s" * (REFERRED_BYTES - 10))
INLINE = packed(DICE.randbytes(900))
LARGE = packed(DICE.randbytes(VALUE_INLINE_BYTES_MAX + 1))
Lies = dict[str, tuple[int, int] | None]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """A file with a board in it."""
    made = Written(tmp_path / "board.db")
    yield made
    made.file.abandon()


def lies(path: Path) -> Lies:
    """Of each entry, its revision and the size of what it refers to; None if its row has the
    value."""
    query = "SELECT key, mod_revision, size, place, length(value) FROM entry"
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(query).fetchall()
    assert all((place is None) == (size is None) == bool(kept) for *_, size, place, kept in found)
    return {key: size and (revision, size) for key, revision, size, *_ in found}


def cut(written: Written, oldest: int) -> bool:
    """Compact as a board does; whether rows of the log are left below."""
    state = written.trial.state
    forget(state, written.backlog, oldest)
    remains = written.file.write(
        written.backlog.take(state, LogRows(), log_below=oldest)
    ).log_remains
    assert same_state(load(written.path).state, state)
    return remains


def content(written: Written) -> bytes:
    """All that its file holds, without what the journal had before."""
    written.file.scrub()
    return written.path.read_bytes()


@pytest.mark.parametrize("value", [INLINE, LARGE], ids=["in the body", "outside of it"])
def test_a_value_that_the_log_holds_is_stored_once(written: Written, value: bytes) -> None:
    """With the log, and after it was cut."""
    written.commit(Put("public/a", SMALL), Put("public/b", value))
    written.follow(everything=True)
    assert lies(written.path) == {"public/a": None, "public/b": (1, len(value))}
    assert content(written).count(value) == 1
    written.commit(Put("public/c", value))
    assert not cut(written, 2)
    written.follow(everything=True)
    assert lies(written.path) == {
        "public/a": None,
        "public/b": None,
        "public/c": (2, len(value)),
    }
    assert content(written).count(value) == 2
    assert not cut(written, 3)
    assert set(lies(written.path).values()) == {None}


def test_a_value_that_was_replaced_goes_with_its_row_of_the_log(written: Written) -> None:
    """Nothing moves it."""
    written.commit(Put("public/a", INLINE), Put("public/b", LARGE), Put("public/n", packed(1)))
    written.follow(everything=True)
    written.commit(Put("public/a", packed(1)), Delete("public/b"), Increment("public/n", 1))
    written.follow(everything=True)
    assert lies(written.path) == {"public/a": None, "public/n": None}
    cut(written, 2)
    assert INLINE not in (left := content(written))
    assert LARGE not in left


def test_one_commit_has_many_values(written: Written) -> None:
    """Some twice, some alike at their beginning, some of a key that the commit writes again."""
    alike = [packed("a" * 300 + str(number)) for number in range(3)]
    puts = [Put(f"public/{n}", value) for n, value in enumerate([*alike, INLINE, LARGE, *alike])]
    again = Put("public/0", packed("short"))
    written.commit(*puts, Put("public/9", LARGE), Put("public/4", INLINE), again)
    written.follow(everything=True)
    found = lies(written.path)
    assert [found[f"public/{n}"] is None for n in range(8)] == [True] + [False] * 7
    assert found["public/4"] == (1, len(INLINE))
    cut(written, 2)
    written.commit(*puts)
    written.follow(everything=True)
    assert None not in [found for key, found in lies(written.path).items() if key != "public/9"]


def test_only_the_last_value_of_a_key_counts() -> None:
    """Of two changes in one commit, whatever the first one left."""
    put = [Change(ChangeKind.PUT, "public/a", value) for value in (INLINE, packed(1))]
    entry = LogEntry(1, 1, CommitId("ada", 0, "1", 1), tuple(put), b"")
    row = (1, 1, INLINE + packed(1), None, b"", b"", 0)
    assert values.places_of(entry, row) == {}
    first = msgspec.structs.replace(entry, changes=tuple(put[:1]))
    assert values.places_of(first, row) == {"public/a": (1, 0)}


def test_a_value_that_is_not_found_stays_in_its_row(written: Written) -> None:
    """Guesses are limited, and so are values that are searched for in vain."""
    begin = b"b" * values._SEEN_BYTES
    for decoys in (values._GUESSES - 1, values._GUESSES):
        content = b"-".join([begin] * decoys + [begin + b"value"])
        place = len(content) - len(begin + b"value")
        found = values._Search(content, 100).find(begin + b"value")
        assert found == (100 + place if decoys < values._GUESSES else None)
    search = values._Search(b"a value")
    for _ in range(values._MISSES_MAX):
        assert search.find(b"another") is None
    assert search.find(b"a value") is None
    alike = [packed("s" * 300 + str(n)) for n in range(2 * values._GUESSES)]
    small = [Put(f"public/small/{n}", packed("s" * 200 + str(n))) for n in range(9)]
    written.commit(*small, *(Put(f"public/{n}", value) for n, value in enumerate(alike)))
    written.follow(everything=True)  # whichever were found: `Written.write` loads the file


def test_the_log_is_cut_in_parts_of_so_many_bytes(written: Written) -> None:
    """A crash between two of them leaves every value."""
    for number in range(10):
        written.commit(Put(f"public/{number}", packed(DICE.randbytes(1_000_000))))
    written.follow(everything=True)
    left = []
    for remains in (True, False):
        assert cut(written, 11) is remains
        left.append(sum(found is not None for found in lies(written.path).values()))
    assert left == [5, 0]


def test_a_cut_above_the_mark_leaves_no_reference_behind(written: Written) -> None:
    """The rows of entries are written by the transaction that removes the log they lie in."""
    written.commit(Put("public/a", INLINE))
    written.commit(Put("public/b", LARGE))
    assert not cut(written, 3)
    assert lies(written.path) == {"public/a": None, "public/b": None}


def test_what_had_no_room_refers_to_the_right_row(written: Written) -> None:
    """A key that changed since its rows were put back has another value, or one in its row."""
    written.commit(Put("public/a", INLINE), Put("public/b", INLINE), Put("public/c", INLINE))
    taken = written.backlog.take(written.trial.state, LogRows(), everything=True)
    log = written.append(Put("public/a", packed(1)), Put("public/b", LARGE))
    written.backlog.put_back(taken)
    written.write(Taken(log.rows))
    written.follow(everything=True)
    assert lies(written.path) == {
        "public/a": None,
        "public/b": (2, len(LARGE)),
        "public/c": (1, len(INLINE)),
    }


def test_a_part_of_a_large_commit_refers_to_it(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the mark is still below its row."""
    monkeypatch.setattr(follower, "TOGETHER_ROWS", 2)
    ops: list[Op] = [Put(f"public/{number}", INLINE) for number in range(5)]
    written.commit(*ops)
    written.follow()
    assert lies(written.path) == dict.fromkeys(("public/0", "public/1"), (1, len(INLINE)))
    assert written.backlog.mark[0] == 0


DAMAGES = {
    "a place": "UPDATE entry SET place = place + 1 WHERE key = 'public/a'",
    "a size": "UPDATE entry SET size = size - 1 WHERE key = 'public/a'",
    "no place": "UPDATE entry SET place = NULL WHERE key = 'public/a'",
    "no size": "UPDATE entry SET size = NULL WHERE key = 'public/a'",
    "neither": "UPDATE entry SET place = NULL, size = NULL WHERE key = 'public/a'",
    "a place without a value": "UPDATE entry SET place = 0, value = x'' WHERE key = 'public/s'",
    "a size beside a value": "UPDATE entry SET size = 9 WHERE key = 'public/s'",
    "two values": "UPDATE entry SET value = x'c0' WHERE key = 'public/a'",
    "a place of another type": "UPDATE entry SET place = 'x' WHERE key = 'public/a'",
    "a place before the row": "UPDATE entry SET place = -5 WHERE key = 'public/a'",
    "the row of another commit": "UPDATE entry SET mod_revision = 2 WHERE key = 'public/a'",
    "no such commit": "UPDATE entry SET mod_revision = 9 WHERE key = 'public/a'",
    "bytes in the log": (
        "UPDATE log SET body = CAST(substr(body, 1, 400) || x'00' || substr(body, 402) AS BLOB)"
        " WHERE revision = 1"
    ),
    "values outside": "UPDATE log SET large = NULL WHERE revision = 2",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_damage_to_a_value_or_to_where_it_lies_is_found(written: Written, damage: str) -> None:
    """When the board is loaded."""
    written.commit(Put("public/a", INLINE))
    written.commit(Put("public/b", LARGE), Put("public/s", packed("short")))
    written.follow(everything=True)
    written.damage(damage)
    with pytest.raises(Corrupt, match=r"board\.db"):
        load(written.path)


def test_an_index_that_lacks_a_value_is_found(written: Written) -> None:
    """The log would be cut without moving it."""
    written.commit(Put("public/a", INLINE))
    written.follow(everything=True)
    written.damage(
        "PRAGMA writable_schema=ON;"
        "UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', 'NULL') WHERE type = 'index';"
        "REINDEX entry_in_log; VACUUM;"
    )
    with closing(sqlite3.connect(written.path)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'place IS NULL', 'place IS NOT NULL')"
        )
        connection.commit()
    with pytest.raises(Corrupt, match="missing from index entry_in_log"):
        load(written.path)


def test_values_that_the_log_lost_are_not_moved(tmp_path: Path) -> None:
    """The transaction that would cut it fails, and changes nothing."""
    made = Written(tmp_path / "board.db")
    made.commit(Put("public/a", INLINE))
    made.commit(Put("public/b", packed(1)))
    made.follow(everything=True)
    made.file._writer.execute("DELETE FROM log WHERE revision = 1")
    made.file._writer.execute("UPDATE log SET revision = 1 WHERE revision = 2")
    made.file._writer.execute("UPDATE entry SET mod_revision = 0 WHERE key = 'public/a'")
    forget(made.trial.state, made.backlog, 3)
    taken = made.backlog.take(made.trial.state, LogRows(), log_below=3)
    with pytest.raises(WriteError, match="does not hold its values") as failed:
        made.file.write(taken)
    assert failed.value.certain
    assert lies(made.path) == {"public/a": (0, len(INLINE)), "public/b": None}
    made.file.abandon()
