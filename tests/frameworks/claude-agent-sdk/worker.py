"""One of several processes that append to one transcript at once."""

from typing import Any

from blackboard import Board
from blackboard.integrations.claude_agent_sdk import BlackboardSessionStore
from tests.frameworks.shared import worker

LINES = 15


async def work(board: Board, number: int) -> Any:
    """Append lines with titles; returns how many, with the repeated one that is stored once."""
    store = BlackboardSessionStore(board)
    for index in range(LINES):
        line: Any = {"type": "user", "uuid": f"{number}-{index}", "cwd": f"/{number}/{index}"}
        shared: Any = {"type": "user", "uuid": f"both-{index}"}
        await store.append({"project_key": "p", "session_id": "s"}, [line, shared])
    return LINES


if __name__ == "__main__":
    worker(work)
