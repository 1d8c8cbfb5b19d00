"""The archive's database: SQLite in a file, or PostgreSQL, through SQLAlchemy.

Invariants
- All reads inside one `reading` see one snapshot; `writing` is one atomic transaction.
- Writers of one SQLite file queue here, and not in the database.
- No exception of SQLAlchemy or of a driver escapes: it becomes Unavailable, or Corrupt when the
  file is damaged.
- On a full disk, a SQLite file without a journal is opened read-only, and written as soon as there
  is room.
- After a failed sync of SQLite's file, everything is Unavailable (`TrustedFile`). To see every
  failure, we copy the journal into the file ourselves; SQLite never does so on its own.
"""

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from functools import cache, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

from sqlalchemy import (
    URL,
    Connection,
    ExceptionContext,
    Executable,
    FromClause,
    Table,
    bindparam,
    event,
    func,
    inspect,
    text,
)
from sqlalchemy.dialects.sqlite import dialect as SqliteDialect  # noqa: N812 - it is a class
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement

from blackboard.archive.connection import (
    DRIVERS,
    METER_FUNCTION,
    ConnectionMeter,
    cause_of,
    connect,
    copy_journal,
    meter_of,
    place_of,
    sync_journal,
    translated,
)
from blackboard.archive.tables import LOGGED, METADATA
from blackboard.client.cancellation import finish
from blackboard.engines.disk import SyncError, has_room
from blackboard.engines.payer import payer, turn
from blackboard.engines.sqlite import suspect
from blackboard.engines.sqlite.connection import (
    ROOM_BYTES,
    check_damage,
    check_ordinary,
    is_without_room,
)
from blackboard.engines.sqlite.journal import has_no_journal, open_index, valid_frames
from blackboard.engines.sqlite.suspect import is_failed_sync, kept_as_it_is
from blackboard.errors import (
    BlackboardError,
    Corrupt,
    NewerFormat,
    OlderFormat,
    Unavailable,
)
from blackboard.integrity.private_files import FILE_MODE, make_file
from blackboard.limits import DEFAULT
from blackboard.units import Key, Milliseconds

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be replaced
    fcntl = None  # type: ignore[assignment]

# --- the file ---------------------------------------------------------------------------------
# As with a board's file (engines/sqlite/suspect.py), nothing counts after a failed sync. Unlike a
# board's file, several processes may have it open. Each holds a shared lock on a file beside it,
# and a process overwrites the journal, or replaces the file by a copy, only while no other has the
# lock.

_LOCK: Final = ".lock"
DISTRUSTED: Final = (
    "a sync of its file failed, so its content cannot be trusted: when the disk is sound,"
    " restart every service that uses it"
)


