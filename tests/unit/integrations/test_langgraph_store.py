"""A batch of the store: one commit, or nothing."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from langgraph.store.base import PutOp

import blackboard
from blackboard import Board
from blackboard.errors import LimitExceeded
from blackboard.integrations.langgraph import BlackboardStore
from blackboard.limits import OPERATIONS_MAX


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board."""
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        yield client.board("graphs")


def puts(count: int, size: int) -> list[PutOp]:
    """So many items with a text of that size."""
    return [PutOp(("n",), f"k{number}", {"text": "x" * size}) for number in range(count)]


@pytest.mark.parametrize(("count", "size"), [(OPERATIONS_MAX // 2, 1), (4, 890_000)])
async def test_a_batch_is_one_commit(board: Board, count: int, size: int) -> None:
    """Of as many puts, and of as many bytes, as a commit takes."""
    await board.put("public/x", 1)
    before = await board.head()
    await BlackboardStore(board).abatch(puts(count, size))
    assert (await board.head()).revision == before.revision + 1


@pytest.mark.parametrize(
    ("count", "size", "limit"),
    [(OPERATIONS_MAX // 2 + 1, 1, "OPERATIONS_MAX"), (5, 890_000, "COMMIT_BYTES_MAX")],
)
async def test_of_a_batch_that_no_commit_takes_nothing_is_stored(
    board: Board, count: int, size: int, limit: str
) -> None:
    """Nor are the files of its large items put and removed again."""
    await board.put("public/x", 1)
    before = await board.head()
    large = PutOp(("n",), "large", {"text": "x" * 1_500_000})
    with pytest.raises(LimitExceeded, match=limit):
        await BlackboardStore(board).abatch([large, *puts(count, size)])
    assert (await board.head()).revision == before.revision


@pytest.mark.parametrize("value", [{"$redacted": True}, [["one", "two"]], [1.0], None])
async def test_what_is_no_vector_ends_no_search(board: Board, value: object) -> None:
    """Redacted, and back after a restore, or put by hand: the item counts as one without any."""

    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 0.0] for _ in texts]

    store = BlackboardStore(board, index={"dims": 2, "embed": embed})
    await store.abatch(puts(2, 1))
    [first, _] = (await board.list("public/langgraph-store/v/**")).entries
    await board.put(first.key, value)
    found = await store.asearch(("n",), query="x")
    assert [(item.key, item.score) for item in found] == [("k1", 1.0), ("k0", None)]
