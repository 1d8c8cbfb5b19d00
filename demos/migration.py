"""A migration: the state that version 1 of an agent stored is read by version 3 of its code.

    python -m blackboard.demos.migration

Version 2 counts in cents, version 3 keeps a currency too. Each migration is a function of plain
data; the state is checked after the last one, and stored with the agent's next step.
"""

import asyncio
import tempfile
from typing import Any, ClassVar

from pydantic import BaseModel

import blackboard
from blackboard import Agent, Board, Context, RunOptions, run_agent

STATE = "private/clerk/~state"


class Till1(BaseModel):
    """Version 1: whole dollars."""

    dollars: int = 12


class Clerk1(Agent[Till1]):
    """The first code."""

    kind = "Clerk"

    async def step(self, ctx: Context[Till1]) -> None:
        """Earn a dollar."""
        ctx.state.dollars += 1


class Till3(BaseModel):
    """Version 3: cents, and of which currency."""

    cents: int
    currency: str


def to_cents(state: dict[str, Any]) -> dict[str, Any]:
    """From version 1 to 2."""
    return {"cents": state["dollars"] * 100}


def with_currency(state: dict[str, Any]) -> dict[str, Any]:
    """From version 2 to 3."""
    return state | {"currency": "USD"}


class Clerk3(Agent[Till3]):
    """The code of today."""

    kind = "Clerk"
    schema_version = 3
    migrations: ClassVar = {1: to_cents, 2: with_currency}

    async def step(self, ctx: Context[Till3]) -> None:
        """Earn a cent."""
        ctx.state.cents += 1


async def once(board: Board, agent: Agent[Any]) -> dict[str, Any]:
    """Take one step as `agent`; returns what is stored then."""
    await run_agent(agent, board, RunOptions(steps_max=1))
    stored: dict[str, Any] = await board.get(STATE)
    print(f"  version {stored['version']}: {stored['state']}")
    return stored


async def story(board: Board) -> None:
    """Old code, new code, and old code again."""
    assert (await once(board, Clerk1("clerk")))["state"] == {"dollars": 13}
    stored = await once(board, Clerk3("clerk"))
    assert (stored["version"], stored["state"]) == (3, {"cents": 1_301, "currency": "USD"})
    try:
        await once(board, Clerk1("clerk"))
    except blackboard.errors.SchemaTooNew as error:
        print(f"  the old code is refused: {error}")
    else:
        raise AssertionError("old code took a newer state")
    assert await board.get(STATE) == stored


async def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as folder:
        async with blackboard.open(folder) as client:
            await story(client.board())
    print("ok: stored by version 1, read by version 3")


if __name__ == "__main__":
    asyncio.run(main())
