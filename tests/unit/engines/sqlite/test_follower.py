"""The tables behind the log: which rows a transaction writes, and that opening finds the board as
it was, wherever the tables are."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from blackboard.core.commit import Append, Delete, Grant, Increment, Op, Put
from blackboard.core.state import State
from blackboard.engines.sqlite import follower
from blackboard.engines.sqlite.cache import loaded_of
from blackboard.engines.sqlite.file import BoardFile, Loaded, WriteError
from blackboard.engines.sqlite.follower import (
    COPIED_ROWS,
    FOLLOW_BYTES,
    FOLLOW_CHANGES,
    FOLLOW_ROWS,
    LARGE_CHANGES,
    SCATTERED_ROWS,
    Backlog,
)
from blackboard.engines.sqlite.rows import LogRows, Taken
from blackboard.errors import Corrupt
from blackboard.limits import DEFAULT, LOG_AHEAD_BYTES_MAX, LOG_AHEAD_ROWS_MAX, Limits
from tests.conformance.drawing import Drawing
from tests.conformance.machines import lowered_limits
from tests.unit.core.trial import Trial, packed
from tests.unit.engines.sqlite.test_file import NAME, new_file, touch
from tests.unit.engines.sqlite.test_rows import forget, group, same_state

ONE = packed(1)


def load(path: Path) -> Loaded:
    """What the next process finds."""
    file = BoardFile(path, level="disk")
    try:
        return file.load(NAME)
    finally:
        file.abandon()


class Written:
    """A file and the board that it holds."""

    def __init__(self, path: Path, limits: Limits = DEFAULT) -> None:
        self.path = path
        self.trial = Trial()
        self.file = new_file(path, limits)
        loaded = self.file.load(NAME)
        self.backlog = loaded.backlog

    def commit(self, *ops: Op) -> None:
        """A transaction that only appends to the log."""
        self.write(Taken(self.append(*ops).rows))

    def append(self, *ops: Op) -> LogRows:
        """A commit that the file does not hold yet."""
        return touch(self.trial, self.backlog, ops)

    def follow(self, *, everything: bool = False) -> None:
        """A transaction that only writes rows of tables."""
        self.write(self.backlog.take(self.trial.state, LogRows(), everything=everything))

    def write(self, taken: Taken) -> None:
        """A transaction, after which the file says what the board holds."""
        self.file.write(taken)
        file = BoardFile(self.path, level="disk")
        loaded = file.load(NAME)
        file.abandon()
        assert same_state(loaded.state, self.trial.state)
        assert file.filed.weight == self.file.filed.weight
        assert loaded.backlog.mark == self.backlog.mark
        assert (loaded.backlog.rows, loaded.backlog.size) == (self.backlog.rows, self.backlog.size)

    def rows(self, table: str = "entry") -> list[str]:
        """The keys in a table."""
        with closing(sqlite3.connect(self.path)) as connection:
            return [key for (key,) in connection.execute(f"SELECT key FROM {table} ORDER BY key")]

    def damage(self, statement: str) -> None:
        """Do as a broken disk does."""
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(statement)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """A file with a board in it."""
    made = Written(tmp_path / "board.db")
    yield made
    made.file.abandon()


def keys(count: int = LARGE_CHANGES) -> list[str]:
    """So many keys, sorted."""
    return [f"public/k/{number:05d}" for number in range(count)]


def puts(value: object, count: int = LARGE_CHANGES) -> tuple[Op, ...]:
    """What writes them all at once."""
    return tuple(Put(key, packed(value)) for key in keys(count))


def test_a_commit_is_a_row_of_the_log(written: Written) -> None:
    """Until the tables follow; then each key is written once."""
    for number in range(3):
        written.commit(Put("public/a", packed(number)), Append("public/l", ONE))
    assert written.rows() == []
    assert written.backlog.mark == (0, 0, 1)
    written.follow()
    assert written.backlog.mark[0] == 3
    assert written.rows()[0] == "public/a"
    assert load(written.path).backlog == Backlog(written.backlog.mark)


def test_every_kind_of_row_is_replayed(written: Written) -> None:
    """Answers, next items, traces, leases: with the mark at each place."""
    for _ in range(2):
        written.commit(Put("public/a", ONE, 50), Append("public/l", ONE), Grant("public/x", "a", 9))
        written.commit(Delete("public/a"), Increment("public/n", 2))
        written.follow()
        written.commit(Put("public/a", ONE), Delete("public/n"))
        written.trial.now_ms += 1_000
    written.follow()
    assert written.rows("tombstone") == ["public/n"]


def test_a_large_commit_is_followed_some_rows_at_a_time(written: Written) -> None:
    """The mark stays until the last of them."""
    written.commit(*puts(1))
    for done in range(SCATTERED_ROWS, LARGE_CHANGES, SCATTERED_ROWS):
        written.follow()
        assert written.rows() == keys()[:done]
        assert written.backlog.mark[0] == 0
    written.follow()
    assert (written.rows(), written.backlog.mark[0]) == (keys(), 1)


def test_keys_that_change_on_the_way_end_as_they_should(written: Written) -> None:
    """Some are in the tables before the mark is there, and are changed, removed or made again."""
    written.commit(*(Put(key, ONE) for key in keys(3)), Put("public/gone", ONE))
    written.commit(Delete("public/gone"))
    written.follow(everything=True)
    written.commit(*puts(2), Put("public/gone", packed(2)))
    written.follow()
    written.commit(Delete(keys()[0]), Put(keys()[1], packed(3)), Put("public/new", ONE))
    written.commit(Put(keys()[0], packed(4)))
    written.follow()
    written.commit(Delete(keys()[2]), Delete("public/gone"), Delete("public/new"))
    while written.backlog.rows:
        written.follow()
    assert written.rows("tombstone") == ["public/gone", keys()[2], "public/new"]


def test_a_key_that_was_removed_is_written_with_its_trace(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its removal finds nothing when the log is applied again, and would leave no trace."""
    monkeypatch.setattr(follower, "TOGETHER_ROWS", 2)
    written.commit(*puts(1, 6))
    written.follow(everything=True)
    written.commit(Delete(keys()[0]), Delete(keys()[1]))
    written.commit(*(Put(key, packed(2)) for key in keys(6)[2:]))
    written.follow()
    assert (written.backlog.mark[0], written.rows("tombstone")) == (1, keys(2))
    written.commit(Put(keys()[0], packed(3)))
    while written.backlog.rows:
        written.follow()
    assert written.rows("tombstone") == [keys()[1]]


