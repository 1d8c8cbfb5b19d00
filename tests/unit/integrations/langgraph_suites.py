"""Suites for stores and checkpointers of LangGraph, ours or anybody's.

They need nothing of Blackboard, and no test runner:

    for check in STORE_CHECKS:
        async with my_new_store() as store:      # empty, with `INDEX` as its index
            await check(store)

    await write_ownership(worker, replace)       # see there

LangGraph publishes a conformance suite for checkpointers, and none for stores. What these check
beyond InMemoryStore's own tests is what a store is bought for: several writers, and awkward names.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.store.base import BaseStore, IndexConfig, PutOp, SearchOp

AWKWARD = ("ann@example", "a/b", "ünï", "*", "~", "-", "x" * 200, " ", "%2e", "🙂")
"""Texts that a store may confuse with something of its own."""


async def _embed(texts: Sequence[str]) -> list[list[float]]:
    """Two dimensions: how much of a text is about fruit, and how much about tools."""
    return [[float(text.count("apple")), float(text.count("hammer")) + 0.1] for text in texts]


INDEX: IndexConfig = {"dims": 2, "embed": _embed, "fields": ["text"]}


async def check_names(store: BaseStore) -> None:
    """Any text is a label and a key, and none is another one."""
    for one in AWKWARD:
        for other in AWKWARD:
            await store.aput((one, other), one, {"of": [one, other]})
    assert set(await store.alist_namespaces(limit=1000)) == {
        (one, other) for one in AWKWARD for other in AWKWARD
    }
    for one in AWKWARD:
        for other in AWKWARD:
            (found,) = await store.asearch((one, other))
            assert (found.key, found.value) == (one, {"of": [one, other]})


async def check_prefixes(store: BaseStore) -> None:
    """A search finds what is below its labels, not what begins with the same letters."""
    for namespace in (("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("b", "a")):
        await store.aput(namespace, "k", {"at": list(namespace)})
    found = {item.namespace for item in await store.asearch(("a",))}
    assert found == {("a",), ("a", "b"), ("a", "b", "c")}
    assert await store.alist_namespaces(prefix=("a",), max_depth=2) == [("a",), ("a", "b")]
    assert await store.alist_namespaces(suffix=("a",)) == [("a",), ("b", "a")]


async def check_filters(store: BaseStore) -> None:
    """Equality, comparisons, several at once; a missing field is not equal to anything."""
    for number in range(4):
        await store.aput(("n",), str(number), {"n": number, "odd": bool(number % 2)})

    async def keys(filter_: dict[str, Any]) -> set[str]:
        return {item.key for item in await store.asearch(("n",), filter=filter_)}

    assert await keys({"n": 2}) == {"2"}
    assert await keys({"n": {"$gt": 1}}) == {"2", "3"}
    assert await keys({"n": {"$gte": 1, "$lt": 3}, "odd": True}) == {"1"}
    assert await keys({"n": {"$ne": 2}}) == {"0", "1", "3"}
    await store.aput(("n",), "none", {"odd": True})
    assert await keys({"n": 2, "odd": False}) == {"2"}
    assert await keys({"n": {"$ne": 2}}) == {"0", "1", "3", "none"}


async def check_times(store: BaseStore) -> None:
    """An item that is put again keeps the time at which it was made."""
    await store.aput(("t",), "k", {"v": 1})
    first = await store.aget(("t",), "k")
    await store.aput(("t",), "k", {"v": 2})
    second = await store.aget(("t",), "k")
    assert first is not None
    assert second is not None
    assert second.value == {"v": 2}
    assert second.created_at == first.created_at
    assert second.updated_at >= first.updated_at


async def check_batches(store: BaseStore) -> None:
    """Of several puts of a key in one batch the last counts; a refused batch stores nothing."""
    await store.abatch([PutOp(("b",), "k", {"v": n}) for n in range(3)])
    item = await store.aget(("b",), "k")
    assert item is not None
    assert item.value == {"v": 2}
    bad = [PutOp(("b",), "other", {"v": 1}), PutOp(("b",), "k", {"v": object()})]
    try:
        await store.abatch(bad)
    except (TypeError, ValueError):
        pass
    else:
        raise AssertionError("an object that is no data was stored")
    assert await store.aget(("b",), "other") is None


async def check_writers(store: BaseStore) -> None:
    """Items that are put at the same time are all there."""
    await asyncio.gather(
        *(store.aput(("w", str(n % 5)), str(n), {"n": n}) for n in range(50)),
    )
    found = await store.asearch(("w",), limit=100)
    assert sorted(item.value["n"] for item in found) == list(range(50))


async def check_vectors(store: BaseStore) -> None:
    """The nearest comes first; what was put again, or removed, is found as it is now."""
    await store.aput(("v",), "fruit", {"text": "apple apple"})
    await store.aput(("v",), "tool", {"text": "hammer"})
    await store.aput(("v",), "unseen", {"text": "apple"}, index=False)
    found = await store.asearch(("v",), query="apple")
    assert [item.key for item in found] == ["fruit", "tool", "unseen"]
    assert found[0].score is not None
    assert found[1].score is not None
    assert found[0].score > found[1].score
    assert found[2].score is None
    await store.aput(("v",), "fruit", {"text": "hammer hammer"})
    await store.aput(("v",), "tool", {"text": "apple"})
    assert [item.key for item in await store.asearch(("v",), query="apple", limit=1)] == ["tool"]
    await store.adelete(("v",), "tool")
    assert "tool" not in {item.key for item in await store.asearch(("v",), query="apple")}


async def check_pages(store: BaseStore) -> None:
    """Pages of a search and of namespaces are disjoint and complete."""
    for number in range(7):
        await store.aput(("p", str(number)), "k", {})
    pages = [await store.asearch(("p",), limit=3, offset=offset) for offset in (0, 3, 6)]
    found = [item.namespace for page in pages for item in page]
    assert len(found) == len(set(found)) == 7
    names = [await store.alist_namespaces(limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    assert [len(page) for page in names] == [3, 3, 1, 0]


async def check_refusals(store: BaseStore) -> None:
    """What is no namespace or filter is refused in the framework's own way."""
    namespaces: tuple[Any, ...] = ((), ("",), ("a.b",), ("langgraph",))
    for namespace in namespaces:
        try:
            await store.aput(namespace, "k", {})
        except ValueError:
            continue
        raise AssertionError(f"{namespace} is no namespace")
    await store.aput(("f",), "k", {"n": 1})
    try:
        await store.abatch([SearchOp(("f",), filter={"n": {"$near": 1}})])
    except ValueError:
        return
    raise AssertionError("$near is no operator")


