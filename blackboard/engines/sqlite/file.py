"""One board's SQLite file: every SQL statement of the embedded engine. Blocking; runs in threads.

Invariants
- One process has the file open for writing; within it, one thread at a time calls `write`.
- `write` is one transaction. At level "disk" it has reached the disk when `write` returns.
- A commit is durable as a row of the log. The other tables follow (engines/sqlite/follower.py);
  `load` reads them, and applies the rest of the log to what they hold.
- Nothing is copied from the journal into the file before the head records the end of the log.
- Nothing is repaired: damage raises Corrupt and is left unchanged. The torn end of a journal is no
  damage, and is removed before anything is written (engines/sqlite/journal.py).
- After a failed sync (`suspect` is set), nothing is read or written any more, and the journal
  stays: see engines/sqlite/suspect.py. To see every failure, we copy the journal into the file
  ourselves; SQLite never does so after a commit or when a connection is closed.

Journal: WAL (https://www.sqlite.org/wal.html), so that a reader of the old log never waits for a
writer. `synchronous=FULL` syncs the WAL once per transaction; OFF leaves that to the kernel. What a
power loss leaves of it: engines/sqlite/journal.py.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, Literal

from blackboard import limits
from blackboard.core.commit import (
    BRANCH,
    CREATED,
    ENGINE,
    RECOVER,
    RESTORE,
    Entry,
    Epoch,
    LogEntry,
)
from blackboard.core.history import check_sequence
from blackboard.core.path import range_of
from blackboard.core.state import BoardUsage, State, evolve, leave_out
from blackboard.engines.base import LoggedValue
from blackboard.engines.disk import file_identity
from blackboard.engines.sqlite import suspect
from blackboard.engines.sqlite.cache import LoadedEntries, admit, loaded_of
from blackboard.engines.sqlite.connection import connect, insert, primary_code, translated
from blackboard.engines.sqlite.follower import Backlog
from blackboard.engines.sqlite.format import FORMAT, OLDEST_FORMAT, convert, foreign_to
from blackboard.engines.sqlite.journal import (
    PAGE_BYTES,
    check_journal,
    cut as cut_journal,
    journal_path,
    open_index,
    use_journal,
    valid_frames,
)
from blackboard.engines.sqlite.rows import (
    LEASE,
    LOADED,
    MOVE,
    SELECT_USAGE,
    Filed,
    LogRows,
    Row,
    Taken,
    ValuesInLog,
    Writes,
    checksum,
    entries_of,
    fill,
    movable,
    outdated_leases,
    places_of,
    read_epoch_row,
    row_bytes,
    seal,
    unpack_large,
    weigh,
)
from blackboard.engines.sqlite.tablets import (
    FIRST,
    LAST,
    MEASURE_TABLET,
    SELECT_TABLETS,
    WEIGHT_MODULUS,
    Changes,
    Span,
    Tablet,
    Tablets,
    cut,
)
from blackboard.errors import Corrupt, NewerFormat, OlderFormat, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import decode_entry, marker_entry

Level = Literal["disk", "memory"]
"""What an acknowledged commit survives: a power loss, or only the end of this process."""

APPLICATION_ID: Final = 0x42424244  # "BBBD", in the file's header
_COMPACT_ROWS: Final = 4096  # log entries removed by one transaction
_MOVED_BYTES: Final = 4 * 1024 * 1024  # values moved with it, but for those of its first commit
_WAL_PAGES: Final = 4096  # 16 MiB between two checkpoints
_IDLE_JOURNAL_BYTES: Final = 16 * PAGE_BYTES
"""The journal that an idle board may keep: that of a few commits. So a board that gets a commit now
and then does not copy its journal each time."""
_LOG: Final = (
    "INSERT INTO log (revision, time_ms, body, large, results, digest, checksum)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_HEAD: Final = "UPDATE head SET revision = ?, time_ms = ?, oldest = ?, log_end = ?, checksum = ?"
_ABOVE: Final = (
    "SELECT revision, time_ms, body, large, results, digest, checksum FROM log WHERE revision > ?"
    " ORDER BY revision"
)
INSERT_EPOCH: Final = (
    "INSERT INTO epoch (revision, time_ms, number, id, cause, from_revision)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_ROW: Final = (
    "SELECT revision, time_ms, body, large, results, digest, checksum FROM log WHERE revision = ?"
)
_READ_LOG: Final = """
    SELECT revision, time_ms, body, large, results, digest, checksum FROM log
     WHERE revision > :after AND revision <= :last
     UNION ALL
    SELECT revision, time_ms, NULL, NULL, NULL, NULL, NULL FROM epoch
     WHERE revision > :after AND revision <= :last AND cause <> 'restore'
     ORDER BY revision LIMIT :limit"""


class WriteError(Exception):
    """A transaction failed. `certain` says that certainly nothing of it is in the file; `is_last`
    that a sync failed, so this process must not open the file again; `no_room` that the disk was
    full: the transaction was rolled back, and another one may follow."""

    def __init__(
        self, reason: str, *, certain: bool, is_last: bool = False, no_room: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.certain = certain
        self.is_last = is_last
        self.no_room = no_room


DISTRUSTED: Final = (
    "a sync of its file failed, so nothing of it counts in this process: restart the service when"
    " the disk is sound"
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of a file. `clean` says that it certainly holds all that was acknowledged; the
    rows in `outdated` have to replace older ones; `backlog` is what the tables are behind."""

    state: State
    epochs: list[Epoch]
    clean: bool
    backlog: Backlog
    outdated: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Written:
    """What a transaction did. `log_remains` says that there are log entries left to remove."""

    log_remains: bool
    tablets: Changes