def test_traces_that_were_dropped_wait_for_the_mark(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash before it undoes the compaction, and then they must be there."""
    monkeypatch.setattr(follower, "TOGETHER_ROWS", 1)
    written.commit(*puts(1, 4))
    written.follow(everything=True)
    written.commit(Delete(keys()[0]), Delete(keys()[1]))
    written.commit(Put(keys()[2], packed(2)))
    written.commit(Put(keys()[3], packed(2)))
    before = load(written.path).state
    forget(written.trial.state, written.backlog, 3)
    for _ in range(2):
        written.file.write(written.backlog.take(written.trial.state, LogRows()))
        assert same_state(load(written.path).state, before)
    written.follow()  # only these are left
    assert written.backlog.mark == (4, 1_000, 3)
    assert (written.rows(), written.rows("tombstone")) == (keys(4)[2:], [])


def test_the_tables_follow_when_enough_is_behind(written: Written) -> None:
    """Rows, bytes, or keys."""
    backlog, trial = written.backlog, written.trial
    for number in range(FOLLOW_ROWS):
        assert not backlog.is_due, number
        touch(trial, backlog, (Increment("public/n", 1),))
    assert backlog.is_due
    backlog = Backlog((0, 0, 1))
    touch(trial, backlog, (Put("public/n", packed("x" * (FOLLOW_BYTES // 8))),))
    assert not backlog.is_due
    for _ in range(8):
        touch(trial, backlog, (Put("public/n", packed("x" * (FOLLOW_BYTES // 8))),))
    assert backlog.is_due
    backlog, each = Backlog((0, 0, 1)), LARGE_CHANGES // 2
    for number in range(FOLLOW_CHANGES // each):
        assert not backlog.is_due, number
        touch(trial, backlog, tuple(Put(f"public/{number}/{n}", ONE) for n in range(each)))
    assert backlog.is_due


@pytest.mark.parametrize("scattered", [False, True])
def test_the_log_above_the_mark_is_limited(*, scattered: bool) -> None:
    """However much each transaction adds: the tables are at its end before the bound."""
    trial, backlog = Trial(), Backlog((0, 0, 1))
    backlog.rows = LOG_AHEAD_ROWS_MAX - 600
    touch(trial, backlog, puts(1, 1_000 if scattered else 100))
    backlog.hurry()
    most = 0
    for number in range(700):
        log = LogRows()
        for part in range(3):
            one = touch(trial, backlog, (Put(f"public/new/{number}/{part}", ONE),))
            log.rows += one.rows
            log.size += one.size
        most = max(most, backlog.rows)
        if backlog.is_due:
            backlog.take(trial.state, log)
    assert LOG_AHEAD_ROWS_MAX - 600 < most <= LOG_AHEAD_ROWS_MAX
    assert backlog.mark[0] > 1_000


def test_the_bytes_above_the_mark_are_limited() -> None:
    """In the same way."""
    trial, backlog = Trial(), Backlog((0, 0, 1))
    backlog.size = LOG_AHEAD_BYTES_MAX - 1_000_000
    touch(trial, backlog, puts(1, 1_000))
    backlog.hurry()
    most = 0
    for number in range(100):
        log = touch(trial, backlog, (Put(f"public/new/{number}", packed("x" * 50_000)),))
        most = max(most, backlog.size)
        backlog.take(trial.state, log)
    assert LOG_AHEAD_BYTES_MAX - 1_000_000 < most <= LOG_AHEAD_BYTES_MAX
    assert backlog.mark[0] > 20


def test_more_is_taken_than_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the mark would stay for as long as commits come."""
    monkeypatch.setattr(follower, "TOGETHER_ROWS", 1)
    trial, backlog = Trial(), Backlog((0, 0, 1))
    for first in range(0, 300, 100):
        touch(trial, backlog, tuple(Put(f"public/{first}/{n}", ONE) for n in range(100)))
    for number in range(200):
        touch(trial, backlog, tuple(Put(f"public/new/{number}/{n}", ONE) for n in range(10)))
        backlog.take(trial.state, LogRows())
        if backlog.mark[0]:
            break
    assert 0 < backlog.mark[0] < 100


def test_what_could_not_be_written_is_written_later(written: Written) -> None:
    """A part, and the last part; what changed in between is not forgotten."""
    written.commit(*puts(1))
    for everything in (False, True):
        taken = written.backlog.take(written.trial.state, LogRows(), everything=everything)
        ahead = written.trial.state.revision
        log = written.append(Put(keys()[0], packed(ahead)), Put(keys()[1], packed(ahead)))
        written.backlog.put_back(taken)
        written.write(Taken(log.rows))
        assert written.backlog.rows == ahead + 1
        assert not written.backlog.is_due
        written.commit(Put("public/a", ONE))
    written.follow(everything=True)
    assert written.rows() == ["public/a", *keys()]


def test_the_journal_is_to_be_copied_whenever_enough_was_written(written: Written) -> None:
    """And after the last rows; not after small commits."""
    written.commit(*puts(1, COPIED_ROWS + SCATTERED_ROWS))
    due = []
    while written.backlog.rows:
        written.follow()
        due.append(written.backlog.is_copy_due)
        if due[-1]:
            written.backlog.scattered = 0
    assert due == [False, False, False, True, True]
    written.commit(Put("public/a", ONE))
    written.follow()
    assert not written.backlog.is_copy_due


DAMAGES = {
    "a row of the log above the mark": "UPDATE log SET body = x'90' WHERE revision = 3",
    "results above the mark": "UPDATE log SET results = x'90' WHERE revision = 3",
    "a time above the mark": "UPDATE log SET time_ms = time_ms + 1 WHERE revision = 3",
    "a gap above the mark": "DELETE FROM log WHERE revision = 3",
    "a lost end of the log": "DELETE FROM log WHERE revision = 4",
    "a lost log": "DELETE FROM log",
    "the log up to the mark": "DELETE FROM log WHERE revision <= 2",
    "a row that is ahead": "UPDATE entry SET value = x'c0' WHERE key = 'public/k/00001'",
    "a mark that is ahead": "UPDATE head SET revision = 3",
    "a mark that is behind": "UPDATE head SET revision = 1",
    "no record of the end": "UPDATE head SET log_end = 0",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_damage_around_the_mark_is_found(
    written: Written, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log reaches from 1 to 4, the mark is at 2, and rows of 3 are in the tables."""
    monkeypatch.setattr(follower, "TOGETHER_ROWS", 2)
    written.commit(Put("public/a", ONE))
    written.commit(Put("public/b", ONE))
    written.follow(everything=True)
    written.commit(*puts(1, 4))
    written.commit(Append("public/l", ONE))
    written.follow()
    assert written.backlog.mark[0] == 2
    assert written.rows()[-2:] == keys(2)
    written.damage(damage)
    with pytest.raises(Corrupt, match=r"board\.db"):
        load(written.path)


def test_a_transaction_that_fails_leaves_the_tables_and_the_log(written: Written) -> None:
    """Neither its row of the log nor those of the tables are there."""
    written.commit(Put("public/a", ONE))
    before = load(written.path).state
    taken = written.backlog.take(written.trial.state, LogRows())
    log = touch(written.trial, written.backlog, (Put("public/b", ONE),))
    with pytest.raises(WriteError):
        written.file.write(replace(taken, log=[*log.rows, *log.rows]))
    assert same_state(load(written.path).state, before)
    assert written.rows() == []


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_every_history_is_kept(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whichever rows follow when: the file says what memory holds after each transaction."""
    with lowered_limits(), pytest.MonkeyPatch.context() as patch:
        for name in ("SCATTERED_ROWS", "TOGETHER_ROWS", "LARGE_CHANGES"):
            patch.setattr(follower, name, data.draw(st.integers(1, 3)))
        opened = [new_file(tmp_path_factory.mktemp("follower") / "board.db")]
        try:
            _write_and_reopen(opened, data)
        finally:  # Hypothesis may end an example at any draw
            opened[-1].abandon()


def _write_and_reopen(opened: list[BoardFile], data: st.DataObject) -> None:
    loaded = opened[-1].load(NAME)
    state, backlog = loaded.state, loaded.backlog
    drawing = Drawing(data.draw, state)
    for _ in range(drawing.pick((2, 12))):
        log = group(state, backlog, drawing)
        kind = drawing.pick((0, 3))
        if kind == 0:
            forget(state, backlog, drawing.pick((1, state.revision + 1)))
        written = opened[-1].write(_taken(kind, state, backlog, log))
        loaded_of(state).follow(written.tablets)
        assert same_state(load(opened[-1].path).state, state)
        if drawing.one_in(4):
            opened[-1].abandon()
            opened.append(BoardFile(opened[-1].path, level="disk"))
            again = opened[-1].load(NAME)
            assert opened[-1].filed.weight == opened[-2].filed.weight
            assert again.backlog.mark == backlog.mark
            backlog = again.backlog


def _taken(kind: int, state: State, backlog: Backlog, log: LogRows) -> Taken:
    """What one of four kinds of transaction writes: compacts, everything, a part, only the log."""
    if kind == 0:
        return backlog.take(state, log, log_below=state.oldest)
    if kind == 3:
        return Taken(log.rows)
    return backlog.take(state, log, everything=kind == 1)
