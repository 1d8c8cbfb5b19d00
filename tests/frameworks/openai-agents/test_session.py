"""Our Session with the real SDK: its Runner, colliding workers, bad input."""

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent as OtherAgent
from pydantic_ai.conversation import Conversation
from pydantic_ai.models.test import TestModel

import blackboard
from blackboard import Board
from blackboard.errors import AccessDenied, LimitExceeded, LocalProtocolError, Unavailable
from blackboard.integrations.openai_agents import BlackboardSession
from blackboard.integrations.pydantic_ai import BlackboardConversationStore
from blackboard.limits import VALUE_BYTES_MAX
from tests.frameworks.conftest import Service
from tests.frameworks.shared import collide, distinct, examples_run, losses

agents = import_module("agents")  # our folder of that name hides its types from mypy
testing = import_module("agents.testing")
USER: dict[str, Any] = {"role": "user", "content": "hello"}


def agent(*replies: str) -> Any:
    """An agent that gives these replies in turn."""
    script = [[testing.assistant_message(reply)] for reply in replies]
    return agents.Agent(name="a", model=testing.ScriptedModel(script))


async def test_two_runs_remember(board: Board) -> None:
    """The second run, by another object of the same session, sees the first."""
    name = "user@example.com / thread 7 " + "x" * 500
    assert isinstance(BlackboardSession(name, board), import_module("agents.memory").Session)
    speaker = agent("hello", "again")
    await agents.Runner.run(speaker, "hi", session=BlackboardSession(name, board))
    session = BlackboardSession(name, board)
    await agents.Runner.run(speaker, "more", session=session)
    items = await session.get_items()
    assert [item["role"] for item in items] == ["user", "assistant"] * 2
    assert await session.get_items(1) == items[-1:]
    popped = await session.pop_item()
    assert popped is not None
    assert popped["content"][0]["text"] == "again"
    await session.clear_session()
    assert (await session.get_items(), await session.pop_item()) == ([], None)


def test_run_sync_with_a_synchronous_board(tmp_path: Path) -> None:
    """The SDK runs a loop of its own; the board's is another one."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with blackboard.sync.open(tmp_path) as client:
        session = BlackboardSession("s", client.board("main"))
        found = agents.Runner.run_sync(agent("hello"), "hi", session=session)
        assert found.final_output == "hello"
        assert len(loop.run_until_complete(session.get_items())) == 2
    asyncio.set_event_loop(None)
    loop.close()


async def test_limits_are_those_of_the_settings(board: Board) -> None:
    """By settings, and by the argument, which comes first; no more than one page is asked for."""
    session = BlackboardSession("s", board, session_settings={"limit": 2})
    await session.add_items([USER | {"content": str(number)} for number in range(1_024)])
    await session.add_items([USER | {"content": "1024"}])
    assert [item["content"] for item in await session.get_items()] == ["1023", "1024"]
    assert [item["content"] for item in await session.get_items(1)] == ["1024"]
    assert await session.get_items(0) == []
    assert len(await session.get_items(2_000)) == 1_025
    await session.clear_session()
    assert await session.get_items(2_000) == []


async def test_two_workers_collide(board: Board, service: Service) -> None:
    """Each pair of items stands together, none is lost; no item is popped twice."""
    queue = BlackboardSession("queue", board)
    await queue.add_items([USER | {"content": str(number)} for number in range(40)])
    taken = await collide(Path(__file__).with_name("worker.py"), service.url, service.token)
    assert distinct(taken[0] + taken[1])
    assert len(taken[0] + taken[1]) == 40
    items = await BlackboardSession("thread", board).get_items()
    assert len(items) == 80
    assert distinct(items)
    assert all(a["content"] == b["content"] for a, b in zip(items[::2], items[1::2], strict=True))


async def test_one_restore_takes_back_the_sessions_of_two_frameworks(board: Board) -> None:
    """An OpenAI session and a Pydantic AI conversation, by the same checkpoint."""
    session, store = BlackboardSession("s", board), BlackboardConversationStore(board)
    other = OtherAgent(TestModel())
    await agents.Runner.run(agent("hello"), "hi", session=session)
    await store.save(await other.run("hi", conversation=Conversation(conversation_id="c")))
    await board.checkpoint("before")
    items, kept = await session.get_items(), await store.load("c")
    assert kept is not None
    await agents.Runner.run(agent("worse"), "more", session=session)
    await store.save(await other.run("more", conversation=await store.load("c")))
    await board.restore("before")
    after = await store.load("c")
    assert after is not None
    assert await session.get_items() == items
    assert after.messages == kept.messages


async def test_a_worker_of_the_abandoned_future_is_refused(board: Board, service: Service) -> None:
    """It adds nothing to what was restored, and learns why."""
    async with blackboard.connect(service.url, token=service.token) as late:
        session = BlackboardSession("s", late.board("main"))
        await session.add_items([USER])
        await board.checkpoint("before")
        await session.add_items([USER])
        await board.restore("before")
        with pytest.raises(agents.exceptions.UserError) as caught:
            await session.add_items([USER])
        assert isinstance(caught.value.__cause__, blackboard.StaleEpoch)
    assert await BlackboardSession("s", board).get_items() == [USER]


# --- bad input ------------------------------------------------------------------------------------


async def test_a_missing_session_is_empty(board: Board) -> None:
    """As with the SDK's own sessions: a session begins with its first item."""
    session = BlackboardSession("", board)
    await session.clear_session()
    await session.add_items([])
    assert (await session.get_items(), await session.pop_item()) == ([], None)


