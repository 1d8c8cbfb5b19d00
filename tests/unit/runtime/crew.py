"""Agents for tests of lives and teams: counters that crash, wait and have children on demand."""

import asyncio
import os
import subprocess
import sys
import threading

from pydantic import BaseModel

from blackboard.errors import LimitExceeded
from blackboard.runtime.agent import Agent
from blackboard.runtime.context import Context
from blackboard.runtime.team import spawn

GOAL = 5


class Count(BaseModel):
    """How far a counter is, and how far it wants to get."""

    n: int = 0
    goal: int = GOAL


class Counter(Agent[Count]):
    """Counts to its goal, a step each, and tells everybody."""

    async def step(self, ctx: Context[Count]) -> None:
        """Count on."""
        ctx.state.n += 1
        ctx.increment(f"public/counts/{self.name}")
        if ctx.state.n >= ctx.state.goal:
            ctx.done(f"counted to {ctx.state.n}")


class Stumbling(Counter):
    """Crashes before every second step, once each time."""

    kind = "Stumbling"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.stumbled: set[int] = set()

    async def step(self, ctx: Context[Count]) -> None:
        """Stumble, or count on."""
        if ctx.state.n % 2 and ctx.state.n not in self.stumbled:
            self.stumbled.add(ctx.state.n)
            raise RuntimeError(f"stumbled at {ctx.state.n}")
        await super().step(ctx)


class Hopeless(Counter):
    """Crashes at its third step, always, until `public/repaired` is there."""

    kind = "Hopeless"

    async def step(self, ctx: Context[Count]) -> None:
        """Crash, or count on."""
        if ctx.state.n == 2 and not await ctx.peek("public/repaired"):
            raise RuntimeError("it is broken")
        await super().step(ctx)


class Slow(Counter):
    """Stays in its step until `public/go` is there."""

    kind = "Slow"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def step(self, ctx: Context[Count]) -> None:
        """Count on when told to."""
        self.begun.set()
        await self.go.wait()
        await super().step(ctx)


class Patient(Counter):
    """Waits for a letter before each step."""

    kind = "Patient"

    async def step(self, ctx: Context[Count]) -> None:
        """Count on when there is a letter."""
        if await ctx.inbox(limit=1):
            await super().step(ctx)


class Family(BaseModel):
    """Which children were born."""

    born: int = 0


class Parent(Agent[Family]):
    """Has two children, and is done when both have told how far they got."""

    async def step(self, ctx: Context[Family]) -> None:
        """Have a child, or wait for them."""
        if ctx.state.born < 2:
            ctx.state.born += 1
            await spawn(
                ctx, Counter(f"{self.name}.{ctx.state.born}"), Count(goal=ctx.state.born + 1)
            )
            return
        for number in (1, 2):
            goal = number + 1
            counted = 0
            while counted < goal:
                entry = await ctx.wait(f"public/counts/{self.name}.{number}")
                assert entry is not None
                counted = entry.value
                if counted < goal:
                    await ctx.wait(entry.key, after=entry.mod_revision)
        ctx.done("all are grown up")


class Prolific(Agent[Family]):
    """Has one child after the other, until there is no room."""

    async def step(self, ctx: Context[Family]) -> None:
        """Have children, or tell why not."""
        number = ctx.state.born
        try:
            await spawn(ctx, Counter(f"{self.name}.{number}"), Count(goal=1))
        except LimitExceeded as refused:
            ctx.done(f"{refused.limit} {refused.value} {refused.where}")
            return
        ctx.state.born += 1


class Mortal(Counter):
    """Kills its own process in the middle of its third step, once."""

    kind = "Mortal"

    async def step(self, ctx: Context[Count]) -> None:
        """Die, or count on."""
        if ctx.state.n == 2 and not await ctx.peek("private/mortal/died"):
            await ctx.tool(leave_a_trace)
            os.kill(os.getpid(), 9)
        await super().step(ctx)


class Forebear(Counter):
    """Its process ends in the first step, and leaves a process that has its stdin and stderr."""

    kind = "Forebear"

    async def step(self, ctx: Context[Count]) -> None:
        """Start the other process, and end."""
        leave_a_process()
        os.write(2, b"first words\nlast words\n")
        os._exit(3)


class Quitting(Counter):
    """Ends its process in the first step, as a script does that is done."""

    kind = "Quitting"

    async def step(self, ctx: Context[Count]) -> None:
        """End."""
        sys.exit(0)


class Blocking(Counter):
    """Blocks the event loop of its process, for longer than anybody waits."""

    kind = "Blocking"

    async def step(self, ctx: Context[Count]) -> None:
        """Leave a trace, and let nothing else happen."""
        leave_a_trace()
        threading.Event().wait()


def leave_a_process() -> None:
    """Start a process that goes on, and append its number to the file that TRACE names."""
    left = subprocess.Popen(["tail", "-f", "/dev/null"])
    with open(os.environ["TRACE"], "a") as file:  # noqa: PTH123 - as short as it can be
        file.write(f"{left.pid}\n")


def leave_a_trace() -> str:
    """A tool that appends a line to the file that TRACE names: how often it was called."""
    with open(os.environ["TRACE"], "a") as file:  # noqa: PTH123 - as short as a tool can be
        file.write("called\n")
    return "called"