_FIRST: Final = (CREATED, BRANCH, RECOVER)
"""Causes of a board's first epoch. Its number is above 1 if there was another board of that name
before, or its content came from one."""


def _follow(epochs: Sequence[Epoch]) -> bool:
    """Whether these are all epochs of a board, from the first one on."""
    if not epochs or (epochs[0].number != 1 and epochs[0].cause not in _FIRST):
        return False
    return all(later.number == epoch.number + 1 for epoch, later in pairwise(epochs))


def log_entries(epochs: Sequence[Epoch], oldest: Revision, revision: Revision) -> int:
    """How many entries a log from `oldest` to `revision` has: epochs of an engine skip some."""
    skipped = (
        max(0, epoch.revision - max(epoch.from_revision + 1, oldest))
        for epoch in epochs
        if epoch.cause == ENGINE
    )
    return revision - oldest + 1 - sum(skipped)


class BoardFile:
    """One open file. `read_log` may run beside `write`, in another thread."""

    def __init__(
        self,
        path: Path,
        *,
        level: Level,
        file_bytes_max: int | None = None,
        read_only: str = "",
        limits: Limits = DEFAULT,
    ) -> None:
        """`read_only` says why nothing is written. The file, which must have no journal, is then
        read without the files that SQLite keeps beside it."""
        self.path = path
        self.level = level
        self.read_only = read_only
        self.limits = limits
        self.filed = Filed(0, {}, Tablets([]))
        """Since it was loaded."""
        self.suspect = False
        """Whether a sync failed."""
        self._index: BinaryIO | None = None
        with translated(path):
            self._writer = self._connect()
            if file_bytes_max is not None:
                pages = max(1, file_bytes_max // PAGE_BYTES)
                self._writer.execute(f"PRAGMA max_page_count={pages}")
            self._identity = file_identity(path)
        self._reader: sqlite3.Connection | None = None
        self._reading = threading.Lock()
        self._closed = False
        self.is_journal_long = False
        """Whether the journal is copied after the next transaction that writes the head."""

    def load(self, board: str, *, whole: bool = False) -> "Loaded":
        """Read and check the state. A file of an older format is converted first; what a power loss
        left of an incomplete transaction is removed from the journal in the end.

        Of a board with more than BOARDS_WHOLE_KEYS entries only those are read that the log above
        the mark changes, unless `whole`: `read_entries` reads and checks the others.

        Cost: about 5 us per entry, and 30 us per log entry above the mark. Of the others only the
        row numbers are read; each row's digest is checked when that row is read. Errors: Corrupt,
        Unavailable; the file and its journal are unchanged.
        """
        with self._translated(), closing(self._writer.cursor()) as cursor:
            self._prepare(cursor, board)
            head = "SELECT revision, time_ms, oldest, log_end, checksum, clean FROM head"
            mark, time_ms, oldest, log_end, kept, clean = cursor.execute(head).fetchone()
            begun = cursor.execute("SELECT * FROM epoch ORDER BY number").fetchall()
            epochs = [read_epoch_row(row) for row in begun]
            self._check_log(cursor, epochs, max(mark, log_end), oldest)
            state = State(epochs[-1], revision=mark, oldest=oldest, time_ms=time_ms)
            filed = self._read_tables(cursor, state, sum(map(weigh, begun)))
            if checksum(filed.weight, mark, time_ms, oldest, log_end) != kept:
                raise self._corrupt("its tables do not add up")
            # The file's checksum counts rows of an older form as they are.
            outdated, more = outdated_leases(state, cursor.execute(LEASE.select))
            filed.weight = (filed.weight + more) % WEIGHT_MODULUS
            state.entries = LoadedEntries(filed.tablets)
            self.filed = filed
            if whole or filed.tablets.is_small(self.limits.boards):
                self._take_in(state, [(FIRST, LAST)])
                self._check_indexes(self._writer)
            backlog = Backlog((mark, time_ms, oldest))
            epochs += self._replay(cursor, state, backlog)
            if not _follow(epochs):
                raise self._corrupt("its epochs are not complete")
            # Last: a file that is refused keeps its journal as it is.
            self._cut_journal()
            return Loaded(state, epochs, bool(clean), backlog, outdated)

    def _prepare(self, cursor: sqlite3.Cursor, board: str) -> None:
        """Check what the file is and that its journal is whole, and convert an older format."""
        version = self._check_format(cursor)
        if not self.read_only:
            use_journal(self._writer, self.path)
        head = cursor.execute("SELECT clean FROM head WHERE board = ?", (board,)).fetchone()
        if not self.read_only:  # that read has made it
            self._index = self._index or open_index(self.path)
        if head is None:
            raise self._corrupt(f"it is not the file of board {board}")
        # A run without syncs may leave any number of incomplete transactions: an epoch begins after
        # it.
        if head[0] and self._index is not None:
            check_journal(self.path, self._index)
        if version < FORMAT:
            if self.read_only:
                raise Unavailable(str(self.path), f"{self.read_only}; its format is an older one")
            # Converting writes, and nothing of a torn transaction may lie behind that.
            self._cut_journal()
            convert(self._writer, version)

    def _cut_journal(self) -> None:
        """Before the first transaction is written: leave nothing of one that was cut off."""
        if self._index is not None:
            cut_journal(self.path, self._index)

    def _read_tables(self, cursor: sqlite3.Cursor, state: State, weight: int) -> Filed:
        """Fill `state`, but for its entries; `weight` is that of the epochs."""
        for table in LOADED:
            rows = cursor.execute(table.select).fetchall()
            weight += sum(map(weigh, rows))
            fill(state, table, rows)
        used = cursor.execute(SELECT_USAGE).fetchall()
        tablets = cursor.execute(SELECT_TABLETS).fetchall()
        weight += sum(map(weigh, used)) + sum(map(weigh, tablets))
        state.usage = {name: BoardUsage(keys, size) for name, keys, size in used}
        if not tablets or tablets[0][0] != FIRST:
            raise self._corrupt("its tablets are not complete")
        found = Tablets(Tablet(*row) for row in tablets)
        return Filed(weight % WEIGHT_MODULUS, dict(state.usage), found)

    def _take_in(self, state: State, spans: Sequence[Span]) -> None:
        for within, found in entries_of(self._writer, self.filed.tablets, spans):
            admit(state, within, found)

    def _check_indexes(self, connection: sqlite3.Connection) -> None:
        """Errors: Corrupt unless the indexes of the entries lead to each of them."""
        [found] = connection.execute("PRAGMA integrity_check(entry)").fetchone()
        if found != "ok":
            raise self._corrupt(f"an index of its entries is damaged: {found}")

    def _replay(self, cursor: sqlite3.Cursor, state: State, backlog: Backlog) -> list[Epoch]:
        """Apply the log above the mark, in order; returns the epochs that begin there."""
        begun: list[Epoch] = []
        rows = cursor.execute(_ABOVE, (state.revision,)).fetchall()
        for row in rows:
            # Here that is damage; `_log_entry` would take it for a marker of the query in
            # `read_log`.
            if row[2] is None:
                raise self._corrupt(f"the log entry of revision {row[0]} has no content")
        entries = [self._log_entry(row) for row in rows]
        keys = {change.key for entry in entries for change in entry.changes if not change.lease}
        self._take_in(state, loaded_of(state).missing(map(range_of, keys)))
        leave_out(state, backlog.note_ahead(state))
        for row, entry in zip(rows, entries, strict=True):
            check_sequence(state.revision, (entry,))
            backlog.note(state, entry, row)
            evolve(state, entry)
            if entry.epoch is not None:
                begun.append(entry.epoch)
        return begun

    def _check_format(self, cursor: sqlite3.Cursor) -> int:
        [found] = cursor.execute("PRAGMA application_id").fetchone()
        if found != APPLICATION_ID:
            raise self._corrupt(f"it is not the file of a board: its application_id is {found}")
        [found] = cursor.execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise NewerFormat(str(self.path), found, FORMAT)
        if found < OLDEST_FORMAT:
            raise OlderFormat(str(self.path), found, FORMAT)
        foreign = foreign_to(self._writer, found)
        if foreign is not None:
            raise self._corrupt(f"its schema is not that of a board: {foreign}")
        return int(found)

    def _check_log(
        self, cursor: sqlite3.Cursor, epochs: list[Epoch], log_end: Revision, oldest: Revision
    ) -> None:
        """Errors: Corrupt unless every revision from `oldest` to `log_end` or beyond is there, or
        was skipped by an epoch."""
        [kept, last] = cursor.execute(
            "SELECT count(*), max(revision) FROM log WHERE revision >= ?", (oldest,)
        ).fetchone()
        if not epochs:
            raise self._corrupt("its epochs are not complete")
        # A restore has its row in the log; the first epoch may have no entry at all (revision 0).
        markers = [e.revision for e in epochs if e.revision and e.cause != RESTORE]
        markers = [revision for revision in markers if revision >= oldest]
        newest = max([last or 0, oldest - 1, *markers])
        expected = log_entries(epochs, oldest, newest)
        if newest < log_end or kept + len(markers) != expected:
            raise self._corrupt(
                f"its log ends at {newest} with {kept} entries, its head is {oldest}..{log_end}"
            )

    def update(self, loaded: Loaded) -> None:
        """Replace the rows of an older form, all or none. Errors: Unavailable."""
        if not loaded.outdated:
            return
        place = (*loaded.backlog.mark, loaded.state.revision)
        with self._translated():
            self._writer.execute("BEGIN IMMEDIATE")
            insert(self._writer, LEASE.upsert, loaded.outdated)
            self._writer.execute(_HEAD, (*place, checksum(self.filed.weight, *place)))
            self._writer.execute("COMMIT")

    def begin_run(self, loaded: "Loaded") -> None:
        """Record durably whether the file can lose commits from here on; then sync as `level` says.

        An unchanged record is not written again, because a full disk has no room for it. Errors:
        Unavailable.
        """
        durable = self.level == "disk"
        with self._translated():
            if loaded.clean != durable:
                self._writer.execute("UPDATE head SET clean = ?", (int(durable),))
            if not durable:
                # After the record, which has to reach the disk.
                self._writer.execute("PRAGMA synchronous=OFF")

    def begin_epoch(self, loaded: Loaded, epoch: Epoch, time_ms: Milliseconds) -> Loaded:
        """Write an epoch marker and make its revision the head's; returns the new content.

        Errors: Unavailable.
        """
        marker, state = marker_entry(epoch, time_ms), loaded.state
        loaded.backlog.note(state, marker, None)
        evolve(state, marker)
        self.follow(loaded)
        return replace(loaded, epochs=[*loaded.epochs, epoch])

    def follow(self, loaded: Loaded) -> None:
        """Bring the tables to the end of the log. Errors: Unavailable; the file must then be
        closed."""
        if not loaded.backlog.rows:
            return
        writes = loaded.backlog.take(loaded.state, LogRows(), everything=True).writes(self.filed)
        with self._translated():
            _, weight = self._stage(writes)
            self._writer.execute("COMMIT")
        self.filed.change(writes, weight)
        loaded_of(loaded.state).follow(writes.tablets)

    def write(self, taken: Taken) -> Written:
        """Apply one transaction.

        Errors: WriteError. The file must then be closed and loaded again, unless it was the last,
        or there was `no_room`.
        """
        if not self._is_in_place():
            # What is written to a file without a name is lost when it is closed.
            reason = f"{self.path}: it was removed or replaced while this process had it open"
            raise WriteError(reason, certain=True)
        writes = taken.writes(self.filed)
        try:
            more, weight = self._stage(writes)
        except (sqlite3.Error, Corrupt) as error:
            raise self._failed(error, certain=True) from error
        try:
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            # The frame that commits the transaction is written last: a disk that filled up before
            # cannot hold it. After a failed sync it is unknown what the disk holds.
            full = primary_code(error) == sqlite3.SQLITE_FULL
            raise self._failed(error, certain=full) from error
        if writes.place is not None:
            self.filed.change(writes, weight)
        self.is_journal_long = self._has_grown()
        if self.is_journal_long and writes.place is not None:
            self.checkpoint()
        return Written(more, writes.tablets)

    def _is_in_place(self) -> bool:
        """Whether the open file is still the one of its name."""
        try:
            return file_identity(self.path) == self._identity
        except OSError as error:
            # A file system that does not answer proves nothing; the write that follows says more.
            return not isinstance(error, FileNotFoundError | NotADirectoryError)

    def _has_grown(self) -> bool:
        """Whether the journal is long enough to be copied. No error: the commit is in the file."""
        try:
            return self._index is not None and valid_frames(self._index) >= _WAL_PAGES
        except OSError:  # the disk does not say how much of it is in use
            return self.is_journal_large

    def _failed(self, error: sqlite3.Error | Corrupt, *, certain: bool) -> WriteError:
        """A transaction failed: roll it back."""
        self._note(error)
        # After some errors SQLite has rolled back already.
        with contextlib.suppress(sqlite3.Error):
            self._writer.rollback()
        reason = f"{self.path}: {error}"
        reason = f"{DISTRUSTED} ({reason})" if self.suspect else reason
        no_room = certain and primary_code(error) == sqlite3.SQLITE_FULL
        return WriteError(reason, certain=certain, is_last=self.suspect, no_room=no_room)

    def _note(self, error: BaseException | None) -> None:
        """Mark this file as suspect if `error` is a failed sync."""
        if suspect.is_failed_sync(error) and not self.suspect:
            self.suspect = True
            suspect.mark(self.path, str(error))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """As `translated`, for calls that may sync."""
        try:
            with translated(self.path):
                yield
        except Unavailable as error:
            self._note(error.__cause__)
            raise

    def _stage(self, writes: Writes) -> tuple[bool, int]:
        """Returns whether log entries remain to be removed, and what all rows weigh then."""
        connection, more, weight = self._writer, False, 0
        # IMMEDIATE: if another program has the lock, this fails before anything is staged.
        connection.execute("BEGIN IMMEDIATE")
        if writes.log_below is not None:  # first: its pages are used again
            more = self._shorten_log(writes.log_below)
        insert(connection, _LOG, writes.log)
        if writes.place is not None:
            for statement, rows in writes.deletes:
                connection.executemany(statement, rows)
            for statement, rows in ((INSERT_EPOCH, writes.epochs), *writes.upserts):
                insert(connection, statement, rows)
            self._cut_tablets(writes.tablets)
            sums, weight = self.filed.sums(writes)
            for statement, rows in sums:
                if statement.startswith("DELETE"):
                    connection.executemany(statement, rows)
                else:
                    insert(connection, statement, rows)
            connection.execute(_HEAD, (*writes.place, checksum(weight, *writes.place)))
        return more, weight

    def _cut_tablets(self, changes: Changes) -> None:
        """Cut those that became large. Errors: Corrupt unless their rows are those that were
        written."""
        limits = self.limits.boards
        for tablet in [each for each in changes.present if each.is_large(limits)]:
            within = (tablet.first, self.filed.tablets.end(tablet.first))
            rows = self._writer.execute(MEASURE_TABLET, within)
            changes.replace(tablet, cut(tablet, rows, limits))

    def _shorten_log(self, below: Revision) -> bool:
        [first] = self._writer.execute("SELECT min(revision) FROM log").fetchone()
        if first is None or first >= below:
            return False
        # Read before the rows go, and written after: the pages that they free are used for it.
        reach, moved = movable(self._writer, min(first + _COMPACT_ROWS, below), _MOVED_BYTES)
        self._writer.execute("DELETE FROM log WHERE revision < ?", (reach,))
        insert(self._writer, MOVE, moved)
        return bool(reach < below)

    def checkpoint(self) -> None:
        """Copy the journal into the file. A commit that makes the journal too long does so, too.

        Errors: as `_copy_journal`. Must not run during a `write`, on a connection of its own:
        before 3.51.3 that can damage the file (https://www.sqlite.org/wal.html#walresetbug).
        """
        # It waits for no reader: what one still needs stays in the journal.
        self._copy_journal("PASSIVE")

    def shrink_journal(self) -> None:
        """Copy the journal of an idle board into the file and empty it, if it is large. It stays
        while a reader needs it. Errors: as `_copy_journal`.

        Not to be called during a `write`.
        """
        if self.is_journal_large:
            self._copy_journal("TRUNCATE")

    def scrub(self) -> bool:
        """Copy the journal into the file and empty it, so that neither holds what was removed
        (`secure_delete` has overwritten it there); False while another program reads the file.

        Errors: as `_copy_journal`. Not to be called during a `write`.
        """
        with self._reading:
            if self._reader is not None:  # it may be in the middle of a snapshot
                with contextlib.suppress(sqlite3.Error):
                    self._reader.close()
                self._reader = None
            return self._copy_journal("TRUNCATE")

    def _copy_journal(self, how: str) -> bool:
        """Copy the journal into the file; returns whether no reader held that up.

        A failure changes nothing: the journal stays, and is copied later. Errors: WriteError with
        `is_last` after a failed sync.
        """
        try:
            [busy, *_] = self._writer.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
        except sqlite3.Error as error:
            if suspect.is_failed_sync(error):
                raise self._failed(error, certain=False) from error
            return False
        return not busy

    @property
    def is_journal_large(self) -> bool:
        """Whether `shrink_journal` empties the journal."""
        try:
            return journal_path(self.path).stat().st_size > _IDLE_JOURNAL_BYTES
        except OSError:
            return False

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or abandoned."""
        return self._closed

    def read_entries(self, spans: Sequence[Span]) -> list[tuple[Span, list[Entry]]]:
        """For each of `spans`, which are those of parts that are not loaded, the range of all
        tablets that have keys in it, and their entries. In any thread.

        Errors: Corrupt, Unavailable.
        """
        with self._read() as connection:
            # One snapshot: a value may be moved between its row and the log (`movable`).
            connection.execute("BEGIN")
            try:
                return list(entries_of(connection, self.filed.tablets, spans))
            finally:
                if connection.in_transaction:  # some errors have ended it
                    connection.rollback()

    def check_indexes(self) -> None:
        """Check the indexes of the entries of a board that was not loaded whole: cutting the log
        relies on them. It reads all rows, on a connection of its own. Errors: Corrupt, Unavailable.
        """
        with translated(self.path), closing(self._connect()) as connection:
            self._check_indexes(connection)

    @contextlib.contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """The connection for reads in other threads. `close` and `scrub` wait for the block."""
        with translated(self.path), self._reading:
            if self._closed:
                raise Unavailable(what=str(self.path), reason="it was closed")
            if self._reader is None:
                # Opened on demand: most readers get what they need from memory.
                self._reader = self._connect()
            yield self._reader

    def _connect(self) -> sqlite3.Connection:
        return connect(self.path, read_only=bool(self.read_only))

    def read_log(self, after: Revision, last: Revision, *, limit: int) -> list[LogEntry]:
        """Log entries after `after` up to `last`; at most `limit`, about PAGE_BYTES_MAX bytes.

        Errors: Corrupt when a row's digest is not that of its content; Unavailable.
        """
        found: list[LogEntry] = []
        size = 0
        wanted = {"after": after, "last": last, "limit": limit}
        # For the whole page: `close` and `scrub` must not close the connection meanwhile.
        with self._read() as connection, closing(connection.execute(_READ_LOG, wanted)) as rows:
            for row in rows:
                found.append(self._log_entry(row))
                size += len(row[2] or b"") + len(row[3] or b"")
                if size >= limits.PAGE_BYTES_MAX:
                    break
        return found

    def places(self, entries: Sequence[LogEntry]) -> list[dict[Key, LoggedValue]]:
        """As `ServesValues.places`; in any thread. Errors: Unavailable, Corrupt."""
        with self._read() as connection:
            return [self._places_of(connection, entry) for entry in entries]

    def _places_of(self, connection: sqlite3.Connection, entry: LogEntry) -> dict[Key, LoggedValue]:
        row = connection.execute(_ROW, (entry.revision,)).fetchone()
        # Nothing is said of an entry that is not this one, as after an older copy was put back.
        if row is None or row[5] != entry.digest or row_bytes(row) > limits.COMMIT_BYTES_MAX:
            return {}
        found = places_of(entry, row)
        sizes = {change.key: len(change.value or b"") for change in entry.changes}
        return {key: LoggedValue(*place, sizes[key]) for key, place in found.items()}

    def values(self, wanted: Sequence[LoggedValue]) -> list[bytes | None]:
        """As `ServesValues.values`; in any thread. Errors: Unavailable, Corrupt."""
        with self._read() as connection:
            held = ValuesInLog(connection)
            return [held.slice(*each) for each in wanted]

    def _log_entry(self, row: Row) -> LogEntry:
        revision, time_ms, body, large, results, digest, sealed = row
        if body is None:
            assert self._reader is not None
            # Not in the union, whose columns are those of the log.
            query = "SELECT * FROM epoch WHERE revision = ?"
            marker = self._reader.execute(query, (revision,)).fetchone()
            return marker_entry(read_epoch_row(marker), time_ms)
        entry = decode_entry(revision, time_ms, body, unpack_large(large), results)
        if entry.digest != digest or sealed != seal(revision, time_ms, results, digest):
            raise self._corrupt(f"the digest of revision {revision} is not that of its content")
        return entry

    def close(self) -> None:
        """Close the file and mark it as clean. Errors: Unavailable (it is closed as well)."""
        if self.read_only:
            return self._let_go()
        try:
            with self._translated():
                # At level `memory`, `begin_run` has turned syncs off.
                self._writer.execute("PRAGMA synchronous=FULL")
                if self.level != "disk":
                    # Without a frame to copy, SQLite would not sync the file itself.
                    self._writer.execute("UPDATE head SET clean = 0")
                    # Only after everything else was synced: otherwise the mark could reach the disk
                    # first. While another program reads the file, nothing may be synced.
                    if self._empty_journal():
                        self._writer.execute("UPDATE head SET clean = 1")
                self._empty_journal()
        except BaseException:
            self.abandon()
            raise
        return self._let_go()

    def _empty_journal(self) -> bool:
        """Returns whether no other program held it up. Errors: sqlite3.Error."""
        [busy, *_] = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def abandon(self) -> None:
        """Close the file, and leave it and its journal unchanged."""
        with suspect.kept_as_it_is(self.path):
            self._let_go()

    def _let_go(self) -> None:
        with contextlib.suppress(sqlite3.Error), self._reading:
            self._closed = True
            if self._reader is not None:
                self._reader.close()
            self._writer.close()
        if self._index is not None:
            # After the connections: see `open_index`.
            self._index.close()

    def _corrupt(self, reason: str) -> Corrupt:
        return Corrupt(what=str(self.path), reason=reason)
