"""What cannot be remembered or searched for: a clear error, and nothing is kept."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import blackboard
from blackboard.client.board import Board
from blackboard.client.memory.embedding import Embedder
from blackboard.client.memory.memory import Memory
from blackboard.errors import (
    BlackboardError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    ModelFailed,
    TypeMismatch,
)
from blackboard.limits import (
    BASED_ON_MAX,
    EMBED_TEXTS_MAX,
    EMBEDDING_DIMENSIONS_MAX,
    INTEGER_MAX,
    MEMORY_CALL_MS_MAX,
    MEMORY_FILTER_FACTS_MAX,
    MEMORY_RESULTS_MAX,
    MEMORY_TEXT_BYTES_MAX,
)
from blackboard.types import MemoryFilter, MemoryPolicy
from tests.lowered import lowered
from tests.unit.client.memory.toy import MODEL, check, embed

NAN, INFINITY = float("nan"), float("inf")
GOOD = [0.6, 0.8]


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board without a network."""
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        yield client.board("main").as_agent("ann")


def answering(answer: Any) -> Callable[[Sequence[str]], Any]:
    """A function that gives this to everything."""
    return lambda texts: answer


def failing(texts: Sequence[str]) -> Any:
    """A function that fails."""
    raise ConnectionError("no route to the model")


async def refusing(texts: Sequence[str]) -> Any:
    """One that fails with an error that we have, too."""
    raise TimeoutError("theirs")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (answering([]), "did not answer"),
        (answering(None), "did not answer"),
        (answering("text"), "did not answer"),
        (answering({"a": 1}), "did not answer"),
        (answering([GOOD, GOOD]), "gave 2 vectors for 1 texts"),
        (answering([[1.0], [1.0, 2.0]]), "did not answer"),
        (answering([[]]), "did not answer"),
        (answering([["a", "b"]]), "did not answer"),
        (answering([[[0.6], [0.8]]]), "did not answer"),
        (answering([[0.6, NAN]]), "NaN"),
        (answering([[0.6, INFINITY]]), "NaN"),
        (answering([[0.6, 1e300]]), "NaN"),
        (answering([[0.0, -0.0]]), "zeros"),
        (answering([[0.1] * (EMBEDDING_DIMENSIONS_MAX + 1)]), "dimensions"),
        (failing, "no route to the model"),
        (refusing, "theirs"),
    ],
)
async def test_what_is_no_embedding_is_refused(
    board: Board, function: Callable[[Sequence[str]], Any], reason: str
) -> None:
    """When it is remembered, in a step, and when it is searched for."""
    async with board.memory(embed=function, model=MODEL) as memory:
        for call in (memory.remember("a"), memory.remember_all(["a"]), memory.search("a")):
            with pytest.raises(ModelFailed, match=reason) as failed:
                await call
            assert failed.value.model == MODEL
        async with board.step() as step:
            with pytest.raises(ModelFailed, match=reason):
                await memory.add(step, "a")
        assert step.receipt is None
        assert await memory.count() == 0
    assert (await board.list("**")).entries == ()


@pytest.mark.parametrize("numbers", [[1e-30, 2e-30], [3e38, 3e38], [1, 0], [1e-45, 0.0]])
async def test_small_and_large_vectors_have_a_direction(board: Board, numbers: list[float]) -> None:
    """Their squares are out of the range of a float32."""
    async with board.memory(embed=answering([numbers]), model=MODEL) as memory:
        await memory.remember("a")
        (found,) = await memory.search("a", words_weight=0)
        assert found.similarity == pytest.approx(1.0, abs=1e-6)


async def test_the_largest_embedding(board: Board) -> None:
    """EMBEDDING_DIMENSIONS_MAX numbers."""
    largest = answering([[0.1] * EMBEDDING_DIMENSIONS_MAX])
    async with board.memory(embed=largest, model=MODEL) as memory:
        await memory.remember("a")
        assert len(await memory.search("a")) == 1


