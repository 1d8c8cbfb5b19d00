"""The janitor on a real board, with exactly the rights that it needs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from blackboard.agents.janitor import Janitor, Memories, first_words, headlines

import blackboard
from blackboard import Board, Recall, RunOptions, ScriptedModel, Transcript, run_agent
from blackboard.client.client import Client
from blackboard.core.access import AccessGrant, Principal, Right, agent
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import AccessDenied
from blackboard.runtime.transcripts import Turn
from blackboard.server.service import Service
from blackboard.types import MemoryPolicy
from tests.unit.client.memory.toy import MODEL, embed
from tests.waiting import wait_until

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


MEMORY = AccessGrant("private/ada/~memory/**", frozenset({Right.READ, Right.WRITE, Right.APPEND}))


async def test_memories_become_summaries_that_lead_back_to_them(service: Service) -> None:
    """What the policy does not keep; the next one that is too many wakes it."""
    ada = board_of(service, agent("ada"))
    for number in range(7):
        await ada.put(f"private/ada/mail/{number}", number)
    model = ScriptedModel(lambda prompt: f"merged: {prompt.messages[1].content}")
    cleaning = janitor_of(service, ALLOWED, MEMORY)
    theirs = cleaning.memory(namespace="private/ada", embed=embed, model=MODEL)
    async with ada.memory(embed=embed, model=MODEL) as memory, theirs:
        kept = [
            await memory.remember(
                f"copper fell to {number}", sources=[f"private/ada/mail/{number}"]
            )
            for number in range(7)
        ]
        policy = MemoryPolicy(count_max=2, group=3)
        janitor = Janitor("janitor", ["ada"], model, memories=Memories([theirs], policy))
        await run_agent(janitor, cleaning, RunOptions(leaves=True))
        texts = {one.text for one in await memory.newest()}
        first = "merged: copper fell to 0\n\ncopper fell to 1\n\ncopper fell to 2"
        second = "merged: copper fell to 3\n\ncopper fell to 4"
        assert texts == {first, second, "copper fell to 5", "copper fell to 6"}
        assert len(model.prompts) == 2
        (found,) = await memory.search("copper 1", limit=1, words_weight=0)
        assert found.similarity is not None  # it was embedded, as the others
        summaries = {one.text: one for one in await memory.newest()}
        causes = {cause.key for cause in await ada.why(summaries[first].key)}
        assert causes >= {*kept[:3], *(f"private/ada/mail/{number}" for number in range(3))}
        assert causes.isdisjoint(kept[3:])
        notes = [revised.note for revised in await cleaning.log(after=0)]
        assert "consolidated 5 memories" in notes


async def test_without_a_model_memories_are_summarised_by_their_beginning(
    service: Service,
) -> None:
    """And a summary is no longer than a memory may be; nothing to do is no commit."""
    ada = board_of(service, agent("ada"))
    cleaning = janitor_of(service, ALLOWED, MEMORY)
    async with ada.memory() as memory, cleaning.memory(namespace="private/ada") as theirs:
        await memory.remember_all([f"word{number} a b c d e f g h i" for number in range(3)])
        janitor = Janitor(
            "janitor", memories=Memories([theirs], MemoryPolicy(count_max=0, group=3))
        )
        await run_agent(janitor, cleaning, RunOptions(leaves=True))
        (found,) = await memory.newest()
        assert found.text.splitlines() == [f"word{number} a b c d e f g" for number in range(3)]
        before = (await ada.head()).revision
        assert (await run_agent(janitor, cleaning, RunOptions(leaves=True))).idle
        notes = [revised.note for revised in await ada.log(after=before)]
        assert [note for note in notes if "consolidated" in note] == []
        assert len(headlines([found] * 300)) == 4_000


async def _is_idle(board: Board) -> bool:
    return [one.state for one in await board.agents()] == ["idle"]


async def test_a_new_memory_wakes_the_janitor(service: Service) -> None:
    """It rests on the store."""
    ada = board_of(service, agent("ada"))
    cleaning = janitor_of(service, MEMORY)
    async with ada.memory() as memory, cleaning.memory(namespace="private/ada") as theirs:
        await memory.remember_all(["a", "b"])
        janitor = Janitor(
            "janitor", memories=Memories([theirs], MemoryPolicy(count_max=2, group=2))
        )
        working = asyncio.create_task(run_agent(janitor, cleaning))
        async with ada.watch(f"{memory.prefix}/entries/**") as watch:
            await wait_until(lambda: _is_idle(ada))
            await memory.remember_all(["c", "d"])
            async for revised in watch:
                if "consolidated" in revised.note:
                    break
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        assert {one.text for one in await memory.newest()} == {"a\nb", "c", "d"}


async def test_stores_that_are_too_large_for_a_condition_are_kept_short(service: Service) -> None:
    """The first step has its state to put, and the second one a summary: neither says what a whole
    store has to be."""
    ada = board_of(service, agent("ada"))
    cleaning = janitor_of(service, MEMORY)
    async with ada.memory() as memory, cleaning.memory(namespace="private/ada") as theirs:
        janitor = Janitor("janitor", memories=Memories([theirs]))
        for count in (1_030, 2):
            await memory.remember_all([f"word{number}" for number in range(count)])
            assert (await run_agent(janitor, cleaning, RunOptions(leaves=True))).idle
        assert await memory.count() == 1_001


def test_agents_use_public_names_only() -> None:
    """What the janitor needs is exported."""
    assert {"Agent", "Context", "Model", "Prompt", "Transcript"} <= set(blackboard.__all__)
