"""One of several processes that add to one session, and pop from another, at once."""

from typing import Any

from blackboard import Board
from blackboard.integrations.openai_agents import BlackboardSession
from tests.frameworks.shared import worker

ITEMS = 20


async def work(board: Board, number: int) -> list[Any]:
    """Add pairs of items; then take what is there, until nothing is. Returns what it took."""
    session = BlackboardSession("thread", board)
    for index in range(ITEMS):
        pair = [{"role": role, "content": f"{number}.{index}"} for role in ("user", "assistant")]
        await session.add_items(pair)
    taken = []
    queue = BlackboardSession("queue", board)
    while (item := await queue.pop_item()) is not None:
        taken.append(item)
    return taken


if __name__ == "__main__":
    worker(work)
