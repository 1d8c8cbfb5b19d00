"""The archive's tables."""

from sqlalchemy import create_mock_engine
from sqlalchemy.schema import SchemaItem

from blackboard.archive.tables import BOARD, METADATA, OF_A_BOARD


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
