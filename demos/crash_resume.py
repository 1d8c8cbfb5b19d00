"""Killed right after a tool was paid for: the next process goes on, and the tool was called once.

    python -m blackboard.demos.crash_resume

The buyer pays 100 USD, and its process is killed (SIGKILL) before its step is committed. Nothing of
the step is there, but the call is in the journal: the next process gets its receipt from there.
"""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from pydantic import BaseModel

import blackboard
from blackboard import Agent, Context, run_agent

PAID, DATA, DEADLY = "paid.txt", "data", "DEMO_DIES"


class Purse(BaseModel):
    """What the buyer remembers."""

    receipt: str = ""


def pay(usd: int, *, idempotency_key: str = "") -> str:
    """The tool: money that is gone once it is paid. A line of the file is a payment."""
    with Path(PAID).open("a", encoding="utf-8") as file:
        file.write(f"{usd} USD {idempotency_key}\n")
    return f"receipt for {usd} USD"


class Buyer(Agent[Purse]):
    """Pays, and says so."""

    async def step(self, ctx: Context[Purse]) -> None:
        """Pay; the deadly process ends here, between the payment and the commit."""
        ctx.state.receipt = await ctx.tool(pay, 100)
        if os.environ.get(DEADLY):
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.put("public/bought", ctx.state.receipt)
        ctx.done("bought")


async def live() -> None:
    """The buyer's process."""
    async with blackboard.open(DATA) as client:
        await run_agent(Buyer("buyer"), client.board())


async def run(folder: str, *, dies: bool) -> int:
    """Run that process; returns its exit code."""
    environ = {name: text for name, text in os.environ.items() if name != DEADLY}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "blackboard.demos.crash_resume", "live"),
        cwd=folder,
        env=environ | ({DEADLY: "1"} if dies else {}) | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return await process.wait()


def payments(folder: str) -> str:
    """What was paid, a line each."""
    return Path(folder, PAID).read_text(encoding="utf-8")


async def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as folder:
        print("the buyer pays, and is killed before its step is committed")
        assert await run(folder, dies=True) == -signal.SIGKILL
        async with blackboard.open(f"{folder}/{DATA}") as client:
            assert await client.board().get("public/bought") is None
        paid = payments(folder)
        print(f"  paid: {paid.strip()}; on the board: nothing")
        print("the next process goes on")
        assert await run(folder, dies=False) == 0
        async with blackboard.open(f"{folder}/{DATA}") as client:
            bought = await client.board().get("public/bought")
        again = payments(folder)
        print(f"  paid: {again.strip()}; on the board: {bought}")
        assert again == paid, "it was paid twice"
        assert len(paid.splitlines()) == 1
        assert bought == "receipt for 100 USD"
    print("ok: killed once, paid once")


if __name__ == "__main__":
    asyncio.run(live() if sys.argv[1:] == ["live"] else main())
