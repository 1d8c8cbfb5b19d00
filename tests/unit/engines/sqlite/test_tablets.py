"""Tablets: how they are cut and joined; a board is the same whichever of them are loaded."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from blackboard.core.commit import Delete, Entry, Op, Put
from blackboard.core.state import State
from blackboard.engines.sqlite.cache import LoadedEntries, NotLoaded, admit, evict
from blackboard.engines.sqlite.file import BoardFile, WriteError
from blackboard.engines.sqlite.tablets import (
    FIRST,
    LAST,
    Changes,
    Pieces,
    Span,
    Tablet,
    Tablets,
    cut,
)
from blackboard.errors import Corrupt
from blackboard.limits import DEFAULT
from tests.lowered import lowered
from tests.unit.core.trial import EPOCH, packed
from tests.unit.engines.sqlite.test_file import NAME
from tests.unit.engines.sqlite.test_follower import Written
from tests.unit.engines.sqlite.test_rows import same_state

BOARDS = DEFAULT.boards
KEYS, BYTES = BOARDS.tablet_keys_max // 2, BOARDS.tablet_bytes_max // 2
COLD = lowered(boards_whole_keys=1, tablet_keys_max=4)
WHOLE = (FIRST, LAST)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """A file whose tablets are cut above four entries into such of two."""
    made = Written(tmp_path / "board.db", COLD)
    yield made
    made.file.abandon()


def k(number: int) -> str:
    """A key; larger numbers come later."""
    return f"public/{number:03d}"


def puts(*numbers: int) -> tuple[Op, ...]:
    """What writes their keys."""
    return tuple(Put(k(number), packed(number)) for number in numbers)


def follow(written: Written, *ops: Op) -> None:
    """A commit that the tables follow at once."""
    written.commit(*ops)
    written.follow(everything=True)


def firsts(written: Written) -> list[tuple[str, int]]:
    """The tablets of a file: their first keys, and how many entries each has."""
    query = "SELECT first_key, keys FROM tablet ORDER BY first_key"
    with closing(sqlite3.connect(written.path)) as connection:
        return connection.execute(query).fetchall()


class Cold:
    """The file of a board, opened without its entries."""

    def __init__(self, written: Written) -> None:
        self.file = BoardFile(written.path, level="disk", limits=COLD)
        self.state = self.file.load(NAME).state
        self.entries = self.state.entries
        assert isinstance(self.entries, LoadedEntries)

    def load(self, *keys: str) -> list[str]:
        """Load what is missing of these keys; the first keys of what was read."""
        assert isinstance(self.entries, LoadedEntries)
        found = self.file.read_entries(self.entries.missing((key, key + "\x01") for key in keys))
        for span, entries in found:
            admit(self.state, span, entries)
        return [first for (first, _), _ in found]


@pytest.fixture
def cold(written: Written) -> Iterator[Cold]:
    """Ten entries in five tablets, none of them loaded."""
    follow(written, *puts(*range(10)))
    made = Cold(written)
    yield made
    made.file.abandon()


# --- in the file ----------------------------------------------------------------------------------


def test_a_tablet_that_became_large_is_cut(written: Written) -> None:
    """Into pieces that grow again; not before."""
    follow(written, *puts(*range(4)))
    assert firsts(written) == [(FIRST, 4)]
    follow(written, *puts(4))
    assert firsts(written) == [(FIRST, 2), (k(2), 2), (k(4), 1)]
    follow(written, *puts(5, 6, 7))
    assert firsts(written) == [(FIRST, 2), (k(2), 2), (k(4), 4)]
    follow(written, *puts(8))
    assert firsts(written)[2:] == [(k(4), 2), (k(6), 2), (k(8), 1)]


def test_a_tablet_without_entries_joins_the_one_before(written: Written) -> None:
    """The first one stays; keys that come later belong to the one before."""
    follow(written, *puts(*range(6)))
    follow(written, Delete(k(2)), Delete(k(3)))
    assert firsts(written) == [(FIRST, 2), (k(4), 2)]
    follow(written, *puts(3))
    assert firsts(written) == [(FIRST, 3), (k(4), 2)]
    follow(written, *(Delete(k(number)) for number in (0, 1, 3, 4, 5)))
    assert firsts(written) == [(FIRST, 0)]


def test_large_entries_have_tablets_of_their_own() -> None:
    """A tablet has at most so many bytes, unless it is one entry."""
    pieces = Pieces(FIRST)
    sizes = (10, 10, BYTES, 10, 2 * BYTES, BYTES - 5, 5, 1)
    for number, size in enumerate(sizes):
        pieces.add(k(number), size, 1, None)
    found = [(each.keys, each.bytes) for each in pieces.all()]
    assert found == [
        (2, 20),
        (1, BYTES),
        (1, 10),
        (1, 2 * BYTES),
        (2, BYTES),
        (1, 1),
    ]
    assert not any(each.is_large(BOARDS) for each in pieces.all())
    assert Tablet(FIRST, 2, BOARDS.tablet_bytes_max + 1).is_large(BOARDS)
    assert not Tablet(FIRST, BOARDS.tablet_keys_max, BOARDS.tablet_bytes_max).is_large(BOARDS)
    assert Tablet(FIRST, BOARDS.tablet_keys_max + 1).is_large(BOARDS)


def test_a_cut_keeps_sums_and_the_earliest_expiry() -> None:
    """Of each piece its own; rows that do not add up are refused."""
    times = [None, 30, 20, None]
    rows = [(k(n), 1, 2**61 + n, times[n % 4]) for n in range(2 * KEYS)]
    weight = sum(row[2] for row in rows) % 2**62
    large = Tablet(FIRST, len(rows), len(rows), weight, 20)
    found = cut(large, rows, BOARDS)
    assert [(each.first, each.keys, each.expires_at_ms) for each in found] == [
        (FIRST, KEYS, 20),
        (k(KEYS), KEYS, 20),
    ]
    assert [
        each.expires_at_ms for each in cut(Tablet(FIRST, 1, 1, 5), [(k(0), 1, 5, None)], BOARDS)
    ] == [None]
    for spoiled in (
        rows[:-1],
        [*rows[:-1], (k(999), 1, 7, None)],
        [*rows[:-1], (*rows[-1][:1], 2, *rows[-1][2:])],
    ):
        with pytest.raises(Corrupt, match="add up"):
            cut(large, spoiled, BOARDS)


def test_a_cut_of_damaged_rows_changes_nothing(written: Written) -> None:
    """The transaction fails."""
    follow(written, *puts(*range(4)))
    written.file._writer.execute(f"UPDATE entry SET weight = 1 WHERE key = '{k(1)}'")
    taken = written.backlog.take(written.trial.state, written.append(*puts(4)), everything=True)
    with pytest.raises(WriteError, match="add up") as failed:
        written.file.write(taken)
    assert failed.value.certain
    assert firsts(written) == [(FIRST, 4)]


def test_the_tablets_that_have_keys_in_a_range() -> None:
    """Each with its end."""
    found = Tablets([Tablet(FIRST), Tablet("b"), Tablet("d")])
    spans = {
        ("a", "a1"): [(FIRST, "b")],
        ("a", "b"): [(FIRST, "b")],
        ("b", "c"): [("b", "d")],
        ("a", "z"): [(FIRST, "b"), ("b", "d"), ("d", LAST)],
        ("x", LAST): [("d", LAST)],
        WHOLE: [(FIRST, "b"), ("b", "d"), ("d", LAST)],
    }
    for span, expected in spans.items():
        assert [(each.first, end) for each, end in found.overlapping(span)] == expected
    assert [found.holder(key).first for key in ("a", "b", "c", "d", "e")] == [
        "",
        "b",
        "b",
        "d",
        "d",
    ]
    assert [found.end(first) for first in (FIRST, "b", "d")] == ["b", "d", LAST]


# --- in memory ------------------------------------------------------------------------------------


def test_a_key_that_is_not_loaded_is_never_said_to_be_absent(cold: Cold) -> None:
    """However it is looked up; what is loaded is found, and what is not there is absent."""
    entries = cold.entries
    for look in (entries.get, entries.__contains__, entries.__getitem__):
        for key in (k(3), "public/003a", "public/2"):
            with pytest.raises(NotLoaded):
                look(key)
    with pytest.raises(NotLoaded) as missing:
        list(entries.between(k(3), k(5)))
    assert missing.value.span == (k(3), k(4))
    assert cold.load(k(3)) == [k(2)]
    assert entries[k(3)].value == packed(3)
    assert entries.get("public/003a") is None
    assert "public/003a" not in entries
    with pytest.raises(KeyError):
        entries["public/003a"]
    assert list(entries.between(k(2), k(4))) == [k(2), k(3)]
    assert list(entries.between(k(2), k(4), reverse=True)) == [k(3), k(2)]
    with pytest.raises(NotLoaded) as missing:
        list(entries.between(k(2), k(9), reverse=True))
    assert missing.value.span == (k(8), k(9))


def test_keys_are_counted_without_being_loaded(cold: Cold) -> None:
    """Unless a range ends within a tablet."""
    assert cold.entries.count(k(2), k(8)) == 6
    assert cold.entries.count(*WHOLE) == 10
    with pytest.raises(NotLoaded) as missing:
        cold.entries.count(k(3), k(8))
    cold.load(missing.value.span[0])
    assert cold.entries.count(k(3), k(8)) == 5
    assert cold.entries.count(k(3), k(3)) == 0


def test_what_is_read_ahead_is_enough_and_not_everything(cold: Cold) -> None:
    """For so many keys, from either end."""
    entries = cold.entries
    assert isinstance(entries, LoadedEntries)
    ranges = ((k(1), k(9)),)
    assert entries.ahead(ranges, 1) == [(k(1), k(2)), (k(2), k(4))]
    assert entries.ahead(ranges, 1, reverse=True) == [(k(8), k(9)), (k(6), k(8))]
    assert entries.missing(entries.ahead(ranges, 100)) == [WHOLE]
    cold.load(k(4))
    assert entries.missing(entries.ahead(ranges, 3)) == [(FIRST, k(4))]


def test_a_damaged_tablet_fails_alone(written: Written, cold: Cold) -> None:
    """By the digest of a row, by a row that is gone, by one that is too many."""
    written.damage(
        f"UPDATE entry SET value = x'c0' WHERE key = '{k(1)}';"
        f"DELETE FROM entry WHERE key = '{k(2)}';"
        f"INSERT INTO entry SELECT '{k(5)}x', value, mod_revision, create_revision, author,"
        " time_ms, expires_at_ms, first_ms, place, size, weight"
        f" FROM entry WHERE key = '{k(5)}'"
    )
    for key in (k(0), k(3), k(5)):
        with pytest.raises(Corrupt, match=r"board\.db"):
            cold.load(key)
        with pytest.raises(NotLoaded):
            cold.entries.get(key)
    assert cold.load(k(6)) == [k(6)]
    assert cold.entries[k(7)].value == packed(7)


def test_usage_and_expiry_are_known_without_the_entries(written: Written) -> None:
    """The sums are those of all entries; a tablet knows when its first entry expires."""
    follow(
        written, *puts(*range(6)), Put(k(3), packed(3), ttl_ms=500), Put(k(4), packed(4), ttl_ms=99)
    )
    found = Cold(written)
    assert found.state.usage == written.trial.state.usage
    assert list(found.state.expiring) == []
    assert isinstance(found.entries, LoadedEntries)
    assert found.entries.due(1_098) == []
    [span] = found.entries.due(1_099)
    found.load(span[0])
    assert [key for _, key in found.state.expiring] == [k(4)]
    evict(found.state, 2**62, [])
    evict(found.state, 2**62, [])
    assert list(found.state.expiring) == []
    assert found.entries.due(1_499) == [span]
    found.file.abandon()


def test_entries_go_from_memory_unless_they_are_kept_or_were_used(cold: Cold) -> None:
    """And come back as they were."""
    entries = cold.entries
    assert isinstance(entries, LoadedEntries)
    cold.load(*(k(number) for number in range(10)))
    assert (entries.unloaded, entries.unloaded_bytes) == (0, 0)
    whole = dict(entries)
    evict(cold.state, 1, [k(3)])
    cold.load(k(4))
    left = entries.unloaded
    for number in range(1, 3):  # one after the other, and none that was used since the last
        assert entries.missing([(k(4), k(6))]) == []
        evict(cold.state, 1, [k(3)])
        assert entries.unloaded == left + number
        assert entries[k(4)].value == packed(4)
    evict(cold.state, 2**62, [k(3)])
    evict(cold.state, 2**62, [k(3)])
    assert list(entries) == [k(2), k(3)]
    assert entries.unloaded == 4
    assert entries.missing([(k(3), k(5))]) == [(k(4), k(6))]
    cold.load(*(k(number) for number in range(10)))
    assert dict(entries) == whole
    assert (entries.unloaded, entries.unloaded_bytes) == (0, 0)


def test_a_board_is_the_same_whatever_of_it_is_loaded(written: Written, seed: int) -> None:
    """Commits, evictions and openings in any order, with borders that come and go."""
    dice = random.Random(seed)
    for _ in range(60):
        numbers = dice.sample(range(24), dice.randint(1, 6))
        wave = dice.random() < 0.5
        ops = (Delete(k(n)) if wave else Put(k(n), packed(n)) for n in numbers)
        follow(written, Put("public/always", packed(1)), *ops)
        found = Cold(written)
        for number in dice.sample(range(24), 8):
            found.load(k(number))
            assert found.entries.get(k(number)) == written.trial.state.entries.get(k(number))
        evict(found.state, dice.randint(1, 9_999), [])
        found.load("public/always", *(k(n) for n in range(24)))
        admitted = State(EPOCH, entries=found.entries, usage=found.state.usage)
        assert admitted.usage == written.trial.state.usage
        assert dict(found.entries) == dict(written.trial.state.entries)
        assert sum(keys for _, keys in firsts(written)) == len(found.entries)
        found.file.abandon()


def seen(keys: Iterator[str]) -> tuple[list[str], Span | None]:
    """The keys up to where they are not loaded, and that range."""
    found: list[str] = []
    try:
        for key in keys:
            found.append(key)
    except NotLoaded as missing:
        return found, missing.span
    return found, None


@settings(max_examples=60, deadline=None)
@given(
    borders=st.sets(st.integers(1, 29), max_size=8),
    keys=st.sets(st.integers(0, 29)),
    loaded=st.lists(st.integers(0, 29), max_size=6),
    within=st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted),
    reverse=st.booleans(),
)
def test_a_range_is_the_same_whatever_of_it_is_loaded(
    borders: set[int], keys: set[int], loaded: list[int], within: list[int], *, reverse: bool
) -> None:
    """Or something of it is not loaded, and all before that was seen."""
    begins = [FIRST, *map(k, sorted(borders))]
    spans = list(zip(begins, [*begins[1:], LAST], strict=True))
    there = [Entry(k(n), b"", 1, 1, "a", 1) for n in sorted(keys)]
    held = {span: [each for each in there if span[0] <= each.key < span[1]] for span in spans}
    entries = LoadedEntries(Tablet(span[0], len(held[span])) for span in spans)
    state = State(EPOCH, entries=entries)
    for number in loaded:
        for missing in entries.missing([(k(number), k(number + 1))]):
            admit(state, missing, held[missing])
    first, last = map(k, within)
    expected = sorted((k(n) for n in keys if first <= k(n) < last), reverse=reverse)
    found, span = seen(entries.between(first, last, reverse=reverse))
    if span is None:
        assert found == expected
    else:
        begin, end = span
        assert found == [key for key in expected if (key >= end if reverse else key < begin)]
        assert entries.missing([span])
    assert entries.unloaded == sum(bool(entries.missing([span])) for span in spans)


def test_a_board_in_memory_is_that_of_its_file(written: Written) -> None:
    """The whole of it, if it is small."""
    follow(written, *puts(*range(9)))
    file = BoardFile(written.path, level="disk")
    assert same_state(file.load(NAME).state, written.trial.state)
    file.abandon()


def test_a_border_within_what_is_not_loaded_leaves_it_in_one_piece(cold: Cold) -> None:
    """Its sums are those of the whole; what is loaded is divided."""
    entries = cold.entries
    assert isinstance(entries, LoadedEntries)
    cold.load(k(4))
    made = [Tablet(k(5), 1), Tablet(k(7), 1)]
    entries.follow(Changes([], made, []))
    assert entries.unloaded == 4
    assert entries.missing([(k(6), k(7))]) == [(k(6), k(8))]
    assert entries.count(*WHOLE) == 10
    evict(cold.state, 1, [k(4)])
    assert entries.missing([(k(4), k(6))]) == [(k(5), k(6))]
    cold.load(k(5), k(7))
    assert [entries[k(number)].value for number in range(4, 8)] == [packed(n) for n in range(4, 8)]


def test_what_consists_of_several_tablets_is_loaded_as_a_whole(written: Written) -> None:
    """As when the file cut what was not loaded."""
    follow(written, *puts(*range(4)))
    found = Cold(written)
    follow(written, *puts(4, 5))  # by another connection: the file cuts the first tablet
    other = BoardFile(written.path, level="disk", limits=COLD)
    other.load(NAME)
    assert len(list(other.filed.tablets)) == 3
    [(within, entries)] = other.read_entries([(FIRST, LAST)])
    admit(found.state, within, entries)
    assert list(found.entries) == [k(number) for number in range(6)]
    other.abandon()
    found.file.abandon()
