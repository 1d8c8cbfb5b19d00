"""Approvals and migrations as people have them: a service, a command line, HTTP, and an agent."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

import blackboard
from blackboard.client.board import Board
from blackboard.runtime.agent import Agent
from blackboard.runtime.context import Context
from blackboard.runtime.run import RunOptions, run_agent
from blackboard.runtime.runner import Stepped
from blackboard.runtime.state import Status
from tests.acceptance.shell import TIMEOUT_S, Running, Shell

PRICE = "public/price"
CLERKS = """
from pydantic import BaseModel
from blackboard import Agent, Context

class Notes(BaseModel):
    {field}

class Buyer(Agent[Notes]):
    schema_version = 2
    migrations = {{1: lambda old: {{"paid": old["paid"]}}}}

    async def step(self, ctx: Context[Notes]) -> None: ...
"""


class Notes(BaseModel):
    """What the buyer did."""

    paid: list[int] = []


class Buyer(Agent[Notes]):
    """Asks, and pays what was approved."""

    async def step(self, ctx: Context[Notes]) -> None:
        """Buy one, if it may."""
        decision = await ctx.approve(f"buy number {ctx.run.number}", facts=[PRICE])
        if decision:
            ctx.state.paid.append(decision.facts[PRICE])
        ctx.put("public/told", [decision.approved, decision.by, decision.reason])


@pytest.fixture
async def buyer(shell: Shell, service: Running) -> AsyncIterator[Board]:
    """The board, for the agent, which is a program somewhere."""
    token = shell.out("token", "create", "buyer").strip()
    async with blackboard.connect(service.url, token=token) as client:
        yield client.board("main")


async def run(board: Board) -> Stepped:
    """A process of the agent, which ends when there is nothing to do."""
    return await run_agent(Buyer(), board, RunOptions(leaves=True))


def told(shell: Shell) -> Any:
    """What the agent learnt."""
    return shell.json("get", "public/told")


async def test_a_person_approves_by_the_command_line(shell: Shell, buyer: Board) -> None:
    """The process of the agent is gone meanwhile; a price that changed is asked about again."""
    assert shell.run("approvals").stderr == "no agent waits for an approval\n"
    shell.out("set", PRICE, "1200")
    assert (await run(buyer)).status is Status.WAITING_FOR_APPROVAL
    [line] = shell.out("approvals").splitlines()
    agent, _, revision, _, question, facts = line.split("\t")
    assert (agent, question, facts) == ("buyer", "buy number 1", "public/price=1200")
    shell.run("approve", "buyer", "--revision", str(int(revision) - 1), code=3)
    grants = ("--grant", "**=read", "--grant", "public/~decisions/**=approve")
    own = shell.out("token", "create", "buyer", *grants).strip()
    said = shell.run("approve", "buyer", "--token", own, code=5).stderr
    assert "it would not count: it was asked on your own account, buyer" in said
    assert len(shell.out("approvals").splitlines()) == 1
    assert shell.out("approve", "buyer", "--revision", revision).startswith("approved: buy")
    shell.run("approve", "buyer", code=3)

    shell.out("set", PRICE, "1500")
    assert (await run(buyer)).status is Status.WAITING_FOR_APPROVAL
    [line] = shell.out("approvals", "buyer").splitlines()
    assert line.endswith("public/price=1500 (was 1200)")
    [asked] = shell.json("approvals")["approvals"]
    assert asked["request"]["changed"] == [{"key": PRICE, "was": 1200, "now": 1500}]
    done = shell.json("approve", "buyer", asked["id"][:6], "--reason", "still cheap")
    assert (done["agent"], done["approved"]) == ("buyer", True)
    assert (await run(buyer)).status is Status.WAITING_FOR_APPROVAL  # for the next one
    assert told(shell) == [True, "operator", "still cheap"]
    state = shell.json("get", "private/buyer/~state", "--as", "buyer")
    assert (state["step"], state["state"]) == (1, {"paid": [1500]})


async def test_a_person_rejects(shell: Shell, buyer: Board) -> None:
    """And says why."""
    await run(buyer)
    assert shell.out("reject", "buyer", "--reason", "no money").startswith("rejected: buy")
    await run(buyer)
    assert told(shell) == [False, "operator", "no money"]
    assert shell.error("reject", "nobody", code=3)["code"] == "not_found"


async def test_a_person_approves_by_http(shell: Shell, service: Running, buyer: Board) -> None:
    """Two requests: look, and answer what was seen. docs/howto/approvals.md shows them for curl."""
    await buyer.put(PRICE, 7)
    await run(buyer)
    token = shell.out("token", "create", "boss", "--role", "approver").strip()
    url = service.url.replace("ws", "http", 1) + "/v1/rpc"

    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:

        async def ask(method: str, **params: Any) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = (await http.post(url, json=body)).json()
            assert "result" in answer, answer
            return answer["result"]

        found = await ask("list", board="main", pattern="public/~approvals/*/*", limit=10)
        [entry] = found["entries"]
        value = {"approved": True, "request": entry["mod_revision"], "reason": "by telephone"}
        await ask(
            "commit",
            board="main",
            epoch=found["epoch"],
            id={"lane": 0, "incarnation": "curl-1", "step": 1},
            ops=[
                {
                    "kind": "put",
                    "key": entry["key"].replace("~approvals", "~decisions"),
                    "value": value,
                }
            ],
            conditions=[{"kind": "key_at", "key": entry["key"], "revision": entry["mod_revision"]}],
            fences=[],
            based_on=[],
        )
    await run(buyer)
    assert told(shell) == [True, "boss", "by telephone"]


async def test_states_are_checked_before_a_deploy(shell: Shell, buyer: Board) -> None:
    """A module that cannot take in what is stored is found, and nothing is written."""
    await run(buyer)
    (shell.home / "good_clerks.py").write_text(CLERKS.format(field="paid: list[int] = []"))
    (shell.home / "bad_clerks.py").write_text(CLERKS.format(field="paid: int"))
    checked = shell.out("migrate", "--check", "good_clerks").splitlines()
    assert checked == ["buyer\tBuyer\t1\t2\tmigrates\t"]
    bad = shell.run("migrate", "--check", "bad_clerks", code=1).stdout
    assert "fails" in bad
    assert "paid" in bad
    shell.run("migrate", "--check", "no_clerks", code=3)
    shell.run("migrate", "--check", "json", code=2)
    stored = shell.json("get", "private/buyer/~state", "--as", "buyer")
    assert stored["version"] == 1
    [done] = shell.json("migrate", "good_clerks")["agents"]
    assert done["verdict"] == "migrated"
    assert shell.json("get", "private/buyer/~state", "--as", "buyer")["version"] == 2


async def test_present_and_crashed_agents_are_listed(shell: Shell, buyer: Board) -> None:
    """Names, what each is at, and the error; as a table and as JSON."""
    assert shell.run("agents").stderr == "no agent is attached\n"
    # A command holds up the event loop of this process, which could not renew a short lease.
    async with buyer.attach(ttl_ms=3_600_000) as me:
        await me.report("waiting", "for a price")
        [row] = shell.out("agents").splitlines()
        agent, state, since, note = row.split("\t")
        assert (agent, state, note) == ("buyer", "waiting", "for a price")
        assert since
    told_of_it = '{"state": "crash_loop", "crashes": 5, "error": "ValueError: no"}'
    shell.run("set", "public/~supervision/ann", told_of_it)
    assert shell.json("agents")["agents"] == [
        {"agent": "ann", "state": "crash_loop", "since_ms": None, "note": "ValueError: no"}
    ]