async def test_a_foreign_namespace_is_refused(stranger: Board) -> None:
    """The right is checked by the service, and the SDK's own error says so."""
    session = BlackboardSession("s", stranger, prefix="private/alice/sessions")
    for call in (session.add_items([USER]), session.get_items(), session.clear_session()):
        with pytest.raises(agents.exceptions.UserError) as caught:
            await call
        assert isinstance(caught.value.__cause__, AccessDenied)


async def test_an_oversized_item_is_refused_with_its_whole_call(board: Board) -> None:
    """And one that is no plain data; what was there stays."""
    session = BlackboardSession("s", board)
    await session.add_items([USER])
    for bad, kind in (
        (USER | {"content": "x" * VALUE_BYTES_MAX}, LimitExceeded),
        ({"x": {1}}, None),
    ):
        with pytest.raises(agents.exceptions.UserError) as caught:
            await session.add_items([USER, bad])
        assert kind is None or isinstance(caught.value.__cause__, kind)
    assert await session.get_items() == [USER]


async def test_a_dead_service_is_reported(tmp_path: Path) -> None:
    """AgentsException, and not a UserError: the caller did nothing wrong."""
    async with blackboard.open(tmp_path) as client:
        session = BlackboardSession("s", client.board("main"))
    with pytest.raises(agents.exceptions.AgentsException) as caught:
        await session.add_items([USER])
    assert isinstance(caught.value.__cause__, Unavailable)
    assert not isinstance(caught.value, agents.exceptions.UserError)


async def test_a_board_of_another_loop_is_refused(board: Board) -> None:
    """`Runner.run_sync` has a loop of its own; with such a board it would wait for ever."""
    session = BlackboardSession("s", board)
    with pytest.raises(agents.exceptions.AgentsException, match=r"blackboard\.sync") as caught:
        await asyncio.to_thread(lambda: asyncio.run(session.get_items()))
    assert isinstance(caught.value.__cause__, LocalProtocolError)


async def test_the_examples_of_its_page_run(tmp_path: Path) -> None:
    """docs/howto/openai_agents.md."""
    assert await examples_run("openai_agents", tmp_path) > 0


async def test_the_benchmark_measures_every_store(tmp_path: Path) -> None:
    """bench/sessions.py measures each store; ours loses nothing when two workers collide."""
    found = await losses("openai-agents", tmp_path)
    assert found["openai-agents-board"] == 0
    assert len(found) == 2
