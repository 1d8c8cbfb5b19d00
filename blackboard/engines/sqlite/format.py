"""The format of a board's file: that its schema is ours, and how an older format becomes today's.

A file can contain code: a trigger, a view in place of a table, a generated column. SQLite would run
it with our rights at the next statement, or it would make every transaction fail. So the schema is
compared with ours before anything else in the file is read.

An older file is converted in place, in one transaction. Up to format 6 there were no sums over its
entries (tables `tablet` and `usage`, column `weight`), whose rows counted in the checksum of the
head. Up to format 5 the value of each entry was in its row, also if the log had it. Formats 3 and 4
had every commit in their tables: there was no mark below the end of the log. The rows of a large
commit were first written to a side table, `owed`, of which each replaced the row of `entry` with
its key. Format 3 had no column `first_ms` in these two tables.
"""

import re
import sqlite3
from functools import cache
from importlib.resources import files
from typing import Final

from blackboard.core.commit import Entry
from blackboard.engines.sqlite.rows import (
    ALL_COLUMNS,
    ENTRY,
    LOADED,
    FirstSums,
    Row,
    ValuesInLog,
    checksum,
    weigh,
)
from blackboard.engines.sqlite.tablets import FIRST, WEIGHT_MODULUS
from blackboard.errors import Corrupt
from blackboard.limits import RESTORE_BYTES_MAX

_LENGTH_MAX: Final = 8 * RESTORE_BYTES_MAX
"""Bytes of a row: the largest is the log entry of a restore, with its keys. A row that claims to be
larger is not ours, and is refused before memory is allocated for it."""
_BY_SQLITE: Final = frozenset(
    {
        ("table", "sqlite_stat1", "create table sqlite_stat1(tbl,idx,stat)"),
        ("table", "sqlite_stat4", "create table sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"),
    }
)
"""Tables that ANALYZE and PRAGMA optimize make, for instance in an operator's shell."""

_Object = tuple[str, str, str]
"""Type, name, and the statement that made it, without comments and line ends."""

FORMAT: Final = 7
"""Of the schema; `user_version` of a file."""
OLDEST_FORMAT: Final = 3
"""The oldest format that can be converted."""
_OLDER: Final = """
    DROP TABLE head;
    CREATE TABLE head (
        board    TEXT    NOT NULL PRIMARY KEY,
        revision INTEGER NOT NULL,
        time_ms  INTEGER NOT NULL,
        oldest   INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        clean    INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE owed (
        key             TEXT    NOT NULL PRIMARY KEY,
        value           BLOB    NOT NULL,
        mod_revision    INTEGER NOT NULL,
        create_revision INTEGER NOT NULL,
        author          TEXT    NOT NULL,
        time_ms         INTEGER NOT NULL,
        expires_at_ms   INTEGER,
    first_ms        INTEGER
    );
"""
"""The difference of the schema of format 4 from that of format 5."""
_WITHOUT_SUMS: Final = 6
"""The last format without sums over its entries."""
_WEIGHT: Final = ",\n    weight          INTEGER"
"""The column that it lacks."""
_SUMS: Final = ("tablet", "usage")
"""The tables that it lacks."""
_VALUES_IN_ROWS: Final = 5
"""The last format whose entries have their values in their rows."""
_IN_LOG: Final = ",\n    place           INTEGER,\n    size            INTEGER"
"""The columns that it lacks, and an index."""
_WITHOUT_MARK: Final = 4
"""The last format without a mark."""
_UNDATED: Final = 3
_FIRST_MS: Final = ",\n    first_ms        INTEGER"
"""The column that format 3 lacks, as both texts have it."""
_COLUMNS: Final = ", ".join(ENTRY.columns)
_SOME: Final = f"SELECT {ALL_COLUMNS} FROM entry WHERE key > ? ORDER BY key LIMIT 1024"
_MOVE: Final = f"INSERT OR REPLACE INTO entry ({_COLUMNS}) SELECT {_COLUMNS} FROM owed"


def foreign_to(connection: sqlite3.Connection, version: int) -> str | None:
    """The first difference between a file's schema and that of the format `version`."""
    schema = schema_text()
    if version <= _WITHOUT_SUMS:
        schema = schema.replace(_WEIGHT, "")
        for table in _SUMS:
            schema = schema.replace(_statement(f"TABLE {table}"), "")
    if version <= _VALUES_IN_ROWS:
        schema = schema.replace(_IN_LOG, "").replace(_statement("INDEX entry_in_log"), "")
    if version <= _WITHOUT_MARK:
        schema += _OLDER
    if version <= _UNDATED:
        schema = schema.replace(_FIRST_MS, "")
    return foreign_object(connection, schema)


