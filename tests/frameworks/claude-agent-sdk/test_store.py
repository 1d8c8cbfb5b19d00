"""Our SessionStore with the real SDK: its conformance suite, its helpers, workers, bad input."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeSDKError,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
    rename_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance
from claude_agent_sdk.types import SessionKey

import blackboard
from blackboard import Board
from blackboard.errors import AccessDenied, LimitExceeded, Unavailable
from blackboard.integrations.claude_agent_sdk import BATCH_LINES_MAX, BlackboardSessionStore
from blackboard.limits import OPERATIONS_MAX, VALUE_BYTES_MAX
from tests.frameworks.conftest import Service
from tests.frameworks.shared import collide, examples_run, redact_and_restore, removals

KEY: SessionKey = {"project_key": "p", "session_id": "s"}
SUB: SessionKey = {"project_key": "p", "session_id": "s", "subpath": "subagents/agent-1"}
CONTRACTS = 14


def line(uuid: str, **more: Any) -> Any:
    """A line of a transcript."""
    return {"type": "user", "uuid": uuid, **more}


@pytest.mark.parametrize("is_synchronous", [False, True])
async def test_the_conformance_suite_of_the_sdk_passes(
    tmp_path: Path, is_synchronous: bool
) -> None:
    """All 14 contracts, none skipped, on an asynchronous board and on one of blackboard.sync."""
    numbers = count()
    with blackboard.sync.open(tmp_path / "sync", level="memory") as synchronous:
        async with blackboard.open(tmp_path / "async", level="memory") as client:

            def make() -> BlackboardSessionStore:
                name = f"board-{next(numbers)}"
                if is_synchronous:
                    return BlackboardSessionStore(synchronous.board(name))
                return BlackboardSessionStore(client.board(name))

            await run_session_store_conformance(make)
    assert next(numbers) == CONTRACTS + 1  # each has a store of its own, and one is looked at


async def test_the_helpers_of_the_sdk_work(board: Board) -> None:
    """Listed by summary, read, renamed and forked."""
    store, folder = BlackboardSessionStore(board), "/srv/app"
    id_ = "4f5b1d4e-0000-4000-8000-000000000001"
    key: SessionKey = {"project_key": project_key_for_directory(folder), "session_id": id_}
    asked = {"role": "user", "content": "Where is the bug?"}
    when = "2026-01-01T00:00:00.000Z"
    uuid = "4f5b1d4e-0000-4000-8000-000000000002"
    await store.append(key, [line(uuid, sessionId=id_, message=asked, timestamp=when)])
    await rename_session_via_store(store, id_, "bug", directory=folder)
    forked = await fork_session_via_store(store, id_, directory=folder)
    found = await list_sessions_from_store(store, directory=folder)
    assert {one.session_id for one in found} == {id_, forked.session_id}
    assert next(one for one in found if one.session_id == id_).custom_title == "bug"
    [message] = await get_session_messages_from_store(store, forked.session_id, directory=folder)
    assert message.message == asked


async def test_a_repeated_line_is_stored_once(board: Board) -> None:
    """By uuid, within a call and between calls; lines without one always are."""
    store = BlackboardSessionStore(board)
    title: Any = {"type": "title", "customTitle": "t"}
    await store.append(KEY, [line("a"), line("a"), title])
    await store.append(KEY, [line("a"), line("b"), title])
    assert await store.load(KEY) == [line("a"), title, line("b"), title]
    before = await board.head()
    await store.append(KEY, [line("a"), line("b")])
    assert (await board.head()).revision == before.revision


@pytest.mark.parametrize("lines", [BATCH_LINES_MAX, BATCH_LINES_MAX + 1])
async def test_large_batches_are_several_commits(board: Board, lines: int) -> None:
    """One more line than a commit takes is a second commit, and in its place."""
    store = BlackboardSessionStore(board)
    before = (await board.head()).revision
    entries = [line(f"u{number}") for number in range(lines)]
    await store.append(KEY, entries)
    assert await store.load(KEY) == entries
    assert (await board.head()).revision - before == (1 if lines == BATCH_LINES_MAX else 2)


async def test_many_bytes_are_several_commits(board: Board) -> None:
    """More than a commit may have, of lines that each may be stored."""
    store = BlackboardSessionStore(board)
    entries = [line(f"u{number}", text="x" * 900_000) for number in range(6)]
    await store.append(KEY, entries)
    assert await store.load(KEY) == entries


async def test_two_workers_collide(board: Board, service: Service) -> None:
    """No line is lost, a line of both is there once, and the summary follows the last line."""
    said = await collide(Path(__file__).with_name("worker.py"), service.url, service.token)
    store = BlackboardSessionStore(board)
    found = await store.load(KEY) or []
    uuids = [entry["uuid"] for entry in found]
    assert said == [15, 15]
    assert len(uuids) == len(set(uuids)) == 45
    [summary] = await store.list_session_summaries("p")
    [session] = await store.list_sessions("p")
    assert summary["mtime"] == session["mtime"]


async def test_a_restore_takes_back_subagents_too(board: Board) -> None:
    """And a store from before it is refused, until its board is refreshed."""
    store = BlackboardSessionStore(board)
    await store.append(KEY, [line("a")])
    await store.append(SUB, [line("b")])
    await board.checkpoint("before")
    await store.append(SUB, [line("c")])
    await store.delete(KEY)
    assert await store.load(SUB) is None
    await board.restore("before")
    assert await store.load(KEY) == [line("a")]
    assert await store.load(SUB) == [line("b")]
    assert await store.list_subkeys({"project_key": "p", "session_id": "s"}) == [SUB["subpath"]]


async def test_what_is_redacted_ends_no_list(board: Board, service: Service) -> None:
    """Though a restore brings its marker back: of a line, and of what says that there are lines."""
    store = BlackboardSessionStore(board)
    for session in "st":
        where: Any = {**KEY, "session_id": session}
        await store.append(where, [line("a"), line("b")])
    [gone, _] = (await board.list("public/claude/p/s/main/lines/*")).entries
    marked = ("public/claude/p/t/main/about", gone.key)
    await redact_and_restore(service.url, service.token, *marked)
    await board.refresh()
    assert [one["session_id"] for one in await store.list_sessions("p")] == ["s"]
    assert [one["session_id"] for one in await store.list_session_summaries("p")] == ["s"]
    assert await store.load(KEY) == [line("b")]
    await store.append({**KEY, "session_id": "t"}, [line("c")])
    assert [one["session_id"] for one in await store.list_sessions("p")] == ["s", "t"]


# --- bad input ------------------------------------------------------------------------------------


async def test_a_missing_session_is_none(board: Board) -> None:
    """Removing it does nothing."""
    store = BlackboardSessionStore(board)
    await store.delete(KEY)
    assert await store.load(KEY) is None


async def test_a_subagent_is_deleted_alone(board: Board) -> None:
    """Whatever its subpath is; the others, and the session, stay."""
    store = BlackboardSessionStore(board)
    for subpath in (None, "main", "sub", "about", "subagents/agent-1"):
        where: Any = {**KEY, "subpath": subpath} if subpath else KEY
        await store.append(where, [line("a")])
    for subpath, left in (("main", 3), ("sub", 2), ("about", 1)):
        await store.delete({**KEY, "subpath": subpath})
        assert len(await store.list_subkeys({"project_key": "p", "session_id": "s"})) == left
    assert [await store.load(KEY), await store.load(SUB)] == [[line("a")], [line("a")]]


@pytest.mark.parametrize("subpath", [None, "subagents/agent-1"])
async def test_half_a_deletion_loses_no_later_line(board: Board, subpath: str | None) -> None:
    """A transcript of more than one commit's lines, and a connection that breaks meanwhile."""
    store = BlackboardSessionStore(board)
    where: Any = {**KEY, "subpath": subpath} if subpath else KEY
    await store.append(where, [line(f"u{number}") for number in range(OPERATIONS_MAX)])
    with removals(board, 1), pytest.raises(ClaudeSDKError):
        await store.delete(where)
    again = [line(f"u{number}") for number in range(OPERATIONS_MAX)]
    await store.append(where, again)
    kept = await store.load(where) or []
    assert {entry["uuid"] for entry in kept} == {entry["uuid"] for entry in again}
    await store.delete(where)
    assert await store.load(where) is None
    await store.append(where, again[:2])
    assert await store.load(where) == again[:2]


