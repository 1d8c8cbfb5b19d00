"""Memories: found by meaning and by words, and always those that the board has now."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random

import pytest

import blackboard
from blackboard import ops, sync
from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.memory.memory import Memory
from blackboard.encryption.master_key import new_master_key
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import InvalidRequest, StaleEpoch
from blackboard.server.service import Service
from blackboard.types import MemoryFilter, MemoryPolicy, Remembered
from tests.interrupting import interrupted
from tests.serving import serving
from tests.unit.client.memory.toy import MODEL, check, embed
from tests.waiting import TIMEOUT_S

WORDS = (
    "invoice euro customer ship monday harbour budget plan risk copper price delay model token"
    " meeting contract salary garden bridge river engine paint window copper"
).split()


@dataclass
class Team:
    """An operator's board, and how to be an agent on it."""

    client: Client
    board: Board

    def memory(self, agent: str = "ann", namespace: str | None = None) -> Memory:
        """Memories as seen by `agent`."""
        board = self.board.as_agent(agent) if agent != "operator" else self.board
        return board.memory(namespace=namespace, embed=embed, model=MODEL)


@pytest.fixture(params=["embedded", "connected", "encrypted"])
async def team(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Team]:
    """A board in this process, behind a WebSocket, or with encryption at rest."""
    async with AsyncExitStack() as stack:
        match request.param:
            case "connected":
                store, archive = await SqliteStore.at(tmp_path), await archive_beside(tmp_path)
                service = await stack.enter_async_context(Service(store, archive=archive))
                served = await stack.enter_async_context(serving(service))
                opening = blackboard.connect(served.url, token=served.token())
            case "encrypted":
                opening = blackboard.open(
                    tmp_path / "d", level="memory", master_key=new_master_key()
                )
            case _:
                opening = blackboard.open(tmp_path / "d", level="memory")
        client = await stack.enter_async_context(opening)
        yield Team(client, client.board("main"))


def texts(seed: int, count: int) -> list[str]:
    """Sentences of a few words, all different."""
    dice = Random(seed)
    return [f"{' '.join(dice.choices(WORDS, k=6))} {number}" for number in range(count)]


async def test_a_memory_is_found_by_meaning_and_by_words(team: Team) -> None:
    """With its author, its time, its fact and what it was made from."""
    await team.board.put("public/mail", "please, euros")
    async with team.memory() as memory:
        key = await memory.remember("The customer wants invoices in euros", sources=["public/mail"])
        await memory.remember({"text": "Ships leave on Monday", "port": 7}, name="ships")
        await memory.remember_all(texts(1, 40))
        (by_both, *_) = await memory.search("invoices euros")
        assert (by_both.key, by_both.author) == (key, "ann")
        assert by_both.sources == ("public/mail",)
        (by_words,) = await memory.search("ship leaves", words_weight=1, limit=1)
        assert (by_words.fact, by_words.similarity) == (
            {"text": "Ships leave on Monday", "port": 7},
            None,
        )
        (by_meaning,) = await memory.search("monday ships leave on", words_weight=0, limit=1)
        assert by_meaning.key == f"{memory.prefix}/entries/ships"
        assert by_meaning.similarity == pytest.approx(1.0, abs=1e-3)
        assert await memory.count() == 42
        causes = await team.board.as_agent("ann").why(key)
        assert [cause.key for cause in causes] == [key, "public/mail"]


async def test_the_index_agrees_with_the_board_after_every_change(team: Team, seed: int) -> None:
    """Compared with all that the board lists: after puts, deletes, expiry, restores and in a
    branch."""
    ann = team.board.as_agent("ann")
    async with team.memory() as memory:
        keys = await memory.remember_all(texts(seed, 60))
        await check(ann, memory, "copper price")
        await team.board.checkpoint("before")
        await memory.forget(*keys[:20])
        await memory.remember("copper price of the bridge", name="bridge")
        await check(ann, memory, "copper price")
        await memory.remember("copper price, replaced", name="bridge")
        await check(ann, memory, "copper price")
        await team.board.restore("before")
        await ann.refresh()
        found = await check(ann, memory, "copper price")
        assert {one.author for one in found} == {"ann"}
        assert await memory.count() == 60
        other = (await team.board.branch("other", "before")).as_agent("ann")
        async with other.memory(embed=embed, model=MODEL) as there:
            await check(other, there, "copper price")
            await there.remember("copper price in another future")
            await check(other, there, "copper price")
        await check(ann, memory, "copper price")


