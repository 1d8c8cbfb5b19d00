"""Traces of a real service and real clients, as a collector gets them."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shell import Running, Shell
from tests.otlp import ReceivedSpan, Receiver, receiving
from tests.waiting import wait_until

SECRET = "the-value-that-nobody-may-see"
CLIENT = """
import asyncio, json, sys
from pydantic import BaseModel
import blackboard
from blackboard import Agent, Prompt, ScriptedModel, run_agent
from blackboard.errors import Conflict

class Nothing(BaseModel):
    pass

async def lookup(what: str) -> str:
    return "{secret}"

class Clerk(Agent[Nothing]):
    async def step(self, ctx):
        found = await ctx.tool(lookup, "{secret}")
        model = ScriptedModel(lambda prompt: "{secret}", name="openai:tiny")
        reply = await ctx.model(model, Prompt.of("{secret}"))
        ctx.put("public/found", [found, reply.text])
        ctx.done("over")

async def main():
    async with blackboard.connect(sys.argv[1]) as client:
        board = client.board("main")
        put = await board.put("public/plan", "{secret}")
        try:
            await board.put("public/plan", "{secret}", expected=0)
        except Conflict:
            pass
        await board.checkpoint("before")
        restored = await board.restore("before")
        async with board.watch("public/**"):
            pass
        stepped = await run_agent(Clerk("clerk"), board)
        print(json.dumps([put.revision, restored.revision, stepped.receipt.revision]))