class TrustedFile:
    """The file at `path`, used from here on until `close`. Blocking.

    The constructor makes sure that the disk holds the file's content, if no other process has it
    open. Errors: Unavailable, also while other processes use the file after a failed sync; Corrupt.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        self._is_suspect = False
        self._is_closed = False
        self._index: BinaryIO | None = None
        lock = path.with_name(f"{path.name}{_LOCK}")
        check_ordinary(path)
        try:
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise Unavailable(what=what, reason=str(error)) from error
        try:
            self.was_alone = self._is_alone()
            if self.was_alone:
                self._make_sure()
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_SH)
            self.check()
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError | sqlite3.Error):
                raise Unavailable(what=what, reason=str(error)) from error
            raise

    def _is_alone(self) -> bool:
        """Whether no other process has the file open; none can open it until the lock is shared."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _make_sure(self) -> None:
        if not suspect.is_marked(self.path):
            with contextlib.suppress(SyncError):  # then it is marked
                suspect.trust_journal(self.path)
                return
        suspect.write_again(self.path, lambda _: None, self._look_at)

    def _look_at(self, copy: Path) -> None:
        """Errors: Corrupt when a copy is damaged."""
        with closing(sqlite3.connect(copy)) as connection:
            [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise Corrupt(what=self._what, reason=f"a sync failed, and what is left: {found}")

    def check(self) -> None:
        """Errors: Unavailable once a sync failed, in this or another process."""
        if self._is_suspect or suspect.is_marked(self.path):
            self._is_suspect = True
            raise Unavailable(what=self._what, reason=DISTRUSTED)

    def note(self, error: BaseException | None) -> None:
        """Mark the file as suspect if `error` is a failed sync."""
        if suspect.is_failed_sync(error) and not self._is_suspect:
            self._is_suspect = True
            suspect.mark(self.path, str(error))

    @property
    def is_suspect(self) -> bool:
        """Whether a sync failed, as far as this process knows."""
        return self._is_suspect

    def frames(self) -> int:
        """The frames in the journal, while a connection is open; 0 if the disk does not say. No
        error: what was committed before is in the file."""
        with contextlib.suppress(OSError):
            if self._index is None:
                self._index = open_index(self.path)
            return valid_frames(self._index)
        return 0

    def close(self) -> None:
        """Release the lock; close every connection first. It may be called again."""
        if self._index is not None:
            self._index.close()
        if not self._is_closed:
            self._is_closed = True
            os.close(self._lock)


# --- the database -----------------------------------------------------------------------------

_PAGE_BYTES: Final = 8 * 1024  # values of a kilobyte fill them; each table and index has one
_WAL_PAGES: Final = 128  # a megabyte; then it is copied into the file
_FREE: Final = text("SELECT f.*, p.* FROM pragma_freelist_count() f, pragma_page_count() p")
_FREE_PAGES_MIN: Final = 128  # a megabyte
_READS_AT_ONCE: Final = 8
_CONNECTIONS: Final = _READS_AT_ONCE + 3  # some reads take minutes, and no write waits for them
_SCHEMA_LOCK: Final = 0x626C61636B  # two services may make the tables at once
_BLOBS_LOCK: Final = 0x626C6F6273  # a redaction looks for references, then discards
_BLOBS_ALONE: Final = text("SELECT pg_advisory_xact_lock(:lock)")
_BLOBS_SHARED: Final = text("SELECT pg_advisory_xact_lock_shared(:lock)")
_ROWS_AT_ONCE: Final = 128  # a millisecond; times 12 columns: SQLite takes 32,766 parameters
_VACUUM_BY_HAND: Final = (
    "run VACUUM FULL in the archive's PostgreSQL; its write-ahead log, replicas and backups hold"
    " deleted data until they are overwritten"
)
_JOURNAL_BY_HAND: Final = "another program reads the archive: its journal holds deleted data"
_SQLITE_COLUMNS: Final = text(
    "SELECT m.name, c.name FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS c"
    " WHERE m.type = 'table'"
)
_POSTGRES_COLUMNS: Final = text(
    "SELECT table_name, column_name FROM information_schema.columns"
    " WHERE table_schema = current_schema()"
)
FORMAT: Final = 3
"""Of the tables: in SQLite the user_version, in PostgreSQL the comment on table `board`. The first
archives have no mark."""
FORMAT_WITHOUT_LOGS: Final = 2
"""No version refers to the log of a board, as in PostgreSQL still."""
_INDEX_OF_LOGGED: Final = (
    "CREATE INDEX IF NOT EXISTS version_in_log ON version (board, revision, position)"
    f" WHERE form = {LOGGED}"
)
_UNDATED: Final = 1
"""The format whose versions have no column `first_ms`. Opening the archive adds it."""
_FIRST_MS: Final = ("version", "first_ms")
_ADD_FIRST_MS: Final = "ALTER TABLE version ADD COLUMN first_ms {}"
_MARK: Final = "Blackboard archive, format "
_POSTGRES_MARK: Final = text(
    "SELECT obj_description(to_regclass(quote_ident(current_schema()) || '.board'), 'pg_class')"
)
_WRITES: Final = "blackboard_writes"
_METER: Final = "blackboard_meter"
_PAUSE_S: Final = 0.01
log = logging.getLogger(__name__)
Row = dict[str, Any]
"""Values of a new row by column."""


class Database:
    """An open database. `writing` and `reading` give connections."""

    def __init__(self, place: URL, file: TrustedFile | None, timeout_ms: Milliseconds) -> None:
        self._place = place
        self._file = file
        self._timeout_ms = timeout_ms
        self._engine = engine = _engine(place, timeout_ms)
        self._old: AsyncEngine | None = None
        """That of the reads that began when nothing could be written, until they end."""
        self._read_only = ""
        """Why nothing can be written at the moment, if so."""
        self._turn = asyncio.Lock()
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        self._inner_reads = asyncio.Semaphore(1)
        self._is_closed = False
        self.was_alone = file is not None and file.was_alone
        """Whether no other process had the file open when this one opened it."""
        self.is_sqlite = engine.dialect.name == "sqlite"
        self.name = engine.url.render_as_string(hide_password=True)
        self.given: FromClause = _given(is_sqlite=self.is_sqlite)
        """Keys as a table with one column, `value`; `given_keys` are the parameters for it."""

    @classmethod
    async def open(
        cls, url: str, timeout_ms: Milliseconds = DEFAULT.engine.engine_timeout_ms
    ) -> "Database":
        """Connect to `sqlite:///path` or `postgresql://...`, and make the tables if necessary.

        `timeout_ms` bounds the wait for a connection or a lock; a statement may take twelve times
        as long. Errors: InvalidRequest for another URL; Unavailable; Corrupt; NewerFormat;
        OlderFormat.
        """
        place, made = place_of(url), list[TrustedFile]()
        try:
            await finish(asyncio.to_thread(_make_file, place, made))
        except asyncio.CancelledError:
            for file in made:  # its lock would keep other processes from having the file alone
                file.close()
            raise
        database = cls(place, made[0] if made else None, timeout_ms)
        try:
            await database._begin()
        except BaseException:
            await database.aclose()
            raise
        return database

    async def _begin(self) -> None:
        try:
            async with self.writing() as connection:
                if not self.is_sqlite:
                    await connection.execute(
                        text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _SCHEMA_LOCK}
                    )
                await connection.run_sync(_check_format, self.name)
                if self.is_sqlite:
                    await _check_passive(connection, self.name)
                await connection.run_sync(_make_tables)
                await connection.run_sync(_convert, self.name)
        except Unavailable as error:
            if self._file is None or not _is_without_room(error):
                raise
            await self._begin_to_read(self._file, error)

    async def _begin_to_read(self, file: TrustedFile, error: Unavailable) -> None:
        """Open the file read-only. Errors: Unavailable, if it has a journal with content."""
        name = file.path.name
        why = f"no room on the disk for {name}-wal and {name}-shm ({error.reason})"
        needed = f"{ROOM_BYTES:,} bytes are needed"
        await self._engine.dispose()
        if not await asyncio.to_thread(has_no_journal, file.path):
            raise Unavailable(what=f"archive {self.name}", reason=f"{why}: {needed}") from error
        self._engine = _engine(self._place, self._timeout_ms, read_only=True)
        try:
            async with self.reading() as connection:
                await connection.run_sync(_check_format, self.name)
                await _check_passive(connection, self.name)
                await connection.execute(_A_BOARD)  # without tables there is nothing to read
                if _FIRST_MS not in await connection.run_sync(_columns):
                    raise Unavailable(what=f"archive {self.name}", reason=f"{why}: {needed}")
                await connection.run_sync(_check_columns, self.name)
        except Unavailable:
            raise error from None
        self._read_only = f"{why}: the archive can be read; to write, {needed}"
        log.warning("archive %s: %s", self.name, self._read_only)

    async def _open_again(self) -> None:
        """Open the file for writing, if there is room. Reads continue. Errors: Unavailable."""
        assert self._file is not None
        if not await asyncio.to_thread(has_room, self._file.path, ROOM_BYTES):
            raise Unavailable(what=f"archive {self.name}", reason=self._read_only)
        new = _engine(self._place, self._timeout_ms)
        try:
            async with new.connect() as connection:
                await connection.execution_options(**{_WRITES: True})
                async with connection.begin():
                    await connection.run_sync(_convert, self.name)
        except BaseException:
            await new.dispose()
            raise
        self._old, self._engine, self._read_only = self._engine, new, ""
        log.info("archive %s: there is room on the disk again", self.name)

    async def _end_old_reads(self) -> None:
        """Wait for the reads that use the file without its journal: nothing may be copied into the
        file while they run. Cancellation: the next call waits."""
        if self._old is not None:
            while _checked_out(self._old):  # noqa: ASYNC110 - a pool tells nobody
                await asyncio.sleep(_PAUSE_S)
            await self._old.dispose()
            self._old = None

    @contextlib.asynccontextmanager
    async def reading(self, *, is_inner: bool = False) -> AsyncIterator[AsyncConnection]:
        """A connection that sees one snapshot; `is_inner` within the block of another one."""
        meter: ConnectionMeter | None = None
        begun_ns = 0
        try:
            with self._trusted(), translated(self.name):
                reads = self._inner_reads if is_inner else self._reads
                async with self._one_of(reads), self._engine.connect() as connection:
                    if self.is_sqlite:
                        meter = (await connection.get_raw_connection()).info[_METER]
                        begun_ns = meter.spent_ns
                    else:
                        await connection.execution_options(isolation_level="REPEATABLE READ")
                    yield connection
        except Corrupt as error:
            await self._check_damage(error)
            raise
        finally:  # the connection was rolled back, so no statement of it is running
            if meter is not None and (found := payer()) is not None:
                found.charge(meter.spent_ns - begun_ns)

    @contextlib.asynccontextmanager
    async def _one_of(self, reads: asyncio.Semaphore) -> AsyncIterator[None]:
        """Errors: TimeoutError while as many reads as there may be go on; Unavailable."""
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await reads.acquire()
        except TimeoutError as error:
            raise TimeoutError(f"{_READS_AT_ONCE} reads of it go on") from error
        try:
            self._check_open()
            yield
        finally:
            reads.release()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """While no other task of this process writes to SQLite's file."""
        with self._trusted(), translated(self.name):
            async with self._turn if self.is_sqlite else contextlib.nullcontext():
                self._check_open()
                if self._read_only:
                    await self._open_again()
                await self._end_old_reads()
                yield

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction that is committed at the end, or rolled back."""
        try:
            async with self.turn(), self._engine.connect() as connection:
                await connection.execution_options(**{_WRITES: True})
                async with connection.begin():
                    yield connection
                if self._file is not None and self._file.frames() >= _WAL_PAGES:
                    await self._shorten_journal(connection)
        except Corrupt as error:
            await self._check_damage(error)
            raise

    async def _check_damage(self, error: Corrupt) -> None:
        """Errors: Unavailable if SQLite took a failing disk for damage."""
        cause = error.__cause__
        if self._file is not None and isinstance(cause, DBAPIError):
            what = f"archive {self.name}"
            await asyncio.to_thread(check_damage, self._file.path, cause.orig, what)

    @contextlib.contextmanager
    def _trusted(self) -> Iterator[None]:
        """Errors: Unavailable once a sync failed, or if one fails in this block."""
        if self._file is None:
            yield
            return
        if self._file.is_suspect:
            self._file.check()
        try:
            yield
        except Unavailable as error:
            self._file.note(cause_of(error))
            raise

    async def _shorten_journal(self, connection: AsyncConnection) -> None:
        """Copy the journal into the file. Failures, except for a failed sync, are ignored: a later
        copy reports them again.

        Errors: sqlite3.Error.
        """
        try:
            await copy_journal(connection, "PASSIVE")
        except sqlite3.Error as error:
            if is_failed_sync(error):
                raise

    async def sync(self) -> None:
        """Make all commits survive a power loss. PostgreSQL does so on its own."""
        if self.is_sqlite:
            await self._copy_all(and_sync=True)

    async def _copy_all(self, *, and_sync: bool = False) -> None:
        async with self._turn:
            if self._read_only or self._old is not None:
                return  # nothing was written
            with self._trusted(), translated(self.name):
                self._check_open()
                if self._file is not None:  # a sync may have failed in another process
                    self._file.check()
                async with self._engine.connect() as connection:
                    is_left = await copy_journal(connection, "PASSIVE")
                    # What a reader keeps out of the file, the journal has: no write waits for it.
                    if is_left and and_sync and self._file is not None:
                        await asyncio.to_thread(sync_journal, self._file.path)

    async def scrub(self) -> str:
        """Remove deleted data from the file; returns "", or what is left to do.

        The whole file is written again, because older versions did not overwrite deleted data.
        """
        if not self.is_sqlite:
            return _VACUUM_BY_HAND
        async with self._turn:
            with self._trusted(), translated(self.name):
                self._check_open()
                await self._end_old_reads()
                async with self._engine.connect() as connection:
                    raw = await connection.get_raw_connection()
                    driver: Any = raw.driver_connection
                    await (await driver.execute("VACUUM")).close()
                    busy = await copy_journal(connection, "TRUNCATE")
        return _JOURNAL_BY_HAND if busy else ""

    async def give_back(self) -> None:
        """Write a file again of which a quarter is free: 1 s per 100 MB, in which nothing else is
        archived. PostgreSQL uses such room for later rows. Errors: Unavailable."""
        if not self.is_sqlite:
            return
        async with self.reading() as connection:
            free, pages = (await connection.execute(_FREE)).one()
        if free >= max(_FREE_PAGES_MIN, pages / 4):
            await self.scrub()

    async def now_ms(self, connection: AsyncConnection) -> Milliseconds:
        """The database's clock."""
        statement = _SQLITE_NOW if self.is_sqlite else _POSTGRES_NOW
        return int((await connection.execute(statement)).scalar_one())

    async def lock_blobs(self, connection: AsyncConnection, *, shared: bool) -> None:
        """Keep other transactions from discarding blobs, and unless `shared` from referring to any,
        until this one ends.

        Call it after locking the rows of boards. SQLite has one writer at a time anyway.
        """
        if not self.is_sqlite:
            lock = _BLOBS_SHARED if shared else _BLOBS_ALONE
            await connection.execute(lock, {"lock": _BLOBS_LOCK})

    def _check_open(self) -> None:
        """Errors: Unavailable once it was closed. A connection would open the files again, which
        then may belong to another process."""
        if self._is_closed:
            raise Unavailable(what=f"archive {self.name}", reason="it was closed")

    async def aclose(self) -> None:
        """Close every connection. A transaction that is under way ends first; none begins later."""
        with contextlib.ExitStack() as stack:
            if self._file is not None:
                stack.callback(self._file.close)
                with contextlib.suppress(BlackboardError):  # a sync that failed is in the log
                    await self._copy_all()
                if self._file.is_suspect:
                    stack.enter_context(kept_as_it_is(self._file.path))
            async with self._turn:
                self._is_closed = True
                for engine in filter(None, (self._old, self._engine)):
                    await engine.dispose()