async def test_a_memory_that_expired_is_found_no_more(team: Team) -> None:
    """The index sees the commit that removes it."""
    ann = team.board.as_agent("ann")
    async with team.memory() as memory, ann.watch("private/ann/~memory/**") as watch:
        await memory.remember("for a moment", ttl_ms=200)
        assert await memory.count() <= 1
        async with asyncio.timeout(TIMEOUT_S):
            async for event in watch:
                if any(change.kind == "delete" for change in event.changes):
                    break
        assert await memory.count() == 0
        assert await memory.search("for a moment") == ()


async def test_a_redacted_memory_is_found_no_more(team: Team) -> None:
    """Neither by an index that has it, nor by a new one; what else is there stays found."""
    async with team.memory() as memory:
        secret = await memory.remember("the password is swordfish")
        await memory.remember("the weather is fine")
        assert len(await memory.search("password swordfish")) == 2
        await team.client.redact(secret, board="main")
        assert [one.text for one in await memory.search("password swordfish")] == [
            "the weather is fine"
        ]
        assert await memory.count() == 1
        async with team.memory() as again:
            assert [one.text for one in await again.search("password")] == ["the weather is fine"]


async def test_searches_during_restores_see_one_moment(team: Team, seed: int) -> None:
    """While the board goes back and forth between two states, every search shows memories of one
    of them."""
    red, blue = texts(seed, 30), texts(seed + 1, 30)
    async with team.memory() as memory:
        await memory.remember_all([f"red {text}" for text in red])
        await team.board.checkpoint("red")
        ann = team.board.as_agent("ann")
        await ann.delete_prefix(f"{memory.prefix}/entries")
        await memory.remember_all([f"blue {text}" for text in blue])
        await team.board.checkpoint("blue")
        done = asyncio.Event()
        seen: list[set[str]] = []

        async def search() -> None:
            while not done.is_set():
                found = await memory.search("copper price red blue", limit=20)
                seen.append({one.text.partition(" ")[0] for one in found})

        async def restore() -> None:
            for name in ("red", "blue", "red"):
                await team.board.restore(name)
                found = await memory.search("copper price", limit=20)
                assert {one.text.partition(" ")[0] for one in found} == {name}
            done.set()

        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(search())
            tasks.create_task(restore())
        assert all(len(colours) == 1 for colours in seen), seen
        await check(ann, memory, "copper price")


async def test_nobody_finds_lists_or_counts_what_it_may_not_read(team: Team) -> None:
    """Another agent sees an empty store; the operator sees all of it."""
    async with team.memory() as memory:
        await memory.remember("the password is swordfish", name="secret")
    async with team.memory("bob", "private/ann") as foreign:
        assert await foreign.search("password swordfish") == ()
        assert await foreign.search("password swordfish", words_weight=1) == ()
        assert await foreign.newest() == ()
        assert await foreign.count() == 0
        with pytest.raises(blackboard.errors.AccessDenied):
            await foreign.remember("planted")
        with pytest.raises(blackboard.errors.AccessDenied):
            await foreign.forget(f"{foreign.prefix}/entries/secret")
    async with team.memory("operator", "private/ann") as all_of_it:
        assert [one.author for one in await all_of_it.search("password")] == ["ann"]
        assert await all_of_it.count() == 1


async def test_the_team_shares_what_is_public(team: Team) -> None:
    """By author, and each agent's index follows what others remember."""
    async with team.memory("ann", "public") as ann, team.memory("bob", "public") as bob:
        await ann.remember("copper is 9,000 a ton")
        assert [one.author for one in await bob.search("copper")] == ["ann"]
        await bob.remember("copper is 9,100 a ton")
        assert {one.author for one in await ann.search("copper")} == {"ann", "bob"}
        only = MemoryFilter(author="bob")
        assert [one.author for one in await ann.search("copper", where=only)] == ["bob"]