async def test_a_foreign_namespace_is_refused(stranger: Board) -> None:
    """ClaudeSDKError, which the SDK reports as a MirrorErrorMessage."""
    store = BlackboardSessionStore(stranger, prefix="private/alice/claude")
    for call in (store.append(KEY, [line("a")]), store.load(KEY), store.list_sessions("p")):
        with pytest.raises(ClaudeSDKError) as caught:
            await call
        assert isinstance(caught.value.__cause__, AccessDenied)


async def test_an_oversized_line_is_refused_with_its_batch(board: Board) -> None:
    """Also behind as many lines as make a commit of their own."""
    store = BlackboardSessionStore(board)
    many = [line(f"u{number}") for number in range(BATCH_LINES_MAX)]
    with pytest.raises(ClaudeSDKError) as caught:
        await store.append(KEY, [*many, line("big", text="x" * VALUE_BYTES_MAX)])
    assert isinstance(caught.value.__cause__, LimitExceeded)
    assert await store.load(KEY) is None


async def test_a_dead_service_is_reported(tmp_path: Path) -> None:
    """With the board's error as the cause."""
    async with blackboard.open(tmp_path) as client:
        store = BlackboardSessionStore(client.board("main"))
    with pytest.raises(ClaudeSDKError) as caught:
        await store.append(KEY, [line("a")])
    assert isinstance(caught.value.__cause__, Unavailable)


async def test_a_board_of_another_loop_is_refused(board: Board) -> None:
    """It would wait for ever."""
    store = BlackboardSessionStore(board)
    with pytest.raises(ClaudeSDKError, match=r"blackboard\.sync"):
        await asyncio.to_thread(lambda: asyncio.run(store.load(KEY)))


async def test_the_examples_of_its_page_run(tmp_path: Path) -> None:
    """docs/howto/claude_agent_sdk.md."""
    assert await examples_run("claude_agent_sdk", tmp_path) > 0