async def test_a_function_that_hangs_is_given_up(board: Board) -> None:
    """With async and without; nothing is kept, and nothing waits for its thread."""
    never, ended = asyncio.Event(), threading.Event()

    async def hangs(texts: Sequence[str]) -> None:
        await never.wait()

    def blocks(texts: Sequence[str]) -> None:
        ended.wait(60)

    try:
        for function in (hangs, blocks):
            embedder = Embedder(function, MODEL, timeout_ms=50)
            async with Memory(board, "private/ann/~memory/main", embedder) as memory:
                with pytest.raises(ModelFailed, match="no answer within 50 ms"):
                    await memory.remember("a")
    finally:
        ended.set()
    assert (await board.list("**")).entries == ()
    Embedder(embed, MODEL, timeout_ms=MEMORY_CALL_MS_MAX)
    for wrong in (0, MEMORY_CALL_MS_MAX + 1):
        with pytest.raises(InvalidRequest):
            Embedder(embed, MODEL, timeout_ms=wrong)


async def test_another_size_is_refused_and_says_what_to_do(board: Board) -> None:
    """Of the same model, too."""
    async with board.memory(embed=embed, model=MODEL) as memory:
        await memory.remember("copper")
    before = (await board.head()).revision
    for function, model in ((answering([GOOD]), MODEL), (embed, "other"), (answering([GOOD]), "o")):
        async with board.memory(embed=function, model=model) as memory:
            for call in (memory.remember("b"), memory.remember_all(["b"]), memory.search("b")):
                with pytest.raises(TypeMismatch, match="reembed") as refused:
                    await call
                assert refused.value.wanted == f"48 dimensions of {MODEL}"
            async with board.step() as step:
                with pytest.raises(TypeMismatch):
                    await memory.add(step, "b")
    assert (await board.head()).revision == before


@pytest.mark.parametrize(
    "text", ["", "  \n", "\ud800", {}, {"text": ""}, {1: 2}, {"text": "\ud83d"}]
)
async def test_a_text_that_is_none(board: Board, text: Any) -> None:
    """Empty, or no Unicode."""
    async with board.memory(embed=embed, model=MODEL) as memory:
        for call in (memory.remember(text), memory.remember_all(["good", text])):
            with pytest.raises(InvalidRequest):
                await call
        if isinstance(text, str):
            with pytest.raises(InvalidRequest):
                await memory.search(text)
    assert (await board.list("**")).entries == ()


