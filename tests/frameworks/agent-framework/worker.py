"""One of several processes that save checkpoints of one workflow at once."""

from typing import Any

from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException

from blackboard import Board
from blackboard.integrations.agent_framework import BlackboardCheckpointStorage
from tests.frameworks.shared import worker

CHECKPOINTS = 20


async def work(board: Board, number: int) -> Any:
    """Save a line of checkpoints, and one whose id the other worker uses, too; who got that."""
    storage = BlackboardCheckpointStorage(board)
    refused = []
    for index in range(CHECKPOINTS):
        checkpoint = WorkflowCheckpoint("w", "hash", state={"of": number})
        await storage.save(checkpoint)
        contested = WorkflowCheckpoint("c", "hash", f"id-{index}", state={"of": number})
        try:
            await storage.save(contested)
        except WorkflowCheckpointException:
            refused.append(index)
    return refused


if __name__ == "__main__":
    worker(work)
