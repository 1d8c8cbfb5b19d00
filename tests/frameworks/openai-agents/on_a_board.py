"""A pytest plugin: the SDK's own tests get our session where they ask for a SQLiteSession.

They run in any loop and any thread, and with `Runner.run_sync`, so the board is synchronous.
"""

import tempfile
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from typing import Any

import pytest

import blackboard
from blackboard.integrations.openai_agents import BlackboardSession

_boards: dict[str, blackboard.sync.Board] = {}
_numbers = count()


class SessionOfTheirTests(BlackboardSession):
    """Made as a SQLiteSession is: a file's path stands for a board, ":memory:" for a new one."""

    def __init__(self, session_id: str, db_path: Any = ":memory:", **named: Any) -> None:
        name = str(db_path) if str(db_path) != ":memory:" else f"memory {next(_numbers)}"
        board = _boards.setdefault(name, _client.board(f"board-{len(_boards)}"))
        super().__init__(session_id, board, **named)

    def close(self) -> None:
        """Nothing is to be closed."""


_folder = tempfile.TemporaryDirectory()
_client = blackboard.sync.open(_folder.name, level="memory")
vars(import_module("agents"))["SQLiteSession"] = SessionOfTheirTests


@pytest.fixture(scope="session", autouse=True)
def _closed_at_the_end() -> Iterator[None]:
    yield
    _client.close()
    _folder.cleanup()