def _given(*, is_sqlite: bool) -> FromClause:
    function = func.json_each if is_sqlite else func.json_array_elements_text
    parameter: Any = bindparam("given_keys")
    if not is_sqlite:
        parameter = text("CAST(:given_keys AS json)").bindparams(parameter)
    return function(parameter).table_valued("value", name="given")


def given_keys(keys: Sequence[Key]) -> dict[str, Any]:
    """The parameters that make `keys` the rows of `Database.given`."""
    return {"given_keys": json.dumps(list(keys))}


async def rows(
    connection: AsyncConnection, statement: Executable, given: dict[str, Any] | None = None
) -> Sequence[Any]:
    """All rows of a query; other accounts may run first (`turn`)."""
    await turn()
    return (await connection.execute(statement, given or {})).all()


async def add(
    connection: AsyncConnection, table: Table, new: Sequence[Row], *, replace: bool = False
) -> None:
    """Insert rows, all with the same columns in the same order; `replace` those with their keys.

    Not through SQLAlchemy's `insert`, which takes ten times as long for a row: values go to the
    driver as they are. SQLite gets many rows with one statement, because each step of a statement
    releases the interpreter lock and must get it back from a busy event loop.
    """
    if not new:
        return
    names = tuple(new[0])
    if connection.dialect.name != "sqlite":
        statement = _insert(table, names, 1, replace=replace, numbered=True)
        for start in range(0, len(new), _ROWS_AT_ONCE):
            some = [tuple(row.values()) for row in new[start : start + _ROWS_AT_ONCE]]
            await connection.exec_driver_sql(statement, some)
        return
    at = 0
    while at < len(new):
        # Powers of two, so that the same few statements stay prepared.
        size = min(_ROWS_AT_ONCE, 1 << (len(new) - at).bit_length() - 1)
        values = tuple(chain.from_iterable(row.values() for row in new[at : at + size]))
        statement = _insert(table, names, size, replace=replace, numbered=False)
        await connection.exec_driver_sql(statement, values)
        at += size


