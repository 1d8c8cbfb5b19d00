"""Entries of large commits: where they are until they are in their places, and that it is all one
for what the file says."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from blackboard.core.commit import Delete, Op, Put
from blackboard.core.state import State
from blackboard.engines.sqlite import deferred_rows
from blackboard.engines.sqlite.deferred_rows import (
    COPIED_ROWS,
    DEFERRED_ROWS_MIN,
    MOVED_ROWS,
    QUIET_WRITES,
)
from blackboard.engines.sqlite.file import PAGE_BYTES, BoardFile
from blackboard.errors import Corrupt
from tests.conformance.drawing import Drawing
from tests.conformance.machines import lowered_limits
from tests.unit.core.trial import Trial, packed
from tests.unit.engines.sqlite.test_file import NAME, new_file, touch
from tests.unit.engines.sqlite.test_rows import group, same_state

ONE = packed(1)


def keys(count: int = DEFERRED_ROWS_MIN) -> list[str]:
    """So many keys, sorted."""
    return [f"public/k/{number:05d}" for number in range(count)]


def puts(value: object, count: int = DEFERRED_ROWS_MIN) -> tuple[Op, ...]:
    """What writes them all at once."""
    return tuple(Put(key, packed(value)) for key in keys(count))


def load(path: Path) -> State:
    """What somebody finds who opens the file."""
    file = BoardFile(path, level="disk")
    try:
        return file.load(NAME).state
    finally:
        file.abandon()


class Written:
    """A file, the board that it holds, and a look at its tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trial = Trial()
        self.file = new_file(path)
        self.weight = self.file.load(NAME).weight

    def commit(self, *ops: Op) -> None:
        """A transaction, after which the file must say what the board holds."""
        writes = touch(self.trial, ops).taken(self.trial.state).writes(self.weight)
        self.weight = writes.weight
        self.file.write(writes)
        assert self.loaded() == self.trial.state

    def wait(self) -> None:
        """As many small ones as come first after a large one."""
        deferred = self.found("owed")
        for number in range(QUIET_WRITES):
            assert self.found("owed") == deferred
            self.commit(Put("public/a", packed(number)))
        assert self.found("owed") == deferred

    def reopen(self) -> None:
        """Another process goes on."""
        self.file.close()
        self.file = BoardFile(self.path, level="disk")
        self.file.load(NAME)

    def loaded(self) -> State:
        """What somebody else finds."""
        return load(self.path)

    def found(self, table: str) -> dict[str, bytes]:
        """The values in one of the two tables."""
        with closing(sqlite3.connect(self.path)) as connection:
            return dict(connection.execute(f"SELECT key, value FROM {table}"))


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """A file with a small entry and no deferred rows."""
    written = Written(tmp_path / "board.db")
    written.commit(Put("public/a", ONE))
    yield written
    written.file.abandon()


def test_a_large_commit_is_deferred_and_small_ones_move_it(written: Written) -> None:
    """Some rows with each, but for the first ones; nothing of it shows but where they are."""
    written.commit(*puts(1))
    assert (list(written.found("owed")), list(written.found("entry"))) == (keys(), ["public/a"])
    written.wait()
    left = DEFERRED_ROWS_MIN
    while left > 0:
        written.commit(Put("public/a", packed(left)))
        left = max(0, left - MOVED_ROWS)
        assert list(written.found("owed")) == keys()[DEFERRED_ROWS_MIN - left :]
    assert set(written.found("entry")) == {"public/a", *keys()}


def test_rows_are_paid_in_the_order_of_the_table(written: Written) -> None:
    """Which is that of their bytes in UTF-8, and of Python's strings, but not of UTF-16."""
    characters = ("\U0001f600", "\ue000", "\uffee", "\u00e9", "z", "\ud7ff", "\U0010fffd")
    names = [f"public/{c}{number}" for c in characters for number in range(40)]
    written.commit(*(Put(name, ONE) for name in names))
    written.wait()
    left = sorted(names)
    while left:
        written.commit(Put("public/a", packed(len(left))))
        left = left[MOVED_ROWS:]
        assert sorted(written.found("owed")) == left


def test_a_commit_below_the_edge_is_put_in_its_place(written: Written) -> None:
    written.commit(*puts(1, DEFERRED_ROWS_MIN - 1))
    assert written.found("owed") == {}


