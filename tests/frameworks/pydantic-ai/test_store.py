"""Our ConversationStore beside the framework's own, with colliding workers and bad input."""

import asyncio
import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.models.test import TestModel

import blackboard
from blackboard import Board
from blackboard.errors import AccessDenied, LimitExceeded, Unavailable
from blackboard.integrations.pydantic_ai import BlackboardConversationStore
from blackboard.limits import VALUE_BYTES_MAX
from tests.frameworks.conftest import Service
from tests.frameworks.shared import collide, examples_run, redact_and_restore

agent = Agent(TestModel())


async def turn(
    store: ConversationStore, id_: str, text: Any = "hi", scope: str | None = None
) -> None:
    """One more turn of a conversation, saved."""
    loaded = await store.load(id_) or Conversation(conversation_id=id_)
    await store.save(await agent.run(text, conversation=loaded), scope=scope)


async def kept(board: Board) -> list[str]:
    """The keys that the store has."""
    return [entry.key async for entry in board.scan("public/pydantic-ai/**")]


async def test_a_conversation_is_kept_whole(board: Board) -> None:
    """Bytes and usage too; any text is an id."""
    store, id_ = BlackboardConversationStore(board), "ann@example.com / " + "x" * 300
    image = BinaryContent(b"%PDF\xff", media_type="application/pdf")
    first = await agent.run(
        ["What is this?", image], conversation=Conversation(conversation_id=id_)
    )
    await store.save(first)
    loaded = await store.load(id_)
    assert loaded is not None
    assert loaded.messages == first.conversation.messages
    assert loaded.usage == first.conversation.usage
    await turn(store, id_, "more")
    assert [len(c.messages) for n in (1, 9) if (c := await store.load(id_, limit=n))] == [1, 4]


# --- beside the framework's own store -------------------------------------------------------------


class Walk:
    """The same random calls on both stores; each answer is compared."""

    def __init__(self, store: ConversationStore, other: ConversationStore, seed: int) -> None:
        self.stores = (store, other)
        self.random = random.Random(seed)
        self.ids = ["a", "b", "c d", "e/f"]

    async def step(self) -> None:
        """One call, with the same arguments."""
        kind = self.random.choice(["turn", "turn", "fork", "branch", "delete", "save", "list"])
        id_, other, at = *self.random.sample(self.ids, 2), self.random.randrange(4)
        scope = self.random.choice([None, "x", "y"])
        answers = [await self._answer(store, kind, id_, other, at, scope) for store in self.stores]
        assert answers[0] == answers[1], (kind, id_, other, at, scope)

    async def _answer(
        self, store: ConversationStore, kind: str, id_: str, other: str, at: int, scope: str | None
    ) -> Any:
        try:
            match kind:
                case "turn":
                    await turn(store, id_, f"{id_}{at}", scope)
                case "fork":
                    await store.fork(id_, at=at, new_conversation_id=other, scope=scope)
                case "branch":
                    loaded = await store.load(id_)
                    revision = loaded.revision if loaded and loaded.revision else ""
                    await store.branch(id_, at=at, expected_revision=revision)
                case "delete":
                    await store.delete(id_, scope=scope)
                case "save":  # of a history that was rewritten from its first message
                    run = await agent.run(
                        f"new {at}", conversation=Conversation(conversation_id=id_)
                    )
                    stored = await store.load(id_)
                    run.conversation.revision = stored.revision if stored else None
                    await store.save(run.conversation)
        except UserError as error:
            return type(error)
        return await self._shown(store)

    async def _shown(self, store: ConversationStore) -> Any:
        """Everything that does not differ by chance: texts, scopes, branches, forks."""
        found = []
        for record in sorted(await store.list_conversations(), key=lambda one: one.conversation_id):
            entries = await store.load_entries(record.conversation_id)
            assert entries is not None
            for tip in record.branches:
                entries += await store.read_history(tip)
            texts = [
                str([getattr(part, "content", part) for part in e.message.parts]) for e in entries
            ]
            facts = (record.conversation_id, record.scope, record.forked_from, len(record.branches))
            found.append((facts, texts))
        return found


