"""Trajectories on the command line: exported, filtered, and taken again."""

import json
from pathlib import Path

import pytest

from tests.acceptance.shell import Shell

AGENTS = """
from pydantic import BaseModel
from blackboard.runtime.agent import Agent
from blackboard.runtime.models import Prices, Prompt, ScriptedModel

MODEL = ScriptedModel(lambda prompt: "yes " * 10, prices=Prices(1000, 1000))

class Notes(BaseModel):
    round: int = 0

class Buyer(Agent[Notes]):
    async def step(self, ctx):
        ctx.state.round += STRIDE
        ctx.put("public/round", ctx.state.round)
        if ctx.agent == "ada":
            await ctx.model(MODEL, Prompt.of(f"round {ctx.state.round}"))
        if ctx.state.round >= 2:
            ctx.done("bought" if ctx.agent == "ada" else "gave up")
"""
RUN = """
import anyio, blackboard, buyers
from blackboard.runtime.team import run_team

async def main():
    async with blackboard.open("data") as client:
        board = client.board("main")
        await run_team(board, [buyers.Buyer("ada"), buyers.Buyer("bob")])

anyio.run(main)
"""


@pytest.fixture
def ran(shell: Shell) -> Shell:
    """A user whose two agents have run."""
    write(shell.home, stride=1)
    (shell.home / "run.py").write_text(RUN)
    with shell.script("python run.py") as running:
        code, out, err = running.end()
    assert code == 0, out + err
    shell.environ["BLACKBOARD_URL"] = ""
    return shell


def write(home: Path, *, stride: int) -> None:
    """The user's agents; with each stride of another size. Python takes two files of one size for
    the same, if they were written within a second."""
    (home / "buyers.py").write_text(AGENTS + f"\nSTRIDE = {stride}\n" + "\n" * stride)


def exported(shell: Shell, *arguments: str) -> list[str]:
    """The agents whose trajectories are exported with those options."""
    lines = shell.out("export", "trajectories", "--data", "data", *arguments).splitlines()
    return [json.loads(line)["agent"] for line in lines]


def test_trajectories_are_filtered_by_outcome_and_cost(ran: Shell) -> None:
    """One line of JSON each."""
    assert exported(ran) == ["ada", "bob"]
    assert exported(ran, "bob") == ["bob"]
    assert exported(ran, "--outcome", "bought") == ["ada"]
    assert exported(ran, "--cost-max", "0.001") == ["bob"]
    assert exported(ran, "--cost-max", "1") == ["ada", "bob"]
    assert exported(ran, "--status", "running") == []
    done = ran.run("export", "trajectories", "--data", "data", "-o", "runs.jsonl")
    assert done.stderr == "2 trajectories\n"
    assert len((ran.home / "runs.jsonl").read_text().splitlines()) == 2
    ran.run("export", "trajectories", "--data", "data", "--cost-max", "-1", code=2)
    ran.run("export", "trajectories", "--data", "data", "-o", "no/where", code=3)


def test_the_steps_are_taken_again(ran: Shell) -> None:
    """The same code: the same; newer code: the first difference, and exit code 1."""
    told = ran.out("retrace", "buyers", "--data", "data").splitlines()
    assert told == ["ada: 2 steps, the same", "bob: 2 steps, the same"]
    ran.run("export", "trajectories", "--data", "data", "-o", "runs.jsonl")
    write(ran.home, stride=2)
    ran.run("retrace", "buyers", "ada", "--data", "data", code=1)
    done = ran.run("retrace", "buyers", "ada", "--file", "runs.jsonl", "--json", code=1)
    [found] = json.loads(done.stdout)["agents"]
    assert (found["agent"], found["steps"]) == ("ada", 0)
    assert (found["difference"]["step"], found["difference"]["what"]) == (1, "call")
    shown = ran.run("retrace", "buyers", "ada", "--file", "runs.jsonl", code=1).stdout
    assert shown.startswith("ada: 0 steps, the same; step 1 differs in call:")
    ran.run("retrace", "buyers", "--file", "buyers.py", code=2)
    ran.run("retrace", "nobody", "--data", "data", code=3)


def test_a_class_that_cannot_make_its_agent_is_a_difference(ran: Shell) -> None:
    """Of each of its agents, at its first step."""
    needy = "    def __init__(self, name, need): super().__init__(name)"
    (ran.home / "buyers.py").write_text(
        f"{AGENTS}\nSTRIDE = 1\n".replace(
            "class Buyer(Agent[Notes]):", f"class Buyer(Agent[Notes]):\n{needy}\n"
        )
    )
    done = ran.run("retrace", "buyers", "--data", "data", "--json", code=1)
    for found in json.loads(done.stdout)["agents"]:
        assert (found["difference"]["step"], found["difference"]["what"]) == (1, "error")
        assert "'need'" in found["difference"]["replayed"]


def test_a_file_that_another_program_wrote_is_read(ran: Shell) -> None:
    """As `jq -c`, which leaves in a text what other programs take for the end of a line."""
    lines = ran.out("export", "trajectories", "--data", "data").splitlines()
    lines[0] = lines[0].replace('"outcome":"bought', '"outcome":"bought\u2028or\x85not', 1)
    assert "\u2028" in lines[0]
    (ran.home / "runs.jsonl").write_text("\r\n".join([*lines, ""]), encoding="utf-8", newline="")
    told = ran.out("retrace", "buyers", "--file", "runs.jsonl").splitlines()
    assert told == ["ada: 2 steps, the same", "bob: 2 steps, the same"]


def test_nothing_repeated_is_not_the_same(ran: Shell) -> None:
    """A check of new code is not passed by a mistyped name, or an empty file."""
    refused = ran.error("retrace", "buyers", "adda", "--data", "data", code=3)
    assert "no steps of agent adda" in refused["message"]
    (ran.home / "runs.jsonl").write_text("")
    ran.error("retrace", "buyers", "--file", "runs.jsonl", code=3)
