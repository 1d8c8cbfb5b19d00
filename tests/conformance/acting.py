"""Agents for tests of the runtime: small ones, whose step is given as a function."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pydantic import BaseModel, Field

from blackboard.client.board import Board
from blackboard.runtime.agent import Agent
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.context import Context
from blackboard.runtime.runner import Runner


class Notes(BaseModel):
    """What such an agent knows."""

    count: int = Field(default=0, ge=0)
    seen: list[str] = []


Body = Callable[[Context[Notes]], Awaitable[None]]


class Actor(Agent[Notes]):
    """Takes the step that it was given."""

    def __init__(self, name: str, body: Body) -> None:
        super().__init__(name)
        self.body = body

    async def step(self, ctx: Context[Notes]) -> None:
        """That step."""
        await self.body(ctx)


def runner(board: Board, body: Body) -> Runner[Notes]:
    """A process that begins: it knows the name of the agent, and nothing else."""
    return Runner(Actor(board.agent, body), LiveBoardPort(board))


async def notes_of(board: Board) -> Notes:
    """The state of the agent of `board`, as a process that begins finds it."""

    async def nothing(_: Context[Notes]) -> None: ...

    return (await runner(board, nothing).hydrate())[0]


@dataclass
class Tool:
    """A tool that keeps count of its calls, by argument and idempotency key."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    """Raised by the first calls, one each."""

    async def look(self, what: str, *, idempotency_key: str = "") -> str:
        """Look something up."""
        self.calls.append((what, idempotency_key))
        if self.failures:
            raise self.failures.pop(0)
        return f"{what}!"

    @property
    def keys(self) -> list[str]:
        """The idempotency keys it was given."""
        return [key for _, key in self.calls]


async def keys_below(board: Board, pattern: str) -> list[str]:
    """The keys that match."""
    return [entry.key async for entry in board.scan(pattern)]
