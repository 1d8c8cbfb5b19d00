"""Adapters read more than one answer has room for, from a real service."""

from collections.abc import AsyncIterator, Sequence

import pytest
from langgraph.store.base import PutOp

import blackboard
from blackboard import Board
from blackboard.errors import LimitExceeded
from blackboard.integrations.langgraph import BlackboardStore
from blackboard.integrations.reading import read_entries
from blackboard.limits import FRAME_BYTES_MAX
from blackboard.types import Entry
from tests.serving import Served

LARGE = "x" * 800_000
MANY = FRAME_BYTES_MAX // len(LARGE) + 2


@pytest.fixture
async def board(served: Served) -> AsyncIterator[Board]:
    """Over a WebSocket: an answer is one message."""
    async with blackboard.connect(served.url, token=served.token()) as client:
        yield client.board("main")


async def test_many_large_entries_are_read_in_several_requests(board: Board) -> None:
    """Whose number is small: what did not fit is not tried again."""
    keys = [f"public/{number}" for number in range(MANY)]
    for key in keys:
        await board.put(key, LARGE)
    requests = []

    async def read(some: Sequence[str]) -> dict[str, Entry]:
        requests.append(len(some))
        return await board.entries(some)

    with pytest.raises(LimitExceeded, match="FRAME_BYTES_MAX"):
        await board.entries(keys)
    found = await read_entries(read, ["public/none", *keys])
    assert list(found) == keys
    assert requests[0] == MANY + 1
    assert len(requests) <= 4


@pytest.mark.parametrize(
    ("limit", "keys"), [("SEGMENT_BYTES_MAX", ["public/a", "public/b"]), ("FRAME_BYTES_MAX", ["a"])]
)
async def test_what_fewer_keys_do_not_mend_is_an_error(limit: str, keys: Sequence[str]) -> None:
    """Another limit, or one key alone: there is one request."""
    requests = []

    async def read(some: Sequence[str]) -> dict[str, Entry]:
        requests.append(some)
        raise LimitExceeded(limit, 2, 1)

    with pytest.raises(LimitExceeded, match=limit):
        await read_entries(read, keys)
    assert requests == [keys]


async def test_many_large_items_of_langgraph_are_removed_at_once(board: Board) -> None:
    store = BlackboardStore(board)
    for number in range(MANY):
        await store.aput(("large",), str(number), {"text": LARGE})
    await store.abatch([PutOp(("large",), str(number), None) for number in range(MANY)])
    assert await store.asearch(("large",)) == []