def test_a_deferred_row_may_change_again(written: Written) -> None:
    """By another large commit, a small one, a removal; old values come back nowhere."""
    written.commit(*puts(1))
    written.commit(*puts(2))
    first, second, third = keys()[-3:]
    written.commit(Put(first, packed(3)))
    written.commit(Delete(second))
    written.commit(Delete(third), Put("public/a", packed(3)))
    assert not {first, second, third} & set(written.found("owed"))
    for _ in range(QUIET_WRITES + DEFERRED_ROWS_MIN // MOVED_ROWS):
        written.commit(Put("public/a", packed(4)))
    assert written.found("owed") == {}
    assert set(written.found("entry").values()) == {packed(2), packed(3), packed(4)}


def test_deferred_rows_survive_loading(written: Written) -> None:
    """The next process pays it, and may remove it."""
    written.commit(*puts(1))
    written.reopen()
    written.commit(Delete(keys()[0]))
    written.commit(Put("public/a", packed(2)))
    assert list(written.found("owed")) == keys()[1 + MOVED_ROWS :]


def test_the_number_of_deferred_rows_is_limited(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows above the limit go to `entry`, and their deferred versions are dropped."""
    monkeypatch.setattr(deferred_rows, "DEFERRED_ROWS_MAX", DEFERRED_ROWS_MIN)
    written.commit(*puts(1))
    assert len(written.found("owed")) == DEFERRED_ROWS_MIN
    written.commit(*puts(2, DEFERRED_ROWS_MIN + 1))
    assert written.found("owed") == {}
    written.commit(*puts(3))
    assert len(written.found("owed")) == DEFERRED_ROWS_MIN
    written.wait()
    for number in range(DEFERRED_ROWS_MIN // MOVED_ROWS):
        written.commit(Put("public/a", packed(number)))
    written.commit(*puts(4))
    assert len(written.found("owed")) == DEFERRED_ROWS_MIN


def test_the_journal_is_to_be_copied_whenever_enough_was_moved(written: Written) -> None:
    """And after the last rows; then the file has them."""
    count = COPIED_ROWS + 2 * MOVED_ROWS
    written.commit(*puts(1, count))
    written.wait()
    due = []
    for number in range(count // MOVED_ROWS):
        written.commit(Put("public/a", packed(number)))
        due.append(written.file.is_copy_due)
        if written.file.is_copy_due:
            written.file.checkpoint()
            assert keys(count)[len(due) * MOVED_ROWS - 1].encode() in written.path.read_bytes()
        assert not written.file.is_copy_due
    assert due == [False, False, False, True, False, True]


DAMAGES: dict[str, str] = {
    "a value": "UPDATE owed SET value = x'c0' WHERE key = 'public/k/00007'",
    "a key": "UPDATE owed SET key = 'public/k' WHERE key = 'public/k/00007'",
    "a revision": "UPDATE owed SET mod_revision = 1 WHERE key = 'public/k/00007'",
    "a lost row": "DELETE FROM owed WHERE key = 'public/k/00007'",
    "a lost table": "DROP TABLE owed",
    "a row that was moved": "INSERT INTO owed SELECT * FROM entry WHERE key = 'public/a';"
    " UPDATE owed SET value = x'c0' WHERE key = 'public/a'",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_damage_of_a_deferred_row_is_found(written: Written, damage: str) -> None:
    written.commit(*puts(1))
    with closing(sqlite3.connect(written.path)) as connection:
        connection.executescript(damage)
    with pytest.raises(Corrupt, match=r"board\.db"):
        written.loaded()


@pytest.mark.parametrize("name", ["owed", "sqlite_autoindex_owed_1"])
def test_an_index_that_says_something_else_is_refused(
    written: Written, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A write would miss the row, and the next reader find it; whichever of the two is right."""
    monkeypatch.setattr(deferred_rows, "DEFERRED_ROWS_MIN", 2)
    written.commit(*puts(1, 2))
    written.file.close()
    with closing(sqlite3.connect(written.path)) as connection:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        [page] = connection.execute(query, (name,)).fetchone()
    content = bytearray(written.path.read_bytes())
    at = content.index(b"k/00001", (page - 1) * PAGE_BYTES, page * PAGE_BYTES)
    content[at + 6] = ord("~")
    written.path.write_bytes(content)
    with pytest.raises(Corrupt, match="its index is damaged"):
        written.loaded()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_history_is_kept(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whichever rows are deferred and moved: the file holds the state after each transaction."""
    with lowered_limits(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(deferred_rows, "DEFERRED_ROWS_MIN", data.draw(st.integers(1, 3)))
        patch.setattr(deferred_rows, "DEFERRED_ROWS_MAX", data.draw(st.integers(1, 8)))
        patch.setattr(deferred_rows, "MOVED_ROWS", data.draw(st.integers(1, 2)))
        patch.setattr(deferred_rows, "QUIET_WRITES", data.draw(st.integers(0, 2)))
        opened = [new_file(tmp_path_factory.mktemp("owed") / "board.db")]
        try:
            _write_and_reopen(opened, data)
        finally:  # Hypothesis may end an example at any draw
            opened[-1].abandon()


def _write_and_reopen(opened: list[BoardFile], data: st.DataObject) -> None:
    loaded = opened[-1].load(NAME)
    state, weight = loaded.state, loaded.weight
    drawing = Drawing(data.draw, state)
    for _ in range(drawing.pick((2, 12))):
        writes = group(state, drawing).taken(state).writes(weight)
        weight = writes.weight
        opened[-1].write(writes)
        assert same_state(load(opened[-1].path), state)
        if drawing.one_in(4):
            opened[-1].close()
            opened.append(BoardFile(opened[-1].path, level="disk"))
            opened[-1].load(NAME)
