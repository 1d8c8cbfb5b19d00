"""One board's file: what it refuses, what a transaction is, which failures are certain."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from blackboard.core.commit import Append, Committed, Delete, Epoch, Grant, Increment, LogEntry, Put
from blackboard.core.model import decide, log_entry
from blackboard.core.state import State, evolve
from blackboard.engines.sqlite.connection import translated
from blackboard.engines.sqlite.file import BoardFile, WriteError
from blackboard.engines.sqlite.follower import Backlog
from blackboard.engines.sqlite.journal import PAGE_BYTES
from blackboard.engines.sqlite.new import create
from blackboard.engines.sqlite.rows import LEASE, LogRows, Taken
from blackboard.errors import Corrupt, Unavailable
from blackboard.limits import DEFAULT, REVISION_MAX, Limits
from blackboard.wire.codec import encode_results, marker_entry, prepare
from tests.conformance.machines import undated
from tests.unit.core.trial import EPOCH, Trial, packed

NAME = "board"
COMMITS = (
    (Put("public/a", packed("x" * 5_000), ttl_ms=50), Increment("public/n", 1)),
    (Append("public/l", packed(1)), Grant("public/x", "ada", 9)),
    (Delete("public/a"), Put("public/b", packed(2))),
)


def new_file(path: Path, limits: Limits = DEFAULT) -> BoardFile:
    """The file of a new board, opened."""
    create(path, NAME, EPOCH, 500)
    return BoardFile(path, level="disk", limits=limits)


def write(file: BoardFile, trial: Trial, *groups: tuple[object, ...]) -> None:
    """Commit each of `groups` of operations as a transaction of its own, with all its rows."""
    for ops in groups:
        loaded = file.load(NAME)
        log = touch(trial, loaded.backlog, ops)
        file.write(loaded.backlog.take(trial.state, log, everything=True))


def touch(trial: Trial, backlog: Backlog, ops: tuple[object, ...]) -> LogRows:
    """Decide and apply one commit; what it adds to the log."""
    log = LogRows()
    prepared = prepare(trial.make(*ops))  # type: ignore[arg-type]
    outcome = decide(trial.state, prepared.commit, trial.now_ms)
    assert isinstance(outcome, Committed), outcome
    entry = log_entry(prepared.commit, outcome, prepared.digest)
    row = log.add(entry, prepared, encode_results(outcome.results))
    backlog.note(trial.state, entry, row)
    evolve(trial.state, entry)
    trial.log.append(entry)
    return log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the board lies."""
    return tmp_path / "board.db"


@pytest.fixture
def written(path: Path) -> Trial:
    """A board with something in every table, closed."""
    trial = Trial()
    file = new_file(path)
    write(file, trial, *COMMITS)
    file.close()
    return trial


def test_what_was_written_is_loaded(path: Path, written: Trial) -> None:
    """State and log, each equal to what memory holds."""
    file = BoardFile(path, level="disk")
    loaded = file.load(NAME)
    assert undated(loaded.state) == undated(written.state)
    assert (loaded.epochs, loaded.clean) == ([EPOCH], True)
    assert file.read_log(0, REVISION_MAX, limit=9) == written.log
    assert file.read_log(1, 2, limit=9) == written.log[1:2]
    assert file.read_log(0, REVISION_MAX, limit=2) == written.log[:2]
    file.abandon()


def test_an_epoch_marker_is_part_of_the_log(path: Path, written: Trial) -> None:
    """In its place, with a gap before it that is no damage."""
    epoch = Epoch(2, "second", "engine", 3, 1_000)
    file = BoardFile(path, level="disk")
    begun = file.begin_epoch(file.load(NAME), epoch, 7_000)
    evolve(written.state, marker_entry(epoch, 7_000))
    assert begun == file.load(NAME)
    write(file, written, (Put("public/c", packed(3)),))
    expected: list[LogEntry] = [*written.log[:3], marker_entry(epoch, 7_000), written.log[3]]
    assert file.read_log(0, REVISION_MAX, limit=9) == expected
    loaded = file.load(NAME)
    assert undated(loaded.state) == undated(written.state)
    assert loaded.epochs == [EPOCH, epoch]
    file.abandon()


def test_a_run_without_syncs_is_clean_only_once_it_ended(path: Path, written: Trial) -> None:
    """A reader that opens the file in between may miss something."""
    assert written.state.revision == 3
    for end, clean in ((BoardFile.abandon, False), (BoardFile.close, True)):
        file = BoardFile(path, level="memory")
        file.begin_run(file.load(NAME))
        end(file)
        look = BoardFile(path, level="disk")
        assert look.load(NAME).clean is clean
        look.abandon()


