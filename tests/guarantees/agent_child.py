"""An agent that is killed: `agent_child.py ENGINE DIRECTORY`, then one line of orders per life.

ENGINE is "sqlite" (boards in DIRECTORY) or the address of a Redis. An order is JSON: the `name` of
the agent, and where its life ends: at the `at`-th point of its steps that an observer gets, or
after so many `microseconds`. For each, a process is forked that lives so long; the answer is a line
with the signal that ended it (0: the agent was done) and the last points that it passed.

The death is sudden: SIGKILL at a point, or SIGALRM without a handler after a time, with no line of
Python run in between. Effects of the tools go to DIRECTORY/effects, a line each, at once.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from blackboard import embedded
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.engines.redis.store import RedisStore
from blackboard.runtime.agent import Agent
from blackboard.runtime.calls import CallOptions
from blackboard.runtime.context import Context
from blackboard.runtime.journal import StepPoint
from blackboard.runtime.run import RunOptions, run_agent
from blackboard.server.service import Service

BOARD = "shop"
STEPS = 2
PRICES = {"tea": 3, "milk": 2}
effects = Path()
points = Path()


def _append(path: Path, line: object) -> None:
    """One line, in the file before this returns: no buffer dies with the process."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


async def price(agent: str, item: str, *, idempotency_key: str = "") -> int:
    """A tool that reads."""
    _append(effects, ["price", agent, item, idempotency_key])
    return PRICES[item]


async def pay(agent: str, step: int, amount: int, *, idempotency_key: str = "") -> str:
    """A tool that acts, and knows by its key what it did already."""
    _append(effects, ["pay", agent, f"{step}:{amount}", idempotency_key])
    return f"receipt {step}"


def mail(agent: str, text: str, *, idempotency_key: str = "") -> int:
    """A tool that blocks, and so runs in a thread."""
    _append(effects, ["mail", agent, text, idempotency_key])
    return len(text)


class Ledger(BaseModel):
    """What the shopper knows."""

    spent: int = 0
    receipts: list[str] = []


class Shopper(Agent[Ledger]):
    """Looks up two prices at once, pays, writes; in some steps it calls all three tools."""

    async def step(self, ctx: Context[Ledger]) -> None:
        """One purchase."""
        number = ctx.run.number
        found = await asyncio.gather(*(ctx.tool(price, self.name, item) for item in PRICES))
        receipt = await ctx.tool(pay, self.name, number, sum(found))
        length = await ctx.tool(mail, self.name, receipt, terms=CallOptions(version="2"))
        ctx.state.spent += sum(found) + length
        ctx.state.receipts.append(receipt)
        ctx.increment(f"public/bought/{self.name}")
        ctx.append(f"public/receipts/{self.name}", receipt)
        ctx.send("bob", {"from": self.name, "receipt": receipt})
        if number == STEPS:
            ctx.done()


@asynccontextmanager
async def opened(engine: str, directory: Path) -> AsyncIterator[Client]:
    """The way to the board."""
    if engine == "sqlite":
        async with embedded.open(directory / "data") as client:
            yield client
    else:
        async with Service(RedisStore.connect(engine)) as service:
            yield Client(service.link(access.operator()))


async def live(engine: str, directory: Path, order: dict[str, Any]) -> None:
    """Run the agent; die at the point that is ordered."""
    left = order.get("at", 0)

    def observe(point: StepPoint, about: str) -> None:
        nonlocal left
        left -= 1
        _append(points, [point.value, about])
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if "microseconds" in order:
        signal.setitimer(signal.ITIMER_REAL, order["microseconds"] / 1_000_000)
    async with opened(engine, directory) as client:
        stay = RunOptions(if_taken="take_over")
        await run_agent(Shopper(order["name"]), client.board(BOARD), stay, observe=observe)


def one_life(engine: str, directory: Path, order: dict[str, Any]) -> dict[str, Any]:
    """Fork, let it live, and tell how it ended."""
    points.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(live(engine, directory, order))
        except BaseException as error:  # noqa: BLE001 - told, and nothing of the parent's is run
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    passed = points.read_text().splitlines() if points.exists() else []
    return {"status": status, "passed": [json.loads(line) for line in passed]}


if __name__ == "__main__":
    _, engine_given, directory_given = sys.argv
    effects = Path(directory_given) / "effects"
    points = Path(directory_given) / "points"
    for order_given in sys.stdin:
        told = one_life(engine_given, Path(directory_given), json.loads(order_given))
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
