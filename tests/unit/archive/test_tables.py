"""The archive's tables."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, create_mock_engine
from sqlalchemy.schema import SchemaItem

from blackboard.archive.database import Database
from blackboard.archive.tables import BOARD, COMMIT, METADATA, OF_A_BOARD


def schema(file: Path) -> set[tuple[str, str]]:
    """What a file has: names, and what made them."""
    with closing(sqlite3.connect(file)) as database:
        return set(database.execute("SELECT name, sql FROM sqlite_master"))


def as_sqlalchemy_makes_it(file: Path) -> set[tuple[str, str]]:
    """The schema of a file that SQLAlchemy made all tables in."""
    engine = create_engine(f"sqlite:///{file}")
    METADATA.create_all(engine)
    engine.dispose()
    return schema(file)


def statements(url: str) -> str:
    """What makes the tables in a database of that kind."""
    found: list[str] = []

    def note(item: SchemaItem, *_: object, **__: object) -> None:
        found.append(str(item.compile(dialect=engine.dialect)))  # type: ignore[attr-defined]

    engine = create_mock_engine(url, note)
    METADATA.create_all(engine, checkfirst=False)
    return "\n".join(found)


def test_every_table_of_a_board_goes_with_it() -> None:
    """Nothing is forgotten when a board is replaced."""
    assert {*OF_A_BOARD, BOARD} == set(METADATA.tables.values())
    assert all("board" in table.c for table in OF_A_BOARD)


def test_names_sort_by_their_bytes() -> None:
    """PostgreSQL would sort them by the rules of a language; SQLite does it by itself."""
    made = statements("postgresql+asyncpg://")
    for column in ("key", "namespace", "agent", "name", "prefix"):
        assert f'{column} VARCHAR COLLATE "C"' in made
    assert "COLLATE" not in statements("sqlite://")
    assert statements("sqlite://").count("WITHOUT ROWID") == 8


@pytest.mark.parametrize("missing", ["nothing", "a table", "everything"])
async def test_a_file_gets_the_tables_that_it_lacks(tmp_path: Path, missing: str) -> None:
    """Each with its indexes, as SQLAlchemy would make them; what is there stays."""
    wanted = as_sqlalchemy_makes_it(tmp_path / "wanted.db")
    file = tmp_path / "archive.db"
    if missing != "everything":
        assert as_sqlalchemy_makes_it(file) == wanted
    if missing == "a table":
        with closing(sqlite3.connect(file)) as database:
            database.execute(f"DROP TABLE {COMMIT.name}")
        assert len(schema(file)) == len(wanted) - 1 - len(COMMIT.indexes)
    for _ in range(2):
        opened = await Database.open(f"sqlite:///{file}")
        await opened.aclose()
        ours = {each for each in schema(file) if each[0] == "version_in_log"}
        assert schema(file) - ours == wanted
        assert len(ours) == 1
