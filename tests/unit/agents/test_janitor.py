"""The janitor on a real board, with exactly the rights that it needs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from blackboard.agents.janitor import Janitor, first_words

import blackboard
from blackboard import Board, Recall, RunOptions, ScriptedModel, Transcript, run_agent
from blackboard.client.client import Client
from blackboard.core.access import AccessGrant, Principal, Right, agent
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import AccessDenied
from blackboard.runtime.transcripts import Turn
from blackboard.server.service import Service

TALK = Transcript("ada")
ALLOWED = AccessGrant("private/ada/~transcript/**", frozenset({Right.READ, Right.WRITE}))


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service in this process."""
    async with Service(await SqliteStore.at(tmp_path, "memory")) as service:
        yield service


def board_of(service: Service, principal: Principal) -> Board:
    """The board as `principal`."""
    return Client(service.link(principal)).board("main")


def janitor_of(service: Service, *more: AccessGrant) -> Board:
    """The board as a janitor with `more` rights than any agent."""
    own = agent("janitor")
    return board_of(service, Principal("janitor", (*own.grants, *more)))


async def talk(service: Service, turns: int) -> Board:
    """Let ada say so many things."""
    ada = board_of(service, agent("ada"))
    for number in range(turns):
        async with ada.step() as step:
            TALK.add(step, "user", f"word{number} and so on")
    return ada


async def test_a_page_is_archived_whenever_there_is_one(service: Service) -> None:
    """Each with one question to the model; nothing is lost."""
    ada = await talk(service, 11)
    model = ScriptedModel(lambda prompt: f"summary {len(prompt.messages[1].content)}")
    janitor = Janitor("janitor", ["ada"], model, every=3, keep=2)
    stepped = await run_agent(janitor, janitor_of(service, ALLOWED), RunOptions(leaves=True))
    assert stepped.idle
    assert len(model.prompts) == 3
    assert (await TALK.account(ada)).archived == 9
    window = await TALK.window(ada)
    assert (len(window.turns), window.summary[:8]) == (2, "summary ")
    with Recall(TALK) as recall:
        assert len(await recall.search(ada, "word4 word10")) == 2


async def test_without_a_model_turns_are_summarised_by_their_beginning(service: Service) -> None:
    """And a summary does not grow for ever."""
    ada = await talk(service, 2)
    janitor = Janitor("janitor", ["ada"], every=2, keep=0)
    await run_agent(janitor, janitor_of(service, ALLOWED), RunOptions(leaves=True))
    assert (await TALK.window(ada)).summary == "user: word0 and so on\nuser: word1 and so on"
    long = Turn(index=0, role="user", text="x" * 9_000, tokens=1, time_ms=0)
    assert len(first_words("y" * 9_000, [long])) == 4_000


async def test_a_janitor_needs_its_rights(service: Service) -> None:
    """It is an agent like any other."""
    await talk(service, 4)
    janitor = Janitor("janitor", ["ada"], every=1, keep=0)
    with pytest.raises(AccessDenied):
        await run_agent(janitor, janitor_of(service), RunOptions(leaves=True))


def test_agents_use_public_names_only() -> None:
    """What the janitor needs is exported."""
    assert {"Agent", "Context", "Model", "Prompt", "Transcript"} <= set(blackboard.__all__)
