"""Files that somebody prepared: refused at once, by name, before anything in them is run."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import blackboard
from blackboard.core.commit import Epoch
from blackboard.engines.sqlite import format as schema
from blackboard.engines.sqlite.format import FORMAT, distrust, foreign_to
from blackboard.engines.sqlite.new import create
from blackboard.errors import Corrupt
from tests.waiting import TIMEOUT_S

CRAFTED = {
    "a trigger that writes": (
        "CREATE TRIGGER t AFTER INSERT ON entry BEGIN"
        " UPDATE entry SET value = x'a465766921' WHERE key = 'public/a'; END",
    ),
    "a trigger that calls": (
        "CREATE TRIGGER t AFTER INSERT ON log BEGIN SELECT load_extension('elsewhere'); END",
    ),
    "a trigger that never ends": (
        "CREATE TRIGGER t AFTER UPDATE ON head BEGIN SELECT count(*) FROM"
        " (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n); END",
    ),
    "a view in place of a table": (
        "ALTER TABLE entry RENAME TO hidden",
        "CREATE VIEW entry AS SELECT * FROM hidden",
    ),
    "a view that never ends": (
        "ALTER TABLE tombstone RENAME TO hidden",
        "CREATE VIEW tombstone AS WITH RECURSIVE n(i) AS"
        " (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        " SELECT 'k' || i AS key, i AS revision, 'a' AS author FROM n",
    ),
    "a generated column": (
        "ALTER TABLE entry ADD COLUMN more GENERATED ALWAYS AS (hex(zeroblob(9999999)))",
    ),
    "a default that calls": ("ALTER TABLE head ADD COLUMN more TEXT DEFAULT 'x'",),
    "an index that calls": ("CREATE INDEX i ON entry (hex(value))",),
    "a virtual table": ("CREATE VIRTUAL TABLE more USING fts5(a)",),
    "another table": ("CREATE TABLE more (a)",),
    "a table that is gone": ("DROP TABLE tombstone",),
}


def spoil(path: Path, *statements: str) -> None:
    """Do as somebody would who can write the file."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


async def make(top: Path) -> None:
    """A board with an archive."""
    async with blackboard.open(top) as client:
        board = client.board("main")
        await board.put("public/a", 1)
        await board.checkpoint("first")


@pytest.mark.parametrize("craft", CRAFTED)
async def test_a_crafted_board_is_refused_at_once(tmp_path: Path, craft: str) -> None:
    """Reading and writing: Corrupt, naming what does not belong there; other boards go on."""
    await make(tmp_path)
    spoil(tmp_path / "boards" / "main.db", *CRAFTED[craft])
    async with asyncio.timeout(TIMEOUT_S), blackboard.open(tmp_path) as client:
        with pytest.raises(Corrupt, match=r"main\.db.*its schema is not that of a board"):
            await client.board("main").get("public/a")
        with pytest.raises(Corrupt, match="its schema is not that of a board"):
            await client.board("main").put("public/b", 2)
        await client.board("other").put("public/b", 2)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON version BEGIN SELECT load_extension('elsewhere'); END",
        "CREATE VIEW more AS SELECT 1",
        "CREATE VIRTUAL TABLE more USING fts5(a)",
        "ALTER TABLE version ADD COLUMN more GENERATED ALWAYS AS (hex(position))",
    ],
)
async def test_a_crafted_archive_is_refused_at_once(tmp_path: Path, statement: str) -> None:
    """Opening says so."""
    await make(tmp_path)
    spoil(tmp_path / "archive.db", statement)
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(Corrupt, match="its schema is not that of an archive"):
            async with blackboard.open(tmp_path):
                pass


async def test_a_row_that_claims_more_than_any_of_ours_is_refused(tmp_path: Path) -> None:
    """Before there is memory for it."""
    await make(tmp_path)
    size = schema._LENGTH_MAX + 1
    spoil(tmp_path / "boards" / "main.db", f"UPDATE entry SET value = zeroblob({size})")
    async with blackboard.open(tmp_path) as client:
        with pytest.raises(Corrupt, match="too big"):
            await client.board("main").get("public/a")


async def test_what_an_operators_shell_leaves_is_no_harm(tmp_path: Path) -> None:
    """ANALYZE makes a table of its own."""
    await make(tmp_path)
    spoil(tmp_path / "boards" / "main.db", "ANALYZE")
    async with blackboard.open(tmp_path) as client:
        assert await client.board("main").get("public/a") == 1


def opened(path: Path) -> sqlite3.Connection:
    """A new board's file, by SQLite alone."""
    create(path, "main", Epoch(1, "e"), 0)
    return sqlite3.connect(path, isolation_level=None)


def test_comments_and_lines_do_not_matter(tmp_path: Path) -> None:
    """A file that an older version made with other comments is the same."""
    connection = opened(tmp_path / "main.db")
    assert foreign_to(connection, FORMAT) is None
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute(
        "UPDATE sqlite_master SET sql = replace(sql, char(10), ' -- remark' || char(10))"
    )
    assert foreign_to(connection, FORMAT) is None
    connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'revision', 'version')")
    assert foreign_to(connection, FORMAT) is not None
    connection.close()


def _calls(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE VIEW more AS SELECT load_extension('elsewhere')")
    connection.execute("SELECT * FROM more").fetchall()


def _allocates(connection: sqlite3.Connection) -> None:
    connection.execute(f"SELECT zeroblob({schema._LENGTH_MAX + 1})").fetchall()


@pytest.mark.parametrize("act", [_calls, _allocates])
def test_a_connection_does_not_trust_its_file(
    tmp_path: Path, act: Callable[[sqlite3.Connection], None]
) -> None:
    """Were something overlooked, it would still have no effects."""
    connection = opened(tmp_path / "main.db")
    distrust(connection)
    with pytest.raises(sqlite3.Error, match=r"unsafe use|not authorized|too big"):
        act(connection)
    connection.close()
