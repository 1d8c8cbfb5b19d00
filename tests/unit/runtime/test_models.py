"""Prompts, prices and the scripted model. The client of a real one: test_chat.py."""

import pytest
from pydantic import ValidationError

from blackboard.errors import ModelFailed
from blackboard.runtime.models import ModelUsage, Prices, Prompt, ScriptedModel, ToolCall


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
