"""Checks that a SQLite file has the tables of our schema, and nothing else.

A file can contain code: a trigger, a view in place of a table, a generated column. SQLite would run
it with our rights at the next statement, or it would make every transaction fail. So the schema is
compared with ours before anything else in the file is read.
"""

import re
import sqlite3
from functools import cache
from importlib.resources import files
from typing import Final

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