@pytest.mark.parametrize("seed", range(6))
async def test_it_answers_as_the_frameworks_own(tmp_path: Path, seed: int) -> None:
    """Forty calls drawn from `seed`; at the end everything is deleted, and nothing is left."""
    async with blackboard.open(tmp_path, level="memory") as client:
        board = client.board("main")
        store = BlackboardConversationStore(board)
        walk = Walk(store, InMemoryConversationStore(), seed)
        for _ in range(40):
            await walk.step()
        for id_ in walk.ids:
            await store.delete(id_)
        assert await kept(board) == []


async def test_a_history_is_read_page_by_page(board: Board) -> None:
    """Two requests, and not one for each message."""
    store = BlackboardConversationStore(board)
    for number in range(6):
        await turn(store, "c", str(number))
    record = await store.read_record("c")
    assert record is not None
    asked: list[Any] = []
    ask = store._records._call

    async def counted(method: Any, *arguments: Any) -> Any:
        asked.append(method)
        return await ask(method, *arguments)

    store._records._call = counted  # type: ignore[method-assign]
    assert len(await store.read_history(record.head_id)) == 12
    assert len(asked) == 2


async def test_nothing_is_added_to_a_tree_that_is_deleted(board: Board) -> None:
    """A fork of what another worker has deleted meanwhile is a conflict, and leaves nothing."""
    store = BlackboardConversationStore(board)
    await turn(store, "c")
    record = await store.read_record("c")
    assert record is not None
    await store.delete("c")
    fork = dataclasses.replace(record, conversation_id="fork")
    with pytest.raises(ConversationConflict):
        await store.write_record(fork, expected_revision=None)
    assert await kept(board) == []


@pytest.mark.parametrize("first", ["other", "fork"])
async def test_nothing_is_added_to_a_tree_that_is_half_deleted(board: Board, first: str) -> None:
    """The worker that deletes dies when the record is gone and the messages are still there.

    They go when somebody deletes another conversation, or tries to add to this one.
    """
    store, dying = BlackboardConversationStore(board), BlackboardConversationStore(board)
    await turn(store, "c")
    record = await store.read_record("c")
    assert record is not None

    async def die(ending: Any) -> None:
        raise asyncio.CancelledError

    dying._end = die  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await dying.delete("c")
    assert any("/entries/" in key for key in await kept(board))
    if first == "other":
        await turn(store, "d")
        await store.delete("d")
        assert await kept(board) == []
    fork = dataclasses.replace(record, conversation_id="fork")
    with pytest.raises(ConversationConflict):
        await store.write_record(fork, expected_revision=None)
    assert await kept(board) == []


async def test_a_conversation_is_saved_again_after_half_a_deletion(board: Board) -> None:
    """Nothing of it is removed later by the worker that was stopped while it deleted."""
    store, stopped = BlackboardConversationStore(board), BlackboardConversationStore(board)
    await turn(store, "c")
    saved = await store.load("c")
    record, history = await store.read_record("c"), list[Any]()
    assert saved is not None
    assert record is not None
    history += await store.read_history(record.head_id)
    read, rest = stopped._records.all, list[bool]()

    async def read_and_stop(pattern: str, **options: Any) -> Any:
        found = await read(pattern, **options)
        if pattern.endswith("/**") and not rest:
            rest.append(True)
            await store.write_record(record, new_entries=history, expected_revision=None)
        return found

    stopped._records.all = read_and_stop  # type: ignore[method-assign]
    await stopped.delete("c")
    again = await store.load("c")
    assert rest
    assert again is not None
    assert again.messages == saved.messages


async def test_a_conversation_and_its_fork_are_deleted_at_once(board: Board) -> None:
    """Each worker sees that the other one has the messages: the later one deletes them."""
    store, slow = BlackboardConversationStore(board), BlackboardConversationStore(board)
    await turn(store, "c")
    await store.fork("c", new_conversation_id="fork")
    accepted, rest = slow._records.accepted, list[bool]()

    async def accepted_later(*arguments: Any) -> Any:
        if not rest:
            rest.append(True)
            await store.delete("fork")
        return await accepted(*arguments)

    slow._records.accepted = accepted_later  # type: ignore[assignment]
    await slow.delete("c")
    assert rest
    assert await kept(board) == []


