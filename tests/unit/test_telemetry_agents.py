"""Spans of agents follow OpenTelemetry's conventions for generative AI.

The names are those of https://github.com/open-telemetry/semantic-conventions-genai, as the package
opentelemetry-semantic-conventions has them, which the SDK needs.
"""

import asyncio
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as conventions
from opentelemetry.trace import SpanKind
from pydantic import BaseModel

import blackboard
from blackboard import Agent, Context, Prompt, ScriptedModel, run_agent, telemetry
from blackboard.runtime.models import Endpoint
from blackboard.runtime.providers import ProviderModel

SECRET = "the-value-that-nobody-may-see"
CURRENT = {text for name, text in vars(conventions).items() if name.startswith("GEN_AI_")}
OUTDATED = {"gen_ai.system", "gen_ai.prompt", "gen_ai.completion"} | {
    "gen_ai.usage.prompt_tokens",
    "gen_ai.usage.completion_tokens",
}
MODELS = ("openai:tiny", "mistral:small", "llama3:8b", "scripted")


class Nothing(BaseModel):
    """No state."""


async def lookup(what: str) -> str:
    """A tool."""
    return what


class Clerk(Agent[Nothing]):
    """Uses a tool and models."""

    async def step(self, ctx: Context[Nothing]) -> None:
        """Each of them once."""
        await ctx.tool(lookup, SECRET)
        asked = Prompt.of(SECRET).model_copy(update={"temperature": 0.5, "seed": 7})
        for name in MODELS:
            await ctx.model(ScriptedModel(lambda _: SECRET, name=name), asked)
        ctx.put("public/done", 1)
        ctx.done()


async def take_the_step(folder: Path) -> None:
    """On an embedded board."""
    async with blackboard.open(folder) as client:
        await run_agent(Clerk("clerk"), client.board("main"))


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReadableSpan]:
    """The spans of a step of the clerk, by name."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.start("tests", provider)
    try:
        asyncio.run(take_the_step(tmp_path_factory.mktemp("boards")))
    finally:
        telemetry.stop()
    return {span.name: span for span in exporter.get_finished_spans()}


def about(span: ReadableSpan) -> dict[str, object]:
    """Its attributes of the conventions."""
    return {k: v for k, v in (span.attributes or {}).items() if k.startswith("gen_ai.")}


def values(kind: type[Enum]) -> Iterator[str]:
    """The values of an enumeration of the conventions."""
    return (str(each.value) for each in kind)


def test_names_are_those_of_the_conventions(spans: dict[str, ReadableSpan]) -> None:
    """Of attributes and operations; none that they have replaced."""
    used = {name for span in spans.values() for name in about(span)}
    assert used <= CURRENT - OUTDATED
    operations = {about(s)["gen_ai.operation.name"] for s in spans.values() if about(s)}
    assert operations == {"invoke_agent", "execute_tool", "chat"}
    assert operations <= set(values(conventions.GenAiOperationNameValues))
    assert set(telemetry.PROVIDERS.values()) <= set(values(conventions.GenAiProviderNameValues))
    assert all(SECRET not in span.to_json() for span in spans.values())


def test_a_step_is_an_invocation_of_the_agent(spans: dict[str, ReadableSpan]) -> None:
    span = spans["invoke_agent clerk"]
    assert span.kind is SpanKind.INTERNAL
    assert about(span) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "blackboard",
        "gen_ai.agent.name": "clerk",
    }


def test_a_tool_is_executed(spans: dict[str, ReadableSpan]) -> None:
    span = spans["execute_tool lookup"]
    assert span.kind is SpanKind.INTERNAL
    assert about(span) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "lookup",
        "gen_ai.tool.type": "function",
    }


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("openai:tiny", "openai", "tiny"),
        ("mistral:small", "mistral_ai", "small"),
        ("llama3:8b", "_OTHER", "llama3:8b"),
        ("scripted", "_OTHER", "scripted"),
    ],
)
def test_a_model_is_asked_by_its_own_name(
    name: str, provider: str, model: str, spans: dict[str, ReadableSpan]
) -> None:
    """A prefix is the provider only if there is one of that name."""
    span = spans[f"chat {model}"]
    assert span.kind is SpanKind.CLIENT
    assert about(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.response.model": name,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.output_tokens": 1,
    }


async def test_a_service_names_its_provider() -> None:
    """An endpoint with OpenAI's protocol has the provider openai; the model keeps its name."""
    async with ProviderModel(Endpoint("http://localhost:1/v1", "llama3:8b")) as model:
        assert telemetry.PROVIDERS[model.provider] == "openai"
        assert model.name == "llama3:8b"