@lru_cache(maxsize=256)
def _insert(
    table: Table, names: tuple[str, ...], times: int, *, replace: bool, numbered: bool
) -> str:
    """`INSERT INTO ...` for `times` rows at once, with $1 or ? as places."""
    places = ", ".join(f"${n}" if numbered else "?" for n in range(1, len(names) + 1))
    values = ", ".join([f"({places})"] * times)
    statement = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {values}"
    if not replace:
        return statement
    keys = [column.name for column in table.primary_key]
    news = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
    return f"{statement} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {news}"


_ACTIVE: Final = text(
    "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')"
    " OR sql LIKE 'CREATE VIRTUAL%' OR sql LIKE '%GENERATED ALWAYS%' OR sql LIKE '% AS (%' LIMIT 1"
)
_TABLES: Final = text("SELECT name FROM sqlite_master WHERE type = 'table'")
_A_BOARD: Final = text("SELECT 1 FROM board LIMIT 1")
_SQLITE_NOW: Final = text("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)")
_POSTGRES_NOW: Final = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)")


_SETTINGS: Final = (
    "trusted_schema=OFF",  # a file's schema cannot call functions with side effects
    f"page_size={_PAGE_BYTES}",  # before journal_mode, which makes the file
    "journal_mode=WAL",
    "secure_delete=ON",  # deleted data is overwritten
    "synchronous=NORMAL",  # `sync` is called before the log is trimmed
    "wal_autocheckpoint=0",  # it would not report errors
    f"journal_size_limit={_WAL_PAGES * _PAGE_BYTES}",
)