def convert(connection: sqlite3.Connection, version: int) -> None:
    """Convert a file of an older format, whose schema and journal were checked, or leave it as it
    is.

    Cost: about 10 us per entry. Errors: Corrupt when its content is not what was written;
    sqlite3.Error.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        _convert(connection, version)
    except BaseException:
        connection.rollback()
        raise
    connection.execute("COMMIT")


def _convert(connection: sqlite3.Connection, version: int) -> None:
    [(found,)] = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise Corrupt(what="its pages", reason=found)
    board, *place, kept, clean = connection.execute("SELECT * FROM head").fetchone()
    if version <= _UNDATED:
        for table in ("entry", "owed"):
            connection.execute(f"ALTER TABLE {table} ADD first_ms INTEGER")
    if version <= _WITHOUT_MARK:
        connection.execute(_MOVE)
    if version <= _VALUES_IN_ROWS:
        for column in ("place", "size"):
            connection.execute(f"ALTER TABLE entry ADD {column} INTEGER")
        connection.execute(_statement("INDEX entry_in_log"))
    connection.execute("ALTER TABLE entry ADD weight INTEGER")
    sums, entries = _weighed(connection)
    # The old checksum is checked first: the new one would make damage look right.
    weight = _weight(connection)
    if (weight + entries + weigh(tuple(place))) % WEIGHT_MODULUS != kept:
        raise Corrupt(what=f"format {version}", reason="its tables do not add up")
    if version <= _WITHOUT_MARK:
        place.append(place[0])
        connection.execute("DROP TABLE owed")
        # Made again: ALTER TABLE could add `log_end` only at the end, and schemas are compared as
        # text.
        connection.execute("DROP TABLE head")
        connection.execute(_statement("TABLE head"))
        connection.execute(
            "INSERT INTO head VALUES (?, ?, ?, ?, ?, ?, ?)", (board, *place, kept, clean)
        )
    for table in _SUMS:
        connection.execute(_statement(f"TABLE {table}"))
    for statement, rows in sums.rows():
        connection.executemany(statement, rows)
        weight += sum(map(weigh, rows))
    revision, time_ms, oldest, log_end = place
    head = checksum(weight, revision, time_ms, oldest, log_end)
    connection.execute("UPDATE head SET checksum = ?", (head,))
    connection.execute(f"PRAGMA user_version={FORMAT}")


def _weight(connection: sqlite3.Connection) -> int:
    """The weight of all rows but those of the log, the head and the entries."""
    queries = ("SELECT * FROM epoch", *(table.select for table in LOADED))
    return sum(weigh(row) for query in queries for row in connection.execute(query))


def _weighed(connection: sqlite3.Connection) -> tuple[FirstSums, int]:
    """Add their weights to the rows of all entries; returns the sums over them, and what they weigh
    together."""
    held, sums, total, after = ValuesInLog(connection), FirstSums(), 0, FIRST
    while rows := connection.execute(_SOME, (after,)).fetchall():
        weights: list[Row] = []
        for row in rows:
            whole = held.whole(row)
            entry, weight = Entry(*whole), weigh(whole)
            sums.add(entry, weight)
            weights.append((weight, entry.key))
            total += weight
        connection.executemany("UPDATE entry SET weight = ? WHERE key = ?", weights)
        after = rows[-1][0]
    return sums, total


def _statement(made: str) -> str:
    """The statement that makes one of our tables, or an index."""
    text = schema_text()
    begin = text.index(f"CREATE {made} ")
    return text[begin : text.index(";", begin)]


def schema_text() -> str:
    """The statements that make the tables of a board's file."""
    return files("blackboard.engines.sqlite").joinpath("schema.sql").read_text(encoding="utf-8")


def distrust(connection: sqlite3.Connection) -> None:
    """Keep a file's schema from calling functions with side effects, and from taking more memory
    than our rows need."""
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH_MAX)


def foreign_object(connection: sqlite3.Connection, schema: str) -> str | None:
    """The first difference between a file's schema and that which the statements `schema` make;
    None if they are the same."""
    found, ours = _objects(connection), _made_by(schema)
    odd = sorted(found - ours - _BY_SQLITE) or sorted(ours - found)
    if not odd:
        return None
    kind, name, _ = odd[0]
    return f"{kind} {name!r}"


@cache
def _made_by(schema: str) -> frozenset[_Object]:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(schema)
        return frozenset(_objects(connection))
    finally:
        connection.close()


def _objects(connection: sqlite3.Connection) -> set[_Object]:
    """Indexes that belong to a table's keys have no statement of their own."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master")
    return {(str(kind), str(name), _plain(text or "")) for kind, name, text in rows}


def _plain(statement: str) -> str:
    """Remove comments to the end of a line. Our statements have no other comments, nor quotes that
    could contain one."""
    text = re.sub(r"--[^\n]*", "", str(statement)).lower()
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(text.split()))  # a column was added, or not