asyncio.run(main())
"""


@pytest.fixture
def collector() -> Iterator[Receiver]:
    """A collector that answers."""
    with receiving() as receiver:
        yield receiver


def traced(shell: Shell, collector: str) -> None:
    """Give a user the variables of one who looks at traces."""
    shell.environ |= {
        "BLACKBOARD_TELEMETRY": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "OTEL_TRACES_SAMPLER": "parentbased_always_on",
    }


def run_client(shell: Shell, service: Running, tmp_path: Path) -> list[int]:
    """Run CLIENT as a program of its own; returns the revisions that it made."""
    program = tmp_path / "program.py"
    program.write_text(CLIENT.replace("{secret}", SECRET), encoding="utf-8")
    token = (shell.home / "data").glob("*token*")
    environ = {**shell.environ, "BLACKBOARD_TOKEN": next(token).read_text().strip()}
    done = subprocess.run(
        [sys.executable, program, service.url],
        capture_output=True,
        env=environ,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


async def test_one_trace_leads_from_the_client_to_the_engine(
    shell: Shell, collector: Receiver, tmp_path: Path
) -> None:
    """And says at which revision: the cut. What was refused says so, and nothing tells a value."""
    traced(shell, collector.url)
    with shell.service() as service:
        put, _, stepped = run_client(shell, service, tmp_path)

        async def has_come() -> bool:
            return all(
                find(collector, "blackboard.commit", service, revision)
                for revision in (put, stepped)
                for service in ("blackboard", "blackboard-client")
            )

        await wait_until(has_come)
        await wait_until(lambda: is_there(collector, "engine commit", 4))
        await wait_until(lambda: _is(bool(collector.metrics)))
    client_span = find(collector, "blackboard.commit", "blackboard-client", put)[0]
    service_span = find(collector, "blackboard.commit", "blackboard", put)[0]
    [engine_span] = [
        span for span in collector.named("engine commit") if span.parent_id == service_span.span_id
    ]
    assert service_span.parent_id == client_span.span_id
    assert {client_span.trace_id, engine_span.trace_id} == {service_span.trace_id}
    assert service_span.attributes["blackboard.board"] == "main"
    refused = [span for span in collector.spans if span.attributes.get("error.type") == "conflict"]
    assert {span.service for span in refused} == {"blackboard", "blackboard-client"}
    assert all(span.is_error for span in refused)
    assert {span.attributes["blackboard.outcome"] for span in refused} == {"refused"}
    for method in ("checkpoint", "restore"):
        by_service = {span.service: span for span in collector.named(f"blackboard.{method}")}
        asked, served = by_service["blackboard-client"], by_service["blackboard"]
        assert served.parent_id == asked.span_id
    assert collector.named("blackboard.watch")
    check_agent(collector, stepped)
    assert SECRET.encode() not in collector.raw


def check_agent(collector: Receiver, revision: int) -> None:
    """The step, its tool and its model, by the conventions; its commit is below the step."""
    [step] = collector.named("invoke_agent clerk")
    [tool] = collector.named("execute_tool lookup")
    [chat] = collector.named("chat tiny")
    assert step.attributes["blackboard.revision"] == revision
    assert step.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert step.attributes["gen_ai.agent.name"] == "clerk"
    assert {tool.parent_id, chat.parent_id} == {step.span_id}
    assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
    assert tool.attributes["gen_ai.tool.name"] == "lookup"
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    assert chat.attributes["gen_ai.provider.name"] == "openai"
    assert chat.attributes["gen_ai.usage.input_tokens"] == 1
    [commit] = find(collector, "blackboard.commit", "blackboard-client", revision)
    assert commit.parent_id == step.span_id


async def test_a_revision_of_an_agent_leads_to_its_trace(
    shell: Shell, collector: Receiver, tmp_path: Path
) -> None:
    """The note of its commit has the id of the trace."""
    traced(shell, collector.url)
    with shell.service() as service:
        _, _, revision = run_client(shell, service, tmp_path)
        await wait_until(lambda: is_there(collector, "invoke_agent clerk", 1))
        told = shell.out("log", "--json")
    [step] = collector.named("invoke_agent clerk")
    assert f"step 1, trace {step.trace_id}" in told
    assert step.attributes["blackboard.revision"] == revision


@pytest.mark.parametrize("answers", [400, 503])
async def test_a_collector_that_answers_garbage_disturbs_nobody(
    answers: int, shell: Shell, tmp_path: Path
) -> None:
    with receiving(answers) as collector:
        traced(shell, collector.url)
        with shell.service() as service:
            assert run_client(shell, service, tmp_path)[0] == 1
            await wait_until(lambda: _is(collector.requests > 0))
            assert shell.out("get", "public/plan").strip()


async def test_a_collector_that_is_down_disturbs_nobody(shell: Shell, tmp_path: Path) -> None:
    with receiving() as collector:
        url = collector.url
    traced(shell, url)
    with shell.service() as service:
        assert run_client(shell, service, tmp_path)[0] == 1
        assert shell.out("get", "public/plan").strip()


async def test_a_collector_that_never_answers_disturbs_nobody(shell: Shell, tmp_path: Path) -> None:
    """Neither the service nor a client that ends: it waits for TELEMETRY_FLUSH_MS at most."""
    hold = threading.Event()
    with receiving(hold=hold) as collector:
        traced(shell, collector.url)
        try:
            with shell.service() as service:
                assert run_client(shell, service, tmp_path)[0] == 1
                assert shell.out("get", "public/plan").strip()
        finally:
            hold.set()


async def test_a_client_with_traces_talks_to_a_service_without(
    shell: Shell, collector: Receiver, tmp_path: Path
) -> None:
    """It sends no trace to a service that does not say that it takes one."""
    with shell.service() as service:
        traced(shell, collector.url)
        assert run_client(shell, service, tmp_path)[0] == 1
        await wait_until(lambda: is_there(collector, "blackboard.commit", 1))
    assert {span.service for span in collector.spans} == {"blackboard-client"}


async def test_off_means_that_nothing_is_sent(
    shell: Shell, collector: Receiver, tmp_path: Path
) -> None:
    shell.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
    with shell.service() as service:
        run_client(shell, service, tmp_path)
        assert ", trace " not in shell.out("log", "--json")
    assert collector.requests == 0


def find(collector: Receiver, name: str, service: str, revision: int) -> list[ReceivedSpan]:
    """The spans of a revision."""
    return [
        span
        for span in collector.named(name)
        if span.service == service and span.attributes.get("blackboard.revision") == revision
    ]


async def is_there(collector: Receiver, name: str, count: int) -> bool:
    """Whether that many spans of a name have come."""
    return len(collector.named(name)) >= count


async def _is(found: bool) -> bool:
    return found