async def _check_passive(connection: AsyncConnection, what: str) -> None:
    """A file may contain code that SQLite would run with our rights. Errors: Corrupt."""
    found = (await connection.execute(_ACTIVE)).first()
    if found is not None:
        reason = f"its schema is not that of an archive: {found[0]} {found[1]!r}"
        raise Corrupt(what=f"archive {what}", reason=reason)


def _make_tables(connection: Connection) -> None:
    """Make the tables that are missing, each with its indexes.

    SQLAlchemy would ask for one table at a time and compile every statement again, which took
    longer than all else that opens an archive in SQLite.
    """
    if connection.dialect.name != "sqlite":
        is_new = not inspect(connection).has_table("board")
        METADATA.create_all(connection)
        if is_new:  # a role that did not make the tables could not comment on them
            _write_format(connection)
        return
    present = set(connection.execute(_TABLES).scalars())
    if "board" not in present:
        _write_format(connection)
    for name, statements in _sqlite_schema().items():
        if name not in present:
            for statement in statements:
                connection.exec_driver_sql(statement)


def _convert(connection: Connection, name: str) -> None:
    """Bring an archive of an older format to today's. Errors: OlderFormat."""
    found, is_sqlite = _format(connection), connection.dialect.name == "sqlite"
    is_undated = found <= _UNDATED and _FIRST_MS not in _columns(connection)
    if is_undated:
        kind = "INTEGER" if is_sqlite else "BIGINT"
        connection.exec_driver_sql(_ADD_FIRST_MS.format(kind))
    _check_columns(connection, name)
    if is_sqlite:
        if 0 < found < FORMAT:
            log.info("archive %s: it gets format %d, for which it is read once", name, FORMAT)
        connection.exec_driver_sql(_INDEX_OF_LOGGED)
    if is_undated or (is_sqlite and found < FORMAT):
        _write_format(connection)


