"""What the tests of each framework share; each runs in an environment of its own."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import blackboard
from blackboard import Board
from tests.snippets import served


@dataclass(frozen=True)
class Service:
    """A service of this test's own, and its operator's token."""

    url: str
    token: str


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """All async tests and fixtures run on asyncio."""
    return "asyncio"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service on a free port of loopback."""
    async with served(tmp_path / "service") as found:
        yield Service(**found)


@pytest.fixture
async def board(service: Service) -> AsyncIterator[Board]:
    """The board `main` of that service, over a WebSocket, as its operator."""
    async with blackboard.connect(service.url, token=service.token) as client:
        yield client.board("main")


@pytest.fixture
def stranger(board: Board) -> Board:
    """The same board with the rights of an agent that is nobody's friend."""
    return board.as_agent("mallory")