async def test_a_step_remembers_if_it_is_committed(team: Team) -> None:
    """In its one commit, or not at all."""
    ann = team.board.as_agent("ann")
    async with team.memory() as memory:
        async with ann.step() as step:
            await memory.add(step, "copper fell", name="copper")
            step.put("public/plan", "buy")
        assert step.receipt is not None
        entry = await ann.entry(f"{memory.prefix}/entries/copper")
        assert entry is not None
        assert entry.mod_revision == step.receipt.revision

        async def fails() -> None:
            async with ann.step() as failed:
                await memory.add(failed, "copper rose")
                raise RuntimeError("the step fails")

        with pytest.raises(RuntimeError, match="the step fails"):
            await fails()
        assert [one.text for one in await memory.search("copper")] == ["copper fell"]


async def test_the_same_step_twice_and_a_race_for_the_first_memory(team: Team) -> None:
    """Several first writers of one store agree on its model."""
    stores = [team.memory("ann", "public") for _ in range(6)]
    kept = await asyncio.gather(*(store.remember(f"number {n}") for n, store in enumerate(stores)))
    assert len(set(kept)) == len(kept)
    async with stores[0] as memory:
        assert await memory.count() == len(kept)
    for store in stores[1:]:
        await store.aclose()


async def test_an_old_epoch_remembers_nothing(team: Team) -> None:
    """As every other commit."""
    ann = team.board.as_agent("ann")
    async with team.memory() as memory:
        await memory.remember("first")
        await team.board.checkpoint("c")
        await team.board.restore("c")
        with pytest.raises(StaleEpoch):
            await memory.remember("second")
        assert [one.text for one in await memory.search("first")] == ["first"]
        await ann.refresh()
        await memory.remember("second")
        assert await memory.count() == 2


async def test_consolidation_keeps_what_it_was_made_from(team: Team) -> None:
    """Summaries take the place of the oldest, in one commit each; `why` leads to the sources."""
    ann = team.board.as_agent("ann")
    asked: list[Sequence[Remembered]] = []

    async def summarise(group: Sequence[Remembered]) -> str:
        asked.append(group)
        return f"{len(group)} memories, from {group[0].text}"

    async with team.memory() as memory:
        keys = [await memory.remember(f"number {number}") for number in range(11)]
        done = await memory.consolidate(MemoryPolicy(count_max=3, group=4), summarise)
        assert (done.forgotten, len(done.summaries)) == (8, 2)
        assert [one.key for group in asked for one in group] == keys[:8]
        assert await memory.count() == 5
        (summary,) = await memory.search("4 memories, from number 0", limit=1)
        assert summary.key == done.summaries[0]
        assert summary.sources == tuple(keys[:4])
        causes = await ann.why(summary.key)
        assert [cause.key for cause in causes[1:]] == keys[:4]
        assert await memory.consolidate(MemoryPolicy(count_max=5), summarise) == type(done)((), 0)
        left = await memory.consolidate(MemoryPolicy(count_max=1))
        assert (left.summaries, left.forgotten) == ((), 4)
        assert await memory.count() == 1
        old = await memory.consolidate(MemoryPolicy(age_ms_max=0), summarise)
        assert old.forgotten == 0  # one memory is no group


async def test_a_model_is_changed_by_embedding_again(team: Team) -> None:
    """Until then it is refused, with what to do; afterwards the old one is. Nothing of a memory
    changes but its vector."""
    ann = team.board.as_agent("ann")

    def wider(texts: Sequence[str]) -> list[list[float]]:
        return [[*row, 0.5] for row in embed(texts)]

    async with team.memory() as memory, ann.memory(embed=wider, model="wider") as new:
        key = await memory.remember({"text": "copper price", "kind": "fact"}, ttl_ms=10**9)
        await memory.remember_all(texts(3, 10))
        for refused in (new.remember("no"), new.search("copper")):
            with pytest.raises(blackboard.errors.TypeMismatch, match="reembed") as error:
                await refused
            assert error.value.key == f"{memory.prefix}/model"
        assert await memory.count() == 11
        before = await ann.entry(key)
        assert await new.reembed() == 11
        assert await new.reembed() == 0
        (found,) = await new.search("copper price", limit=1, words_weight=0)
        assert found.similarity == pytest.approx(1.0, abs=1e-3)
        after = await ann.entry(key)
        assert before is not None
        assert after is not None
        assert after.expires_at_ms is not None
        assert (found.key, found.time_ms, found.author) == (key, before.time_ms, "ann")
        assert (found.fact, after.value["model"]) == (before.value["fact"], "wider")
        with pytest.raises(blackboard.errors.TypeMismatch):
            await memory.search("copper")
        assert await memory.search("copper", words_weight=1)