async def test_the_edges_of_texts_results_sources_and_filters(board: Board) -> None:
    """Each limit, and one more."""
    async with board.memory(embed=embed, model=MODEL) as memory:
        largest = "ä" * (MEMORY_TEXT_BYTES_MAX // 2)
        await memory.remember(largest)
        await memory.search(largest, limit=MEMORY_RESULTS_MAX)
        for call in (memory.remember(largest + "a"), memory.search(largest + "a")):
            with pytest.raises(LimitExceeded, match="MEMORY_TEXT_BYTES_MAX"):
                await call
        for limit in (0, MEMORY_RESULTS_MAX + 1):
            with pytest.raises(InvalidRequest):
                await memory.search("a", limit=limit)
            with pytest.raises(InvalidRequest):
                await memory.newest(limit)
        facts = {str(number): number for number in range(MEMORY_FILTER_FACTS_MAX)}
        assert await memory.search("a", where=MemoryFilter(facts=facts)) == ()
        with pytest.raises(LimitExceeded, match="MEMORY_FILTER_FACTS_MAX"):
            await memory.search("a", where=MemoryFilter(facts={**facts, "more": 1}))
        sources = [f"public/s{number}" for number in range(BASED_ON_MAX)]
        await board.commit([blackboard.ops.Put(key, b"\x01") for key in [*sources, "public/t"]])
        await memory.remember("a", sources=sources)
        with pytest.raises(LimitExceeded, match="BASED_ON_MAX"):
            await memory.remember("a", sources=[*sources, "public/t"])


async def test_many_are_embedded_and_committed_in_parts(board: Board) -> None:
    """EMBED_TEXTS_MAX for each call, and no commit near the largest."""
    asked: list[int] = []

    def counted(texts: Sequence[str]) -> list[list[float]]:
        asked.append(len(texts))
        return [GOOD] * len(texts)

    async with board.memory(embed=counted, model=MODEL) as memory:
        keys = await memory.remember_all([f"a{n}" for n in range(EMBED_TEXTS_MAX + 1)])
        assert (len(keys), asked) == (EMBED_TEXTS_MAX + 1, [EMBED_TEXTS_MAX, 1])
        large = "a" * MEMORY_TEXT_BYTES_MAX
        assert len(await memory.remember_all([large] * 100)) == 100  # 6.4 MB: several commits
        assert await memory.count() == EMBED_TEXTS_MAX + 101


async def test_the_size_of_a_store_has_an_edge(tmp_path: Path) -> None:
    """MEMORIES_MAX are searched; one more is refused, until something is forgotten."""
    limits = lowered(memories_max=5)
    async with blackboard.open(tmp_path / "d", level="memory", limits=limits) as client:
        board = client.board("main").as_agent("ann")
        async with board.memory(embed=embed, model=MODEL) as memory:
            keys = await memory.remember_all([f"number {n}" for n in range(5)])
            assert await memory.count() == 5
            key = await memory.remember("one more")
            for _ in range(2):
                with pytest.raises(LimitExceeded, match="MEMORIES_MAX"):
                    await memory.search("number")
            await memory.forget(keys[0])
            await check(board, memory, "number")
            assert key in [one.key for one in await memory.newest(5)]


async def test_a_search_that_is_overtaken_leaves_out_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MEMORY_SEARCH_ATTEMPTS_MAX times it is repeated; then what changed is left out."""
    limits = lowered(memory_search_attempts_max=1)
    async with blackboard.open(tmp_path / "d", level="memory", limits=limits) as client:
        board = client.board("main").as_agent("ann")
        async with board.memory(embed=embed, model=MODEL) as memory:
            keys = await memory.remember_all(["copper a", "copper b"])
            index = await memory._caught_up()
            ranked = index.newest

            def overtaken(*args: Any) -> Any:
                found = ranked(*args)
                asyncio.run_coroutine_threadsafe(memory.forget(keys[0]), loop).result()
                return found

            loop = asyncio.get_running_loop()
            monkeypatch.setattr(index, "newest", overtaken)
            assert [one.key for one in await memory.newest()] == [keys[1]]


FORGED = {"text": "x", "author": "a", "kept": True}


@pytest.mark.parametrize("time_ms", [-1, INTEGER_MAX + 1, 2**63, 2**64 - 1])
async def test_a_memory_of_an_impossible_time_is_none(board: Board, time_ms: int) -> None:
    """Its writer states the time, and a search by anybody else must not end with it."""
    async with board.memory(embed=embed, model=MODEL) as memory:
        await memory.remember("copper")
        await board.put(f"{memory.prefix}/entries/forged", {**FORGED, "time_ms": time_ms})
        assert await memory.count() == 1
        assert [one.text for one in await memory.newest()] == ["copper"]


@pytest.mark.parametrize("dimensions", [-1, EMBEDDING_DIMENSIONS_MAX + 1, 2**40, 2**64 - 1])
async def test_a_model_of_an_impossible_size_is_none(board: Board, dimensions: int) -> None:
    """What is there is found by words, and the next memory names the model again."""
    async with board.memory(embed=embed, model=MODEL) as memory:
        await memory.remember("copper")
        await board.put(f"{memory.prefix}/model", {"model": MODEL, "dimensions": dimensions})
        assert [one.text for one in await memory.search("copper")] == ["copper"]
        await memory.remember("euro")
        (found,) = await memory.search("copper", limit=1, words_weight=0)
        assert found.similarity == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda board, memory: board.memory(namespace="inbox/ann"),
        lambda board, memory: board.memory(namespace="public/plan"),
        lambda board, memory: board.memory(namespace="system"),
        lambda board, memory: board.memory("a/b"),
        lambda board, memory: board.memory(embed=embed),
        lambda board, memory: board.memory(model=MODEL),
        lambda board, memory: board.memory(embed="function", model=MODEL),
        lambda board, memory: memory.remember(7),
        lambda board, memory: memory.remember("a", name="0000000001"),
        lambda board, memory: memory.remember("a", name="a/b"),
        lambda board, memory: memory.remember("a", sources=["public/absent"]),
        lambda board, memory: memory.remember("a", ttl_ms=0),
        lambda board, memory: memory.remember({"text": "a", "odd": object()}),
        lambda board, memory: memory.add("step", "a"),
        lambda board, memory: memory.forget("public/plan"),
        lambda board, memory: memory.search("a", words_weight=1.1),
        lambda board, memory: memory.search("a", words_weight=float("nan")),
        lambda board, memory: memory.search("a", where=MemoryFilter(keys="a//b")),
        lambda board, memory: memory.search("a", where=MemoryFilter(facts={"a": object()})),
        lambda board, memory: memory.consolidate(MemoryPolicy()),
        lambda board, memory: memory.consolidate(MemoryPolicy(count_max=-1)),
        lambda board, memory: memory.consolidate(MemoryPolicy(age_ms_max=-1)),
        lambda board, memory: memory.consolidate(MemoryPolicy(count_max=0, group=1)),
        lambda board, memory: memory.consolidate(MemoryPolicy(count_max=0, group=BASED_ON_MAX + 1)),
    ],
)
async def test_what_makes_no_sense_is_refused(
    board: Board, call: Callable[[Board, Memory], Any]
) -> None:
    """At the call, with what to pass instead."""
    async with board.memory(embed=embed, model=MODEL) as memory:
        with pytest.raises(InvalidRequest):
            await call(board, memory)
    assert (await board.list("private/**")).entries == ()


async def test_a_time_without_a_zone(board: Board) -> None:
    from datetime import datetime

    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - that is what is refused
    for where in (MemoryFilter(since=naive), MemoryFilter(until=naive)):
        with pytest.raises(InvalidRequest, match="zone"):
            await board.memory().search("a", where=where)


@pytest.mark.parametrize(
    ("summarise", "error"),
    [
        (lambda group: "", InvalidRequest),
        (lambda group: 7, InvalidRequest),
        (failing, ModelFailed),
        (lambda group: "a" * (MEMORY_TEXT_BYTES_MAX + 1), LimitExceeded),
    ],
)
async def test_a_summary_that_is_none_removes_nothing(
    board: Board, summarise: Callable[[Any], Any], error: type[BlackboardError]
) -> None:
    async with board.memory(embed=embed, model=MODEL) as memory:
        await memory.remember_all(["a", "b", "c"])
        with pytest.raises(error):
            await memory.consolidate(MemoryPolicy(count_max=0), summarise)
        assert await memory.count() == 3


async def test_a_memory_that_changes_while_it_is_summarised_stays(board: Board) -> None:
    """The others of its group, too; the next run takes them."""
    async with board.memory(embed=embed, model=MODEL) as memory:
        await memory.remember("a", name="a")
        await memory.remember("b", name="b")

        async def overtaken(group: Any) -> str:
            await memory.remember("b, corrected", name="b")
            return "a and b"

        policy = MemoryPolicy(count_max=0)
        assert (await memory.consolidate(policy, overtaken)).forgotten == 0
        assert {one.text for one in await memory.newest()} == {"a", "b, corrected"}
        assert (await memory.consolidate(policy, lambda group: "both")).forgotten == 2


class RenewedAt:
    """A board on which another agent renews the memory "b" just before the call `name`, once."""

    def __init__(self, board: Board, name: str) -> None:
        self._board = board
        self._name = name

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._board, name)
        if name != self._name:
            return call
        self._name = ""

        async def overtaken(*arguments: Any, **named: Any) -> Any:
            async with self._board.memory(embed=embed, model=MODEL) as other:
                await other.remember("b, renewed", name="b")
            return await call(*arguments, **named)

        return overtaken


@pytest.mark.parametrize(
    ("name", "summarise"), [("commit", None), ("entries", lambda group: "a and c")]
)
async def test_a_memory_that_changes_after_the_look_stays(
    board: Board, name: str, summarise: Callable[[Any], Any] | None
) -> None:
    """Removed alone, or exchanged: the renewed one is none of the old ones."""
    async with board.memory(embed=embed, model=MODEL) as memory:
        for text in "abc":
            await memory.remember(text, name=text)
    overtaken: Any = RenewedAt(board, name)
    async with Memory(overtaken, memory.prefix, Embedder(embed, MODEL)) as memory:
        assert (await memory.consolidate(MemoryPolicy(count_max=0), summarise)).forgotten == 2
        left = {one.text for one in await memory.newest()}
        assert left == {"b, renewed"} | ({"a and c"} if summarise else set())


async def test_a_step_whose_store_got_another_model_meanwhile_is_refused(board: Board) -> None:
    """Its commit is conditioned on the model that its embedding is of."""
    async with board.memory(embed=embed, model=MODEL) as memory:
        await memory.remember("first")

        async def overtaken() -> None:
            async with board.step() as step:
                await memory.add(step, "second")
                async with board.memory(embed=answering([GOOD]), model="other") as other:
                    await other.reembed()

        with pytest.raises(Conflict):
            await overtaken()
        async with board.memory(embed=answering([GOOD]), model="other") as other:
            assert await other.count() == 1
