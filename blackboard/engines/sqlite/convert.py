"""Brings a board's file of an older format up to date, in place, in one transaction.

Up to format 5 the value of each entry was in its row, also if the log had it. Formats 3 and 4 had
every commit in their tables: there was no mark below the end of the log. The rows of a large commit
were first written to a side table, `owed`, of which each replaced the row of `entry` with its key.
Format 3 had no column `first_ms` in these two tables.
"""

import sqlite3
from typing import Final

from blackboard.engines.sqlite.rows import CHECKSUM_MODULUS, ENTRY, TABLES, Row, checksum, weigh
from blackboard.engines.sqlite.schema import foreign_object, schema_text
from blackboard.errors import Corrupt

FORMAT: Final = 6
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
_MOVE: Final = f"INSERT OR REPLACE INTO entry ({_COLUMNS}) SELECT {_COLUMNS} FROM owed"


def foreign_to(connection: sqlite3.Connection, version: int) -> str | None:
    """The first difference between a file's schema and that of the format `version`."""
    schema = schema_text()
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

    Cost: about 5 us per entry. Errors: Corrupt when its content is not what was written;
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
    # The old checksum is checked first: the new one would make damage look right.
    weight = _weight(connection)
    if (weight + weigh(tuple(place))) % CHECKSUM_MODULUS != kept:
        raise Corrupt(what=f"format {version}", reason="its tables do not add up")
    if version <= _WITHOUT_MARK:
        revision, time_ms, oldest = place
        head: Row = (*place, revision, checksum(weight, revision, time_ms, oldest, revision), clean)
        connection.execute("DROP TABLE owed")
        # Made again: ALTER TABLE could add `log_end` only at the end, and schemas are compared as
        # text.
        connection.execute("DROP TABLE head")
        connection.execute(_statement("TABLE head"))
        connection.execute("INSERT INTO head VALUES (?, ?, ?, ?, ?, ?, ?)", (board, *head))
    for column in ENTRY.stored:
        connection.execute(f"ALTER TABLE entry ADD {column} INTEGER")
    connection.execute(_statement("INDEX entry_in_log"))
    connection.execute(f"PRAGMA user_version={FORMAT}")


def _weight(connection: sqlite3.Connection) -> int:
    """The weight of all rows but those of the log and the head."""
    queries = ("SELECT * FROM epoch", *(table.select for table in TABLES))
    return sum(weigh(row) for query in queries for row in connection.execute(query))


def _statement(made: str) -> str:
    """The statement that makes one of our tables, or an index."""
    text = schema_text()
    begin = text.index(f"CREATE {made} ")
    return text[begin : text.index(";", begin)]