async def test_a_store_without_a_model_gets_one(team: Team) -> None:
    """What was kept without embeddings is found by words, and by meaning once it is embedded."""
    ann = team.board.as_agent("ann")
    async with ann.memory() as plain, team.memory() as memory:
        await plain.remember("copper price")
        assert [one.text for one in await plain.search("coppers")] == ["copper price"]
        await memory.remember("copper cost")
        assert len(await memory.search("copper price", words_weight=0)) == 1
        assert await memory.reembed() == 1
        assert len(await memory.search("copper price", words_weight=0)) == 2
        await plain.remember("copper again")
        assert await plain.count() == 3


async def test_words_are_searched_without_numpy(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a store in which others keep embeddings."""
    async with team.memory("ann", "public") as memory:
        await memory.remember("copper price")
    for module in ("numpy", "blackboard.client.memory.vectors"):
        monkeypatch.setitem(sys.modules, module, None)
    bob = team.board.as_agent("bob")
    async with bob.memory(namespace="public") as plain:
        assert [one.text for one in await plain.search("coppers")] == ["copper price"]
        await plain.remember("copper cost")
        assert await plain.count() == 2
        assert (await plain.consolidate(MemoryPolicy(count_max=1))).forgotten == 1
        assert [one.text for one in await plain.newest()] == ["copper cost"]


async def test_what_is_no_memory_is_passed_over(team: Team) -> None:
    """Others may write into a public store; nobody's search fails because of it."""
    ann = team.board.as_agent("ann")
    async with team.memory("ann", "public") as memory:
        await memory.remember("copper price")
        for number, value in enumerate((1, {}, {"text": 5}, {"text": "x", "author": "a"}, None)):
            await ann.put(f"{memory.prefix}/entries/odd{number}", value)
        good = {"text": "copper bad vector", "author": "eve", "time_ms": 0, "model": MODEL}
        for number, vector in enumerate((b"", b"\0" * 192, b"\xff" * 192, b"\0\0\x80\x7f" * 48)):
            await ann.put(f"{memory.prefix}/entries/v{number}", {**good, "vector": vector})
        assert await memory.count() == 5
        assert [one.text for one in await memory.search("copper", words_weight=0)] == [
            "copper price"
        ]
        found = await memory.search("copper bad", words_weight=1)
        assert [one.author for one in found[:4]] == ["ann"] * 4  # not whom the value states
        await ann.put(f"{memory.prefix}/model", "nonsense")
        assert await memory.count() == 5
        assert await memory.search("copper", words_weight=1)


async def test_by_time_keys_and_facts(team: Team) -> None:
    """What does not fit is left out before the best are chosen."""
    async with team.memory() as memory:
        await memory.remember_all({"text": text, "n": n % 4} for n, text in enumerate(texts(5, 40)))
        await memory.remember({"text": "copper price", "n": 1.0, "ok": True}, name="named")
        entries = f"{memory.prefix}/entries"
        now = datetime.now(UTC)
        hour = timedelta(hours=1)
        for where, expected in (
            (MemoryFilter(facts={"n": 1}), 10),
            (MemoryFilter(facts={"n": 1.0}), 1),
            (MemoryFilter(facts={"n": 1.0, "ok": True}), 1),
            (MemoryFilter(facts={"n": 1.0, "ok": 1}), 0),
            (MemoryFilter(keys=f"{entries}/named"), 1),
            (MemoryFilter(keys=f"{entries}/*"), 41),
            (MemoryFilter(keys=f"{entries}/**"), 41),
            (MemoryFilter(keys="private/*/~memory/*/entries/named"), 1),
            (MemoryFilter(keys="**"), 41),
            (MemoryFilter(keys="public/**"), 0),
            (MemoryFilter(since=now - hour, until=now + hour), 41),
            (MemoryFilter(since=now + hour), 0),
            (MemoryFilter(until=now - hour), 0),
            (MemoryFilter(author="bob"), 0),
        ):
            found = await memory.search("copper price", where=where, limit=100, words_weight=0)
            assert len(found) == expected, where
            assert len(await memory.newest(100, where=where)) == expected


async def test_without_async(tmp_path: Path) -> None:
    """The same from a program without async, with a function that does not await."""

    def program() -> None:
        with sync.open(tmp_path / "s", level="memory") as client:
            board = client.board("main")
            with board.memory(embed=embed, model=MODEL) as memory:
                memory.remember("copper price")
                with board.step() as step:
                    memory.add(step, "copper fell")
                assert [one.text for one in memory.search("price of copper", limit=1)] == [
                    "copper price"
                ]
                assert memory.count() == 2
                done = memory.consolidate(MemoryPolicy(count_max=0), lambda group: "copper")
                assert done.forgotten == 2

    await asyncio.to_thread(program)


async def test_a_cancelled_search_harms_no_later_one(team: Team) -> None:
    """Wherever it is cancelled."""
    ann = team.board.as_agent("ann")
    async with team.memory() as memory:
        await memory.remember_all(texts(9, 50))
        for is_new in (True, False):
            for at in count():
                if is_new:
                    await memory.aclose()
                await ann.put(f"{memory.prefix}/entries/odd", at)  # something to follow
                ended = await interrupted(memory.search("copper price"), at)
                if not ended.was_reached:
                    break
                assert isinstance(ended.error, asyncio.CancelledError | None)
                await memory.remember(f"copper number {at}")
                await check(ann, memory, "copper price")
        await check(ann, memory, "copper price")


async def test_an_erased_agent_is_forgotten_by_every_index(tmp_path: Path) -> None:
    """Also by one that has read everything, and goes on."""
    opening = blackboard.open(tmp_path / "d", level="memory", master_key=new_master_key())
    async with opening as client:
        board = client.board("main")
        ann = board.as_agent("ann")
        async with ann.memory(embed=embed, model=MODEL) as memory:
            await memory.remember("the password is swordfish")
            assert len(await memory.search("password")) == 1
            assert await client.erase("ann") == 1
            assert await memory.search("password") == ()
            assert await memory.count() == 0
            assert memory._index is not None
            assert memory._index.texts() == []
            await memory.remember("a new beginning")
            assert [one.text for one in await memory.search("password")] == ["a new beginning"]
            await check_readable(ann, memory, 1)


async def check_readable(board: Board, memory: Memory, number: int) -> None:
    """So many entries of the store can be read."""
    values = [entry.value async for entry in board.scan(f"{memory.prefix}/entries/**")]
    assert sum("text" in value for value in values) == number


async def test_sealed_memories_are_in_no_file(tmp_path: Path) -> None:
    """With encryption at rest, neither texts nor vectors of a private memory."""
    import struct

    marker = struct.pack("<f", 0.6)
    data = tmp_path / "d"
    opening = blackboard.open(data, master_key=new_master_key())
    async with opening as client:
        ann = client.board("main").as_agent("ann")
        async with ann.memory(embed=lambda t: [[0.6, 0.8]] * len(t), model=MODEL) as memory:
            await memory.remember("swordfish")
        await client.board("main").checkpoint("c")
    stored = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert b"swordfish" not in stored
    assert marker + struct.pack("<f", 0.8) not in stored
    assert ops.encode_value("c")[1:] in stored  # the search itself works


async def test_keys_of_others_are_not_forgotten(team: Team) -> None:
    async with team.memory() as memory:
        await team.board.put("public/plan", "stays")
        with pytest.raises(InvalidRequest):
            await memory.forget("public/plan")
        assert await team.board.get("public/plan") == "stays"