STORE_CHECKS: tuple[Callable[[BaseStore], Awaitable[None]], ...] = (
    check_names,
    check_prefixes,
    check_filters,
    check_times,
    check_batches,
    check_writers,
    check_vectors,
    check_pages,
    check_refusals,
)

Worker = Callable[[str], AbstractAsyncContextManager[BaseCheckpointSaver[Any]]]
"""Gives a checkpointer that owns the thread of that name while the block runs."""
Replace = Callable[[str], Awaitable[None]]
"""Takes a thread from its owner, who does not notice: as if it had been away for too long."""


async def write_ownership(worker: Worker, replace: Replace) -> BaseException:
    """A worker that was replaced while it was away can put nothing any more.

    Returns the error that it gets. With most checkpointers there is none: the late checkpoint
    becomes the newest of the thread, and what the new worker did is not what the next run sees.
    """
    thread = "owned"
    config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    is_replaced, late = asyncio.Event(), asyncio.Event()
    refusals: list[BaseException] = []

    async def first() -> None:
        async with worker(thread) as saver:
            begun = await saver.aput(config, empty_checkpoint(), {"step": 0}, {})
            is_replaced.set()
            await late.wait()
            for put in (
                lambda: saver.aput(begun, empty_checkpoint(), {"step": 99}, {}),
                lambda: saver.aput_writes(begun, [("c", "late")], "task"),
            ):
                try:
                    await put()
                except Exception as refusal:  # noqa: BLE001 - whatever the checkpointer raises
                    refusals.append(refusal)

    away = asyncio.ensure_future(first())
    await is_replaced.wait()
    await replace(thread)
    async with worker(thread) as saver:
        found = await saver.aget_tuple(config)
        assert found is not None
        newest = await saver.aput(found.config, empty_checkpoint(), {"step": 1}, {})
        late.set()
        await asyncio.wait([away])
        assert len(refusals) == 2, "a worker that was replaced could still write"
        now = await saver.aget_tuple(config)
    assert now is not None
    assert now.config == newest
    assert not now.pending_writes
    found = await saver.aget_tuple(found.config)
    assert found is not None
    assert not found.pending_writes
    if not away.cancelled():
        away.exception()  # the end of its block may say that it lost the thread
    return refusals[0]
