"""One of several processes that continue one conversation at once."""

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.models.test import TestModel

from blackboard import Board
from blackboard.integrations.pydantic_ai import BlackboardConversationStore
from tests.frameworks.shared import worker

TURNS = 8


async def work(board: Board, number: int) -> Any:
    """Save turns, each loaded again after a conflict; returns how many were refused."""
    store, agent, refused = BlackboardConversationStore(board), Agent(TestModel()), 0
    for index in range(TURNS):
        while True:
            loaded = await store.load("c") or Conversation(conversation_id="c")
            try:
                await store.save(await agent.run(f"{number}.{index}", conversation=loaded))
                break
            except ConversationConflict:
                refused += 1
    return refused


if __name__ == "__main__":
    worker(work)
