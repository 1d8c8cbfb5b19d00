"""Prompts, prices and the scripted model. The client of a real one: test_providers.py."""

from math import nan
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from blackboard.errors import InvalidRequest, ModelFailed
from blackboard.runtime.models import (
    ModelUsage,
    Patience,
    Prices,
    Prompt,
    Reply,
    ScriptedModel,
    ToolCall,
)


def test_a_prompt_is_checked() -> None:
    """Where it is made, and not by the service that is asked."""
    with pytest.raises(ValidationError):
        Prompt.of("How much?", temperature=3)
    with pytest.raises(ValidationError):
        Prompt(messages=())


# --- the scripted model ---------------------------------------------------------------------------


async def test_a_script_answers_from_a_function_or_a_list() -> None:
    """Tokens are words; the end of a list is an error."""
    echo = ScriptedModel(lambda prompt: prompt.messages[-1].content.upper(), prices=Prices(1, 1))
    reply = await echo.complete(Prompt.of("how much", seed=3))
    assert (reply.text, reply.seed, reply.usage.cost_microusd) == ("HOW MUCH", 3, 4)
    calls = ToolCall(id="1", name="gdp", arguments="{}")
    listed = ScriptedModel([calls, "done"])
    assert (await listed.complete(Prompt.of("go"))).tool_calls == (calls,)
    assert (await listed.complete(Prompt.of("on"))).text == "done"
    with pytest.raises(ModelFailed, match="2 answers only"):
        await listed.complete(Prompt.of("more"))
    assert len(listed.prompts) == 3


@pytest.mark.parametrize("arguments", ["{", "[]", "[" * 100_000, "7"])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    """A model writes them, so they are checked where they are read."""
    with pytest.raises(ModelFailed, match="no JSON object"):
        ToolCall(id="1", name="gdp", arguments=arguments).parsed()


def test_prices_round_up() -> None:
    """A millionth of a dollar is the smallest that is spent."""
    usage = ModelUsage(prompt_tokens=1, completion_tokens=0)
    assert Prices(0.1, 0.1).cost_microusd(usage) == 1


# --- what is asked for ----------------------------------------------------------------------------


class Valuation(BaseModel):
    """A shape to ask for."""

    usd_bn: float


def test_a_prompt_without_a_shape_is_recorded_as_ever() -> None:
    """So calls that an earlier version has recorded are found again; another shape is another
    call."""
    prompt = Prompt.of("How much?", seed=7)
    earlier: dict[str, Any] = {
        "messages": [{"role": "user", "content": "How much?", "tool_calls": [], "answers": None}],
        "tools": [],
        "temperature": None,
        "seed": 7,
        "tokens_max": None,
    }
    assert prompt.plain() == earlier
    asked = prompt.asking_for(Valuation).plain()
    assert asked == earlier | {"output": Valuation.model_json_schema()}


@pytest.mark.parametrize(
    "text",
    [
        '{"usd_bn": 2900}',
        '```json\n{"usd_bn": 2900}\n```\n',
        '\n ```{"usd_bn": 2900}```',
        '```json{"usd_bn": 2900}\n\n```',
    ],
)
def test_an_answer_is_read_as_a_shape(text: str) -> None:
    """Also from a block of Markdown, which some models cannot do without."""
    reply = Reply(text=text, model="m", version="1")
    assert reply.parsed(Valuation).usd_bn == 2900


@pytest.mark.parametrize("text", ["a lot", '{"usd_bn": "a lot"}', "", "[" * 100_000])
def test_an_answer_of_another_shape_is_refused(text: str) -> None:
    """With the path, and the beginning of the text, so that the model can be asked again."""
    with pytest.raises(ModelFailed, match=r"not what was asked for: (usd_bn|it): "):
        Reply(text=text, model="m", version="1").parsed(Valuation)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", ["", "```", "``", "x"])
def test_an_answer_of_white_space_is_refused_at_once(end: str) -> None:
    """Models that fail produce it; the event loop waits until it is read."""
    reply = Reply(text="```json" + "\n" * 100_000 + end, model="m", version="1")
    with pytest.raises(ModelFailed, match="not what was asked for"):
        reply.parsed(Valuation)


def test_what_has_no_schema_cannot_be_asked_for() -> None:
    """Where it is made."""
    with pytest.raises(InvalidRequest):
        Prompt.of("How much?").asking_for(type(lambda: None))


async def test_a_script_streams_word_by_word() -> None:
    """What is streamed is the reply, spaces and all."""

    class Page:
        def __init__(self) -> None:
            self.pieces: list[str] = []

        def restart(self) -> None:
            self.pieces = []

        def append(self, text: str) -> None:
            self.pieces.append(text)

    page = Page()
    reply = await ScriptedModel(lambda _: "one  two\nthree").stream(Prompt.of("go"), page)
    assert page.pieces == ["one  ", "two\n", "three"]
    assert "".join(page.pieces) == reply.text


@pytest.mark.parametrize(
    "terms", [{"attempts": 0}, {"timeout_ms": 0}, {"first_pause_s": -1.0}, {"first_pause_s": nan}]
)
def test_no_patience_at_all_is_refused(terms: Any) -> None:
    """Where it is written, and not at the first call."""
    with pytest.raises(InvalidRequest, match=next(iter(terms))):
        Patience(**terms)