async def test_two_workers_collide(board: Board, service: Service) -> None:
    """Every turn is in the conversation once; of those at the same revision, all but one were
    refused."""
    refused = await collide(Path(__file__).with_name("worker.py"), service.url, service.token)
    loaded = await BlackboardConversationStore(board).load("c")
    assert loaded is not None
    asked = [
        str(getattr(part, "content", None))
        for message in loaded.messages[::2]
        for part in message.parts
    ]
    assert sorted(map(str, asked)) == [
        f"{number}.{index}" for number in (0, 1) for index in range(8)
    ]
    assert len(loaded.messages) == 32
    assert sum(refused) > 0, "they never met"


async def test_a_restore_takes_conversations_back(board: Board) -> None:
    """What was saved afterwards is gone, and what was loaded afterwards cannot be saved."""
    store = BlackboardConversationStore(board)
    await turn(store, "c")
    await board.checkpoint("before")
    await turn(store, "c")
    late = await store.load("c")
    await board.restore("before")
    with pytest.raises(ConversationConflict):
        await store.save(await agent.run("late", conversation=late))
    loaded = await store.load("c")
    assert loaded is not None
    assert len(loaded.messages) == 2


async def test_what_is_redacted_ends_no_list(board: Board, service: Service) -> None:
    """Though a restore brings its marker back: of a conversation, and of a message, which goes with
    its conversation."""
    store = BlackboardConversationStore(board)
    for id_ in "cde":
        await turn(store, id_)
    record = await store.read_record("e")
    assert record is not None
    assert record.head_id is not None
    root = (await store.read_history(record.head_id))[0].id
    marked = ("public/pydantic-ai/records/d", store._entry_key(root, root))
    await redact_and_restore(service.url, service.token, *marked)
    await board.refresh()
    assert {one.conversation_id for one in await store.read_records()} == {"c", "e"}
    assert await store.load("d") is None
    await turn(store, "d")
    assert await store.load("d") is not None
    with pytest.raises(KeyError):
        await store.read_entry(root)
    for id_ in "cde":
        await store.delete(id_)
    left = {key.split("/")[2] for key in await kept(board)}
    assert "records" not in left
    assert not [key for key in await kept(board) if f"/trees/{root}/" in key]


# --- bad input ------------------------------------------------------------------------------------


async def test_a_missing_conversation_is_none(board: Board) -> None:
    """An entry that is missing is a KeyError, as in the framework's own store."""
    store = BlackboardConversationStore(board)
    assert await store.load("nobody") is None
    await store.delete("nobody")
    with pytest.raises(KeyError):
        await store.read_entry("nothing")


async def test_a_foreign_namespace_is_refused(stranger: Board) -> None:
    """Read or written."""
    store = BlackboardConversationStore(stranger, prefix="private/alice/talks")
    with pytest.raises(UserError) as read:
        await store.list_conversations()
    with pytest.raises(UserError) as written:
        await turn(store, "c")
    assert all(isinstance(one.value.__cause__, AccessDenied) for one in (read, written))


async def test_an_oversized_message_is_refused(board: Board) -> None:
    """With the whole turn; the conversation stays as it was."""
    store = BlackboardConversationStore(board)
    await turn(store, "c")
    with pytest.raises(UserError) as caught:
        await turn(store, "c", "x" * VALUE_BYTES_MAX)
    assert isinstance(caught.value.__cause__, LimitExceeded)
    loaded = await store.load("c")
    assert loaded is not None
    assert len(loaded.messages) == 2


async def test_a_dead_service_is_reported(tmp_path: Path) -> None:
    """AgentRunError: the caller did nothing wrong."""
    async with blackboard.open(tmp_path) as client:
        store = BlackboardConversationStore(client.board("main"))
    with pytest.raises(AgentRunError) as caught:
        await store.load("c")
    assert isinstance(caught.value.__cause__, Unavailable)


async def test_a_board_of_another_loop_is_refused(board: Board) -> None:
    """It would wait for ever."""
    store = BlackboardConversationStore(board)
    with pytest.raises(AgentRunError, match=r"blackboard\.sync"):
        await asyncio.to_thread(lambda: asyncio.run(store.load("c")))


async def test_the_examples_of_its_page_run(tmp_path: Path) -> None:
    """docs/howto/pydantic_ai.md."""
    assert await examples_run("pydantic_ai", tmp_path) > 0