def _write_format(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version={FORMAT}")
    else:
        connection.exec_driver_sql(f"COMMENT ON TABLE board IS '{_MARK}{FORMAT_WITHOUT_LOGS}'")


def _check_format(connection: Connection, name: str) -> None:
    """Errors: NewerFormat. Call it before anything else is read or made."""
    found = _format(connection)
    if found > FORMAT:
        raise NewerFormat(f"archive {name}", found, FORMAT)


def _format(connection: Connection) -> int:
    """The mark of its format; 0 for an archive without one."""
    if connection.dialect.name == "sqlite":
        return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    mark = str(connection.execute(_POSTGRES_MARK).scalar_one() or "")
    number = mark.removeprefix(_MARK)
    return int(number) if mark.startswith(_MARK) and number.isdecimal() else 0


def _columns(connection: Connection) -> set[tuple[str, str]]:
    """The tables and their columns."""
    is_sqlite = connection.dialect.name == "sqlite"
    rows = connection.execute(_SQLITE_COLUMNS if is_sqlite else _POSTGRES_COLUMNS)
    return {(table, column) for table, column in rows}


def _check_columns(connection: Connection, name: str) -> None:
    """Errors: OlderFormat when a table lacks a column, as in an archive from before the marks.

    Otherwise the first statement that uses it would fail, and each later one, as if a further
    attempt could help.
    """
    present = _columns(connection)
    missing = [
        f"{table.name}.{column.name}"
        for table in METADATA.sorted_tables
        for column in table.columns
        if (table.name, column.name) not in present
    ]
    if missing:
        raise OlderFormat(f"archive {name}", _format(connection), FORMAT, ", ".join(missing))


@cache
def _sqlite_schema() -> dict[str, tuple[str, ...]]:
    """What makes each table and its indexes in SQLite."""
    dialect = SqliteDialect()
    made: dict[str, tuple[str, ...]] = {}
    for table in METADATA.sorted_tables:
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        items: tuple[DDLElement, ...] = (CreateTable(table), *map(CreateIndex, indexes))
        made[table.name] = tuple(str(item.compile(dialect=dialect)) for item in items)
    return made


def _make_file(url: URL, made: list[TrustedFile]) -> None:
    """Make SQLite's file, if it is missing, for its owner only; its journals get the same mode. Add
    it to `made`; nothing for another kind of database."""
    if url.drivername != DRIVERS["sqlite"]:
        return
    file, what = Path(url.database or ""), f"archive {url.render_as_string(hide_password=True)}"
    if not file.parent.is_dir():  # SQLite would only report that it cannot open the file
        raise Unavailable(what=what, reason=f"there is no directory {file.parent}")
    try:
        make_file(file)
    except OSError as error:
        raise Unavailable(what=what, reason=str(error)) from error
    made.append(TrustedFile(file, what))


def _engine(url: URL, timeout_ms: Milliseconds, *, read_only: bool = False) -> AsyncEngine:
    """With `read_only`, SQLite makes no files beside the database."""
    timeout_s = timeout_ms / 1000
    bounds = {"pool_size": _CONNECTIONS, "max_overflow": 0, "pool_timeout": timeout_s}
    if url.drivername.startswith("sqlite"):
        if read_only:
            file = Path(url.database or "").absolute().as_uri()
            url = url.set(database=file, query={"mode": "ro", "immutable": "1", "uri": "true"})
        (place,), settings = SqliteDialect().create_connect_args(url)
        creator = partial(connect, place, {"timeout": timeout_s, **settings})
        engine = create_async_engine(url, async_creator=creator, **bounds)
        set_up = _set_up_to_read if read_only else _set_up_sqlite
        event.listen(engine.sync_engine, "connect", set_up)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        event.listen(engine.sync_engine, "handle_error", _keep_cancelled_sqlite)
        return engine
    arguments = {"timeout": timeout_s, "command_timeout": 12 * timeout_s}
    return create_async_engine(url, connect_args=arguments, pool_pre_ping=True, **bounds)


def _set_up_sqlite(connection: Any, record: Any) -> None:
    _set_up(connection, record, _SETTINGS)


def _set_up_to_read(connection: Any, record: Any) -> None:
    _set_up(connection, record, _SETTINGS[:1])


def _set_up(connection: Any, record: Any, settings: Sequence[str]) -> None:
    connection.isolation_level = None  # the driver would begin transactions by itself, too late
    try:
        cursor = connection.cursor()
        cursor.execute(f"SELECT {METER_FUNCTION}()")
        record.info[_METER] = meter_of(cursor.fetchone()[0])
        for setting in settings:
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()
    except BaseException:  # it has a thread, and nothing else would close it
        connection.close()
        raise


def _is_without_room(error: Unavailable) -> bool:
    return is_without_room(cause_of(error))


def _checked_out(engine: AsyncEngine) -> int:
    """How many connections of its pool are in use."""
    pool: Any = engine.pool
    return int(pool.checkedout())


def _keep_cancelled_sqlite(context: ExceptionContext) -> None:
    """Roll a cancelled transaction back instead of discarding its connection.

    SQLite closes a connection only after its last statement. The traceback keeps the cancelled
    statement alive until the next garbage collection, and with it the lock on the whole file.
    """
    if isinstance(context.original_exception, asyncio.CancelledError):
        context.is_disconnect = False


def _begin_sqlite(connection: Any) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