DAMAGES = {
    "a value": "UPDATE entry SET value = x'c0' WHERE key = 'public/b'",
    "a key": "UPDATE entry SET key = 'public/c' WHERE key = 'public/b'",
    "a revision": "UPDATE entry SET mod_revision = 2 WHERE key = 'public/b'",
    "a lost entry": "DELETE FROM entry WHERE key = 'public/b'",
    "a lost trace": "DELETE FROM tombstone",
    "an old answer": "UPDATE answer SET step = step - 1",
    "a lease": "UPDATE lease SET lease = x'c0'",
    "a lost lease": "DELETE FROM lease",
    "an old index": "UPDATE next_item SET item = 0",
    "a type": "UPDATE entry SET mod_revision = 'x' WHERE key = 'public/b'",
    "results": "UPDATE answer SET results = x'c1'",
    "a gap in the log": "DELETE FROM log WHERE revision = 2",
    "a lost end of the log": "DELETE FROM log WHERE revision = 3",
    "a head that is behind": "UPDATE head SET revision = 2",
    "a head that is ahead": "UPDATE head SET revision = 4",
    "an end of the log that is behind": "UPDATE head SET log_end = 2",
    "an end of the log that is ahead": "UPDATE head SET log_end = 4",
    "a lost beginning": "UPDATE head SET oldest = 0",
    "no head": "DELETE FROM head",
    "another board": "UPDATE head SET board = 'other'",
    "no epoch": "DELETE FROM epoch",
    "a lost epoch": "UPDATE epoch SET number = 2",
    "no table": "DROP TABLE lease",
    "a weight": "UPDATE entry SET weight = weight + 1",
    "no weight": "UPDATE entry SET weight = NULL",
    "a lost tablet": "DELETE FROM tablet",
    "a tablet that begins later": "UPDATE tablet SET first_key = 'a'",
    "keys of a tablet": "UPDATE tablet SET keys = keys + 1",
    "an expiry of a tablet": "UPDATE tablet SET expires_at_ms = 1",
    "a sum": "UPDATE usage SET bytes = bytes + 1",
    "a lost sum": "DELETE FROM usage WHERE name = ''",
    "an author": "UPDATE entry SET author = 'adb'",
    "a date": "UPDATE entry SET time_ms = time_ms + 1",
    "a beginning": "UPDATE entry SET create_revision = create_revision - 1",
    "an expiry": "UPDATE entry SET expires_at_ms = 4000000000000",
    "an author of a trace": "UPDATE tombstone SET author = 'adb'",
    "a trace of another key": "UPDATE tombstone SET key = 'public/9'",
    "a lease of another key": "UPDATE lease SET key = 'public/9'",
    "an index of another list": "UPDATE next_item SET prefix = 'public/9'",
    "a process of an answer": "UPDATE answer SET incarnation = 'x'",
    "a date of an answer": "UPDATE answer SET time_ms = time_ms + 1",
    "results of an answer": "UPDATE answer SET results = x'90'",
    "a name of an epoch": "UPDATE epoch SET id = 'x'",
    "a date of an epoch": "UPDATE epoch SET time_ms = time_ms + 1",
    "a date of the head": "UPDATE head SET time_ms = time_ms + 1",
    "another application": "PRAGMA application_id = 7",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_by_the_name_of_the_file(path: Path, written: Trial, damage: str) -> None:
    """Each kind of it, one at a time, on a board that loads without it."""
    assert written.state.revision == 3
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(DAMAGES[damage])
    connection.close()
    file = BoardFile(path, level="disk")
    with pytest.raises(Corrupt) as corrupt:
        file.load(NAME)
    assert corrupt.value.what == str(path)
    file.abandon()


def test_an_index_that_says_something_else_is_refused(path: Path, written: Trial) -> None:
    """A write would not find its row by it."""
    key = max(written.state.entries, key=len).encode()
    content = path.read_bytes()
    places = [at for at in range(len(content)) if content.startswith(key, at)]
    connection = sqlite3.connect(path)
    [page] = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_entry_1'"
    ).fetchone()
    connection.close()
    [place] = [at for at in places if at // PAGE_BYTES == page - 1]
    path.write_bytes(content[: place + 2] + b"~" + content[place + 3 :])
    file = BoardFile(path, level="disk")
    with pytest.raises(Corrupt) as corrupt:
        file.load(NAME)
    assert corrupt.value.what == str(path)
    file.abandon()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE log SET body = (SELECT body FROM log WHERE revision = 1) WHERE revision = 2",
        "UPDATE log SET body = x'90' WHERE revision = 2",
        "UPDATE log SET results = x'c1' WHERE revision = 2",
        "UPDATE log SET results = x'90' WHERE revision = 2",
        "UPDATE log SET time_ms = time_ms + 1 WHERE revision = 2",
        "UPDATE log SET digest = zeroblob(32) WHERE revision = 2",
        "UPDATE log SET large = NULL WHERE revision = 1",
        "UPDATE log SET large = x'c1' WHERE revision = 1",
    ],
)
def test_a_damaged_log_entry_is_found_when_it_is_read(
    path: Path, written: Trial, damage: str
) -> None:
    """By the digest of its content; what lies elsewhere is still read."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(damage)
    connection.close()
    file = BoardFile(path, level="disk")
    with pytest.raises(Corrupt) as corrupt:
        file.read_log(0, REVISION_MAX, limit=9)
    assert corrupt.value.what == str(path)
    assert file.read_log(2, REVISION_MAX, limit=9) == written.log[2:]
    file.abandon()


def test_a_failing_statement_surely_changed_nothing(path: Path) -> None:
    """A full file: the transaction is rolled back before it is committed."""
    trial = Trial()
    new_file(path).close()
    file = BoardFile(path, level="disk", file_bytes_max=64 * 1024)
    write(file, trial, (Put("public/a", packed(1)),))
    before = file.load(NAME).state
    many = tuple(Put(f"public/{i}", packed(b"x" * 50_000)) for i in range(4))
    with pytest.raises(WriteError) as failed:
        write(file, trial, many)
    assert failed.value.certain
    assert str(path) in failed.value.reason
    assert file.load(NAME).state == before
    file.abandon()


def test_a_commit_is_told_though_its_journal_cannot_be_measured(path: Path) -> None:
    """The file holds it then; the journal is copied later all the same."""
    trial = Trial()
    file = new_file(path)
    log = touch(trial, file.load(NAME).backlog, (Put("public/b", packed(b"x" * 100_000)),))
    assert file._index is not None
    file._index.close()
    file._index = (path.parent / "unreadable").open("wb", buffering=0)
    file.write(Taken(log.rows))
    assert file.is_journal_long
    file.abandon()
    again = BoardFile(path, level="disk")
    assert undated(again.load(NAME).state) == undated(trial.state)
    again.abandon()


def test_a_log_of_two_boards_cannot_be_mixed_up(path: Path, written: Trial) -> None:
    """A transaction that was written already cannot be written again."""
    file = BoardFile(path, level="disk")
    again = State(EPOCH)
    trial = Trial()
    trial.state = again
    backlog = Backlog((0, 0, 1))
    log = touch(trial, backlog, COMMITS[0])
    file.load(NAME)
    with pytest.raises(WriteError) as failed:
        file.write(backlog.take(again, log, everything=True))
    assert failed.value.certain
    assert undated(file.load(NAME).state) == undated(written.state)
    file.abandon()


def test_a_closed_file_is_unavailable(path: Path, written: Trial) -> None:
    """Not corrupt."""
    assert written.log
    file = BoardFile(path, level="disk")
    file.close()
    with pytest.raises(Unavailable):
        file.read_log(0, 3, limit=9)


def test_a_file_that_is_not_there_is_unavailable(path: Path) -> None:
    """And is not made by looking for it."""
    with pytest.raises(Unavailable) as refused:
        BoardFile(path, level="disk")
    assert refused.value.what == str(path)
    assert not path.exists()


def locked() -> None:
    """Fail as a busy database does."""
    raise _sqlite_error(sqlite3.OperationalError, sqlite3.SQLITE_BUSY | 1 << 8)


def malformed() -> None:
    """Fail as a damaged database does."""
    raise _sqlite_error(sqlite3.DatabaseError, sqlite3.SQLITE_CORRUPT)


def full() -> None:
    """Fail as a file system does."""
    raise OSError(28, "No space left on device")


def unreadable() -> None:
    """Fail as a row that is none of ours does."""
    raise TypeError("not a row")


def _sqlite_error(kind: type[sqlite3.Error], code: int) -> sqlite3.Error:
    error = kind("as SQLite says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("fail", "expected"),
    [(locked, Unavailable), (full, Unavailable), (malformed, Corrupt), (unreadable, Corrupt)],
)
def test_no_error_of_a_driver_comes_through(
    fail: Callable[[], None], expected: type[Exception]
) -> None:
    """Moments pass, content does not; the cause is kept."""
    with pytest.raises(expected) as caught, translated(Path("board.db")):
        fail()
    assert "board.db" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_sync_that_fails_while_older_rows_are_replaced_is_noted(
    path: Path, written: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each failed sync is: the file is not opened again as if it were whole."""
    file = BoardFile(path, level="disk")
    loaded = file.load(NAME)
    loaded.outdated.extend(LEASE.row(*each) for each in loaded.state.leases.items())
    assert loaded.outdated

    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    monkeypatch.setattr("blackboard.engines.sqlite.file.insert", fail)
    with pytest.raises(Unavailable):
        file.update(loaded)
    assert file.suspect
    file.abandon()
