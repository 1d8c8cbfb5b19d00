"""Models that work through `blackboard mcp`, played by a script: each next call is chosen from what
the last one answered, and from nothing else.

The script knows the tools, and what an error says. It does not know of the other agent, whose moves
make it lose races: that it recovers shows that the answers are enough to plan again from.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.acceptance.shell import TIMEOUT_S, Shell
from tests.acceptance.test_mcp import agent
from tests.unit.integrations.mcp_clients import Caller

PLAN, FILE = "public/plan", "public/files/src/app.py"
Move = tuple[str, dict[str, Any]]


@dataclass
class ScriptedAgent:
    """Adds a step to the team's plan, then works on a file alone, and says so.

    `meddle` is called before each call with its tool: what others do in between.
    """

    caller: Caller
    step: str
    meddle: Callable[[str], Awaitable[None]]
    made: list[str] = field(default_factory=list)
    """What it did: the tools, and the codes of errors."""

    async def work(self) -> None:
        """Until it is done."""
        move: Move | None = ("list", {"directory": ""})
        while move is not None:
            tool, arguments = move
            await self.meddle(tool)
            result = await self.caller.result(tool, **arguments)
            answer: Any = result.structured_content
            self.made.append(tool)
            if result.is_error:
                error = answer["error"]
                self.made.append(error["code"])
                move = self.after_an_error(move, error)
            else:
                move = self.after(tool, answer)
            assert len(self.made) < 100, self.made

    def after(self, tool: str, answer: Any) -> Move | None:
        """The next call, after one that succeeded."""
        match tool:
            case "list":
                return "read", {"keys": [PLAN]}
            case "read":
                entries = answer["entries"]
                value = entries[0]["value"] if entries else []
                return self.planned(value, entries[0]["revision"] if entries else 0)
            case "write":
                return "claim", {"key": FILE}
            case "wait":
                return "claim", {"key": FILE}
            case "claim":
                value = {"file": FILE, "step": self.step}
                return "append", {"directory": "public/done", "value": value}
            case "append":
                return "release", {"key": FILE}
        return None

    def after_an_error(self, move: Move, error: Any) -> Move:
        """The next call, after a refusal: from its fields alone."""
        match error["code"]:
            case "conflict":
                return self.planned(error.get("current") or [], error["current_revision"])
            case "lease_held":
                return "wait", {"patterns": [error["key"]], "seconds": 5}
            case "claim_lost":
                return "claim", {"key": error["keys"][0]}
            case "stale_epoch":
                return "read", {"keys": [PLAN]}
            case _ if error["retryable"]:
                return move
        raise AssertionError(error)

    def planned(self, steps: list[str], revision: int) -> Move:
        """The write that adds its own step to the plan; what follows it, if the step is there."""
        if self.step in steps:
            return "claim", {"key": FILE}
        value = [*steps, self.step]
        return "write", {"key": PLAN, "value": value, "expected_revision": revision}


async def leave_alone(_: str) -> None:
    """Nobody meddles."""


@pytest.mark.slow
async def test_a_model_that_loses_every_race_once_recovers(tmp_path: Path) -> None:
    """The plan changes under it, the file is taken, and its claim is lost in the middle."""
    shell = Shell(tmp_path)
    async with agent(shell) as mine, agent(shell, mode="legacy") as others:
        done: set[str] = set()

        async def meddle(tool: str) -> None:
            if tool in done:
                return
            done.add(tool)
            match tool:
                case "write":
                    await others("write", key=PLAN, value=["theirs"])
                case "claim":
                    await others("claim", key=FILE)
                case "wait":
                    await others("release", key=FILE)
                case "append":
                    shell.run("checkpoint", "create", "here")
                    shell.run("restore", "here", "--yes")

        model = ScriptedAgent(mine, "mine", meddle)
        with anyio.fail_after(TIMEOUT_S):
            await model.work()
        codes = [one for one in model.made if one in ("conflict", "lease_held")]
        assert codes == ["conflict", "lease_held"]
        assert {"claim_lost", "stale_epoch"} & set(model.made)
        (entry,) = (await others("read", keys=PLAN))["entries"]
        assert entry["value"] == ["theirs", "mine"]
        (work,) = (await others("list", directory="public/done", values=True))["entries"]
        assert work["value"] == {"file": FILE, "step": "mine"}
        assert (await others("claims"))["claims"] == []


@pytest.mark.slow
async def test_models_at_the_same_time_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """Three, each with a server of its own: each step is in the plan once, each work is done."""
    shell = Shell(tmp_path)
    async with agent(shell) as one, agent(shell) as two, agent(shell, mode="legacy") as three:
        models = [
            ScriptedAgent(who, f"step {number}", leave_alone)
            for number, who in enumerate((one, two, three))
        ]
        with anyio.fail_after(TIMEOUT_S):
            async with anyio.create_task_group() as tasks:
                for model in models:
                    tasks.start_soon(model.work)
        (entry,) = (await one("read", keys=PLAN))["entries"]
        assert sorted(entry["value"]) == ["step 0", "step 1", "step 2"]
        page = await one("list", directory="public/done", values=True)
        assert sorted(work["value"]["step"] for work in page["entries"]) == sorted(entry["value"])
        assert (await two("claims"))["claims"] == []
