"""What the saver promises beyond the suites: what is stored once, who may write, what returns."""

import asyncio
import operator
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import anyio.lowlevel
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    empty_checkpoint,
)
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import PutOp

import blackboard
from blackboard import Board
from blackboard.client.files import Files
from blackboard.errors import (
    AccessDenied,
    Conflict,
    Corrupt,
    Fenced,
    LeaseHeld,
    LeaseLost,
    LimitExceeded,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
)
from blackboard.integrations.langgraph import BlackboardSaver, BlackboardStore, records
from blackboard.integrations.langgraph.payloads import Payloads
from blackboard.ops import KeyAt, Release
from tests.acceptance.shell import Shell
from tests.lowered import lowered
from tests.ports import free_port
from tests.serving import Served
from tests.unit.integrations.langgraph_suites import write_ownership
from tests.waiting import wait_until

T1: RunnableConfig = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}


class Said(TypedDict):
    """A list that grows."""

    said: Annotated[list[Any], operator.add]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[blackboard.Client]:
    """A client of its own directory."""
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        yield client


@pytest.fixture
def board(client: blackboard.Client) -> Board:
    """A board."""
    return client.board("graphs")


def growing(saver: BlackboardSaver, message: Any) -> Any:
    """A graph that says `message()` as often as it is asked to."""

    def say(state: Said) -> dict[str, Any]:
        return {"said": [message()]}

    def more(state: Said) -> str:
        return END if len(state["said"]) % 20 == 0 else "say"

    graph: Any = StateGraph(Said).add_node("say", say).add_edge(START, "say")
    return graph.add_conditional_edges("say", more).compile(checkpointer=saver)


async def put(
    saver: BlackboardSaver, values: dict[str, Any], parent: RunnableConfig = T1, **more: Any
) -> RunnableConfig:
    """Put a checkpoint with those values, all of a new version."""
    versions: ChannelVersions = {name: saver.get_next_version(None, None) for name in values}
    made = {**empty_checkpoint(), "channel_values": values, "channel_versions": {**versions}}
    metadata = {"source": "loop", "step": 0, **more}
    return await saver.aput(
        parent, cast(Checkpoint, made), cast(CheckpointMetadata, metadata), versions
    )


async def values_at(saver: BlackboardSaver, config: RunnableConfig) -> dict[str, Any]:
    """The values of a checkpoint, as another saver reads them."""
    other = BlackboardSaver(saver._home.board, serde=saver.serde, prefix=saver.prefix)
    found = await other.aget_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


async def stored_bytes(board: Board) -> int:
    """Bytes of all values on a board."""
    return sum([len(entry.value) async for entry in board.scan("public/**") if entry.value])


# --- what is stored -------------------------------------------------------------------------------


async def test_what_a_growing_list_shares_is_stored_once(board: Board, seed: int) -> None:
    """Of messages that cannot be compressed, each as a write and as an element, at most."""
    draw = random.Random(seed)
    saver = BlackboardSaver(board)
    graph = growing(saver, lambda: draw.randbytes(4_000))
    for _ in range(5):
        values = await graph.ainvoke({"said": []}, T1)
        await graph.aupdate_state(T1, {"said": []})
    assert len(values["said"]) == 100
    assert await stored_bytes(board) < 2.3 * 100 * 4_000
    assert (await values_at(saver, T1))["said"] == values["said"]


async def test_a_step_is_one_commit_that_has_its_message_once(board: Board) -> None:
    """The checkpoint takes along the writes that lead to it."""
    saver = BlackboardSaver(board)
    first = await put(saver, {"said": ["a"]})
    before, size = (await board.head()).revision, await stored_bytes(board)
    message = random.Random(1).randbytes(50_000)
    _, second = await asyncio.gather(
        saver.aput_writes(first, [("said", [message]), ("n", 1)], "task", "path"),
        put(saver, {"said": ["a", message]}, first),
    )
    assert (await board.head()).revision == before + 1
    assert await stored_bytes(board) - size < 51_000
    for saver_ in (saver, BlackboardSaver(board)):
        found = await saver_.aget_tuple(first)
        listed = [one async for one in saver_.alist(T1)]
        assert found is not None
        assert found.pending_writes == [("task", "said", [message]), ("task", "n", 1)]
        assert listed[1].pending_writes == found.pending_writes
        assert listed[0].config == second
        assert listed[0].pending_writes == []


async def test_writes_that_no_checkpoint_takes_along_are_there_when_they_are_put(
    board: Board,
) -> None:
    """None came, or it was refused; of a task and an index, the first one counts."""
    saver = BlackboardSaver(board)
    first = await put(saver, {"n": 1})
    await saver.aput_writes(first, [("c", 1), ("c", 2)], "task")
    await saver.aput_writes(first, [("c", 9), ("c", 9), ("c", 3)], "task")
    await saver.aput_writes(first, [("__error__", "one")], "task")
    await saver.aput_writes(first, [("__error__", "two")], "task")
    big = random.Random(1).randbytes(65 * 1024 * 1024)
    outcomes = await asyncio.gather(
        saver.aput_writes(first, [("c", "late")], "other"),
        put(saver, {"big": big}, first),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], LimitExceeded)
    found = await BlackboardSaver(board).aget_tuple(T1)
    assert found is not None
    assert found.pending_writes == [
        ("other", "c", "late"),
        ("task", "__error__", "two"),
        ("task", "c", 1),
        ("task", "c", 2),
        ("task", "c", 3),
    ]


async def test_a_list_is_kept_whatever_happens_to_it(board: Board, seed: int) -> None:
    """It grows and shrinks at both ends and in the middle; elements are equal, nested or changed
    in place; each of its versions stays what it was."""
    draw = random.Random(seed)
    saver = BlackboardSaver(board)
    held: list[Any] = []
    versions: list[tuple[RunnableConfig, list[Any]]] = []
    config = T1
    for number in range(60):
        place = draw.randrange(len(held) + 1)
        match draw.randrange(6):
            case 0:
                del held[place : place + 2]
            case 1:
                held.insert(place, {"n": number})
            case 2 if held and isinstance(held[0], dict):
                held[0]["changed"] = number
            case 3:
                held = [*held[-3:]]
            case _:
                held = [*held, *draw.choices([None, 7, "é", b"\x91", [number], ""], k=2)]
        config = await put(saver, {"list": held, "n": number}, config)
        versions.append((config, [dict(e) if isinstance(e, dict) else e for e in held]))
        if draw.random() < 0.2:
            config = draw.choice(versions)[0]
            held = [*(await values_at(saver, config))["list"]]
    for config, wanted in versions:
        assert (await values_at(saver, config))["list"] == wanted
    listed = {one.config["configurable"]["checkpoint_id"]: one async for one in saver.alist(T1)}
    for config, wanted in versions:
        one = listed[config["configurable"]["checkpoint_id"]]
        assert one.checkpoint["channel_values"]["list"] == wanted


async def test_nobody_changes_what_another_one_got(board: Board) -> None:
    """Lists and messages of a listing, and of the newest checkpoint, belong to their caller."""
    saver = BlackboardSaver(board)
    first = await put(saver, {"said": [HumanMessage("a")], "words": ["a"], "flat": [{"n": 1}]})
    more = {"said": [HumanMessage("a"), HumanMessage("b")], "words": ["a", "b"]}
    await put(saver, {**more, "flat": [{"n": 1}, {"n": 2}]}, first)
    for _ in range(2):
        newest, oldest = [one.checkpoint["channel_values"] async for one in saver.alist(T1)]
        assert [message.text for message in newest["said"]] == ["a", "b"]
        assert oldest["said"][0].text == "a"
        assert (newest["words"], oldest["words"]) == (["a", "b"], ["a"])
        assert (newest["flat"], oldest["flat"]) == ([{"n": 1}, {"n": 2}], [{"n": 1}])
        newest["flat"][0]["n"] = 7
        newest["said"][0].content = "changed"
        newest["words"].append("changed")
        got = await saver.aget_tuple(T1)
        assert got is not None
        assert got.checkpoint["channel_values"]["words"] == ["a", "b"]
        got.checkpoint["channel_values"]["words"].append("changed")


async def test_a_list_that_is_changed_in_place_is_stored_as_it_is(board: Board) -> None:
    saver = BlackboardSaver(board)
    held = ["a", "b"]
    first = await put(saver, {"list": held})
    held[0] = "c"
    second = await put(saver, {"list": held}, first)
    assert (await values_at(saver, first))["list"] == ["a", "b"]
    assert (await values_at(saver, second))["list"] == ["c", "b"]


@pytest.mark.parametrize("size", [899_000, 1_200_000, 9_000_000])
async def test_values_of_any_size_are_stored(board: Board, seed: int, size: int) -> None:
    """In the entry, or in a file beside it, which goes with its thread."""
    saver = BlackboardSaver(board)
    big = random.Random(seed).randbytes(size)
    config = await put(saver, {"big": big, "n": 1})
    await saver.aput_writes(config, [("big", big)], "task")
    assert (await values_at(saver, config))["big"] == big
    found = await saver.aget_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "big", big)]
    await saver.acopy_thread("t1", "t2")
    await saver.adelete_thread("t1")
    copied: RunnableConfig = {"configurable": {"thread_id": "t2", "checkpoint_ns": ""}}
    assert (await values_at(saver, copied))["big"] == big
    await saver.adelete_thread("t2")
    assert [entry async for entry in board.scan("public/**")] == []


async def test_a_checkpoint_that_is_too_large_is_refused_whole(board: Board) -> None:
    saver = BlackboardSaver(board)
    config = await put(saver, {"n": 1})
    big = random.Random(1).randbytes(65 * 1024 * 1024)
    with pytest.raises(LimitExceeded, match="LARGE_BYTES_MAX"):
        await put(saver, {"n": 2, "big": big}, config)
    assert await values_at(saver, T1) == {"n": 1}
    assert len([entry async for entry in board.scan("public/**")]) == 1


class Aes:
    """A cipher for LangGraph's encrypting serializer."""

    def __init__(self) -> None:
        self._key = AESGCM(bytes(32))

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """With a nonce of its own each time, so that equal values differ."""
        nonce = secrets.token_bytes(12)
        return "aes", nonce + self._key.encrypt(nonce, plaintext, None)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """What was encrypted."""
        assert ciphername == "aes"
        return self._key.decrypt(ciphertext[:12], ciphertext[12:], None)


def test_what_could_not_be_read_is_not_written() -> None:
    """Bytes that shrink to nothing, up to the last one that a reader takes."""
    record = records.CheckpointRecord(None, ("null", b""), ("null", b""))
    record.values["zeros"] = records.Pieced("bytes", [b"\0" * 100_000])
    data = records.encode(record)
    size = len(records.inflated(data))
    assert records.encode(record, size) == data
    assert len(records.inflated(data, size)) == size
    with pytest.raises(ValueError, match="more than"):
        records.inflated(data, size - 1)
    with pytest.raises(LimitExceeded):
        records.encode(record, size - 1)
    with pytest.raises(LimitExceeded):
        records.encode_writes([records.TaskWrite("a", "", 0, "n", record.values["zeros"])], 1_000)


async def test_writes_that_are_put_again_leave_no_files_behind(board: Board) -> None:
    """Of an answer to an interrupt, for example, the last one counts."""
    saver, draw = BlackboardSaver(board), random.Random(1)
    config = await put(saver, {"n": 1})
    for _ in range(3):
        answer = draw.randbytes(1_000_000)
        await saver.aput_writes(config, [("__resume__", answer)], "task")
    found = await saver.aget_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "__resume__", answer)]
    infos = [key async for key in board.scan("public/langgraph/t1/f/*/~file/info", keys_only=True)]
    assert len(infos) == 1


async def test_an_encrypting_serializer_is_left_its_values(board: Board) -> None:
    saver = BlackboardSaver(board, serde=EncryptedSerializer(Aes()))
    first = await put(saver, {"said": ["secret"] * 3})
    await saver.aput_writes(first, [("said", ["secret"])], "task")
    second = await put(saver, {"said": ["secret"] * 4}, first)
    assert (await values_at(saver, first))["said"] == ["secret"] * 3
    assert (await values_at(saver, second))["said"] == ["secret"] * 4
    stored = [entry.value async for entry in board.scan("public/**")]
    assert all(b"secret" not in records.inflated(value) for value in stored)


class NoPlainData:
    """Something that only pickle can serialize."""

    def __init__(self, name: str) -> None:
        self.name = name


async def test_what_only_pickle_can_serialize_is_added_to_a_list(board: Board) -> None:
    saver = BlackboardSaver(board, serde=JsonPlusSerializer(pickle_fallback=True))
    config = await put(saver, {"said": ["a", "b"]})
    config = await put(saver, {"said": ["a", "b", NoPlainData("c")]}, config)
    assert [getattr(one, "name", one) for one in (await values_at(saver, config))["said"]] == [
        *"abc"
    ]
    config = await put(saver, {"said": ["a", "b", "d"]}, config)
    assert (await values_at(saver, config))["said"] == [*"abd"]


# --- removing -------------------------------------------------------------------------------------


async def test_what_builds_on_a_removed_checkpoint_stays_whole(board: Board) -> None:
    """Whichever of a chain is removed, by its run."""
    for gone in range(6):
        saver = BlackboardSaver(board, prefix=f"public/lg{gone}")
        config, configs = T1, []
        for number in range(6):
            values = {"list": [*range(1_000, 1_000 + number)], "same": "s" * 100, "n": number}
            config = await put(saver, values, config, run_id=f"run{number}")
            await saver.aput_writes(config, [("c", number)], "task")
            configs.append(config)
        await saver.adelete_for_runs([f"run{gone}"])
        listed = [one async for one in saver.alist(T1)]
        assert len(listed) == 5
        for number, config in enumerate(configs):
            if number == gone:
                assert await saver.aget_tuple(config) is None
                continue
            found = await values_at(saver, config)
            assert found["list"] == [*range(1_000, 1_000 + number)]
            assert (found["same"], found["n"]) == ("s" * 100, number)


async def test_a_checkpoint_that_is_put_again_is_replaced(board: Board) -> None:
    saver = BlackboardSaver(board)
    made: Checkpoint = {**empty_checkpoint(), "channel_values": {"l": ["a"]}}
    made["channel_versions"] = {"l": "1"}
    config = await saver.aput(T1, made, {"step": 0}, {"l": "1"})
    child = await put(saver, {"l": ["a", "b"]}, config)
    made["channel_values"] = {"l": ["z"]}
    await saver.aput(T1, made, {"step": 1}, {"l": "1"})
    assert await values_at(saver, config) == {"l": ["z"]}
    assert await values_at(saver, child) == {"l": ["a", "b"]}
    # In one commit: at no moment is it gone.
    first, _ = [entry.key async for entry in board.scan(f"{saver.prefix}/*/c/**")]
    versions = await board.history(first)
    assert [version.entry is not None for version in versions] == [True, True]


async def test_a_checkpoint_that_is_put_again_keeps_its_writes(board: Board) -> None:
    """As in other savers: those put on it, those that its child took along, and those it took."""
    saver = BlackboardSaver(board)
    made: Checkpoint = {**empty_checkpoint(), "channel_values": {"l": ["a"]}}
    made["channel_versions"] = {"l": "1"}
    config = await saver.aput(T1, made, {"step": 0}, {"l": "1"})
    await saver.aput_writes(config, [("l", ["alone"])], "one")
    later: Checkpoint = {**empty_checkpoint(), "channel_values": {"l": ["a", "b"]}}
    later["channel_versions"] = {"l": "2"}
    _, child = await asyncio.gather(
        saver.aput_writes(config, [("l", ["taken along"])], "two"),
        saver.aput(config, later, {"step": 1}, {"l": "2"}),
    )
    writes = [("one", "l", ["alone"]), ("two", "l", ["taken along"])]
    for again, parent in ((made, T1), (later, config), (made, T1)):
        await saver.aput(parent, again, {"step": 7}, again["channel_versions"])
        found = await BlackboardSaver(board).aget_tuple(config)
        assert found is not None
        assert sorted(found.pending_writes or []) == writes
    assert await values_at(saver, child) == {"l": ["a", "b"]}


async def test_a_thread_that_is_copied_again_leaves_no_files_behind(board: Board) -> None:
    saver = BlackboardSaver(board)
    await put(saver, {"big": random.Random(1).randbytes(1_000_000)})
    counts = set()
    for _ in range(3):
        await saver.acopy_thread("t1", "t2")
        counts.add(len([1 async for _ in board.scan("public/langgraph/t2/**", keys_only=True)]))
    assert len(counts) == 1, counts
    copied = await values_at(saver, {"configurable": {"thread_id": "t2", "checkpoint_ns": ""}})
    assert copied["big"] == random.Random(1).randbytes(1_000_000)


async def test_a_store_leaves_no_files_behind(board: Board) -> None:
    """Of a batch that is refused, and of items that several put at once."""
    store = BlackboardStore(board)
    large = PutOp(("n",), "large", {"text": "x" * 1_500_000})
    with pytest.raises(TypeError, match="plain data"):
        await store.abatch([large, PutOp(("n",), "bad", {"value": object()})])
    assert not (await board.list("public/langgraph-store/**")).entries
    for _ in range(3):
        await asyncio.gather(*[store.abatch([large]) for _ in range(3)])
    files = board.scan("public/langgraph-store/f/**", keys_only=True)
    assert len({key.key.split("/")[3] async for key in files}) == 1
    item = await store.aget(("n",), "large")
    assert item is not None
    assert item.value == large.value
    await store.adelete(("n",), "large")
    assert not (await board.list("public/langgraph-store/**")).entries


@pytest.fixture
def undeletable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No file can be deleted: those that were tried."""
    tried: list[str] = []

    async def away(self: Files, key: str, **named: Any) -> bool:
        tried.append(key)
        raise Unavailable("service", "it is away")

    monkeypatch.setattr(Files, "delete", away)
    return tried


async def test_what_is_stored_does_not_fail_for_an_old_file(
    board: Board, undeletable: list[str]
) -> None:
    """Of an item, of a checkpoint, of a thread that is copied again: only the clean-up fails."""
    store, saver = BlackboardStore(board), BlackboardSaver(board)
    await store.aput(("n",), "large", {"text": "x" * 1_500_000})
    await store.aput(("n",), "large", {"text": "small"})
    item = await store.aget(("n",), "large")
    assert item is not None
    assert (item.value, len(undeletable)) == ({"text": "small"}, 1)
    config = await put(saver, {"big": random.Random(1).randbytes(1_000_000)})
    for _ in range(2):
        await saver.acopy_thread("t1", "t2")
    assert len(undeletable) == 2
    await put(saver, {"big": b"small"}, config)
    await saver.aprune(["t1"])
    assert len(undeletable) == 3
    assert (await values_at(saver, T1)) == {"big": b"small"}


async def test_a_refusal_is_not_hidden_by_a_file_that_stays(
    board: Board, undeletable: list[str]
) -> None:
    """The error is that of the commit."""
    payloads = Payloads(board, "public/files")
    payloads.put("public/a", bytes(1_000_000))
    with pytest.raises(Conflict):
        await payloads.commit([KeyAt("public/a", 7)])
    assert len(undeletable) == 1


async def test_a_look_at_an_item_is_no_update_of_it(board: Board) -> None:
    """Though its time to live begins again with it, which puts the entry again."""
    store = BlackboardStore(board)
    await store.aput(("n",), "k", {"a": 1}, ttl=60)
    [before] = (await board.list("public/langgraph-store/**")).entries
    found: list[Any] = []

    async def was_put_again() -> bool:
        found.append(await store.aget(("n",), "k"))
        [entry] = (await board.list("public/langgraph-store/**")).entries
        return entry.time_ms > before.time_ms

    await wait_until(was_put_again)
    found += await store.asearch(("n",))
    assert {(one.created_at, one.updated_at) for one in found} == {
        (found[0].created_at, found[0].updated_at)
    }
    for endless in (float("inf"), float("nan"), 0.0):
        with pytest.raises(ValueError, match="minutes above 0"):
            await store.aput(("n",), "k", {"a": 2}, ttl=endless)


async def test_an_item_that_was_damaged_can_be_put_again(board: Board) -> None:
    store = BlackboardStore(board)
    await store.aput(("n",), "k", {"a": 1})
    [entry] = (await board.list("public/langgraph-store/**")).entries
    await board.put(entry.key, "not an item")
    with pytest.raises(Corrupt):
        await store.aget(("n",), "k")
    await store.aput(("n",), "k", {"a": 2})
    item = await store.aget(("n",), "k")
    assert item is not None
    assert item.value == {"a": 2}


async def test_a_run_beside_a_pruning_loses_nothing(board: Board) -> None:
    """One saver goes on with the thread while another one prunes it, over and over."""
    saver, other = BlackboardSaver(board), BlackboardSaver(board)
    graph = growing(saver, lambda: "word " * 20)
    running = asyncio.ensure_future(_run_often(graph))
    while not running.done():
        await other.aprune(["t1"])
        await anyio.lowlevel.checkpoint()  # without anything to do, it would let nobody else run
    values = await running
    assert (await values_at(saver, T1))["said"] == values["said"]
    assert len(values["said"]) == 100
    for one in [one async for one in other.alist(T1)]:
        assert await other.aget_tuple(one.config) is not None


async def _run_often(graph: Any) -> Any:
    for _ in range(5):
        values = await graph.ainvoke({"said": []}, T1, durability="sync")
        if len(values["said"]) < 100:
            await graph.aupdate_state(T1, {"said": []})
    return values


# --- who may write --------------------------------------------------------------------------------


async def test_a_worker_that_was_replaced_is_fenced(client: blackboard.Client) -> None:
    @asynccontextmanager
    async def worker(thread: str) -> AsyncIterator[BlackboardSaver]:
        saver = BlackboardSaver(client.board("graphs"))
        async with saver.aown(thread):
            yield saver

    async def replace(thread: str) -> None:
        """Its lease is ended, as it would be when its time is over."""
        board = client.board("graphs")
        (lease,) = await board.leases(f"public/langgraph/{thread}/*")
        assert lease.holder is not None
        await board.commit([Release(lease.key, lease.holder, lease.fence)])

    refusal = await write_ownership(worker, replace)
    assert isinstance(refusal, Fenced)


async def test_a_thread_has_one_owner_at_a_time(board: Board) -> None:
    saver, other = BlackboardSaver(board), BlackboardSaver(board)

    async def take(thread: str) -> None:
        async with other.aown(thread, timeout_ms=0):
            pass

    def elsewhere(thread: str) -> "asyncio.Task[None]":
        """Not in this task, which holds the lock."""
        return asyncio.get_running_loop().create_task(take(thread), context=Context())

    async with saver.aown("t1"):
        with pytest.raises(LeaseHeld):
            await elsewhere("t1")
        await elsewhere("t2")
        await growing(saver, lambda: "x").ainvoke({"said": []}, T1)
    await elsewhere("t1")


def test_a_thread_is_owned_without_async(tmp_path: Path) -> None:
    with BlackboardSaver.from_conn_string(str(tmp_path / "data")) as saver:
        with saver.own("t1"):
            growing(saver, lambda: "x").invoke({"said": []}, T1)
        with pytest.raises(LeaseLost):
            _lose(saver)


def _lose(saver: BlackboardSaver) -> None:
    """Own a thread, and lose it in the middle."""
    board: Any = saver.board
    with saver.own("t1"):
        (lease,) = board.leases("public/langgraph/t1/*")
        board.commit([Release(lease.key, lease.holder, lease.fence)])
        with pytest.raises(Fenced):
            growing(saver, lambda: "x").invoke({"said": []}, T1)


async def test_an_owner_that_was_replaced_in_its_own_process_takes_nothing_along(
    board: Board,
) -> None:
    """Two blocks of one saver: the end of the one that lost the thread is not the end of both."""
    saver = BlackboardSaver(board)
    owned, is_over = asyncio.Event(), asyncio.Event()
    following: list[asyncio.Task[None]] = []

    async def next_owner() -> None:
        async with saver.aown("t1"):
            owned.set()
            await is_over.wait()
            await put(saver, {"n": 2})

    async def lose() -> None:
        (lease,) = await board.leases("public/langgraph/t1/*")
        assert lease.holder is not None
        await board.commit([Release(lease.key, lease.holder, lease.fence)])
        await owned.wait()

    async def owner() -> None:
        async with saver.aown("t1"):
            following.append(loop.create_task(next_owner(), context=Context()))
            await loop.create_task(lose(), context=Context())
            with pytest.raises(Fenced):
                await put(saver, {"n": 1})

    loop = asyncio.get_running_loop()
    with pytest.raises(LeaseLost):
        await owner()
    is_over.set()
    await asyncio.gather(*following)
    assert await values_at(saver, T1) == {"n": 2}


async def test_two_runs_of_a_thread_keep_both_branches(board: Board) -> None:
    """Without an owner, as with every other checkpointer: the newest wins, and nothing is lost."""
    saver, other = BlackboardSaver(board), BlackboardSaver(board)
    both = (growing(each, lambda: "x") for each in (saver, other))
    await asyncio.gather(*(graph.ainvoke({"said": []}, T1) for graph in both))
    found = [one async for one in saver.alist(T1)]
    assert len(found) == 2 * (20 + 2)
    assert {len(one.checkpoint["channel_values"].get("said", [])) for one in found} == {*range(21)}


async def test_a_foreign_namespace_is_refused(served: Served) -> None:
    token = served.token(blackboard_agent("bob"))
    async with blackboard.connect(served.url, token=token) as connected:
        saver = BlackboardSaver(connected.board("graphs"), prefix="private/ann/langgraph")
        with pytest.raises(AccessDenied):
            await put(saver, {"n": 1})
        assert await saver.aget_tuple(T1) is None
        mine = BlackboardSaver(connected.board("graphs"), prefix="private/bob/langgraph")
        await put(mine, {"n": 1})


def blackboard_agent(name: str) -> Any:
    """An agent with its default rights."""
    from blackboard.core import access

    return access.agent(name)


# --- what comes back ------------------------------------------------------------------------------


async def test_a_restore_takes_back_threads_and_store_together(board: Board) -> None:
    saver, store = BlackboardSaver(board), BlackboardStore(board)
    graph = growing(saver, lambda: "x")
    others: RunnableConfig = {"configurable": {"thread_id": "t2"}}
    for config in (T1, others):
        await graph.ainvoke({"said": []}, config)
    await store.aput(("team",), "facts", {"n": 1})
    await board.checkpoint("agreed")
    before = [(await graph.aget_state(config)).values for config in (T1, others)]
    for config in (T1, others):
        await graph.ainvoke({"said": ["more"] * 20}, config)
    await store.aput(("team",), "facts", {"n": 2})
    await store.aput(("team",), "rumour", {})
    await board.restore("agreed")
    assert [(await graph.aget_state(config)).values for config in (T1, others)] == before
    assert [item.value for item in await store.asearch(("team",))] == [{"n": 1}]


async def test_a_run_that_was_taken_back_cannot_go_on(client: blackboard.Client) -> None:
    """It ends with StaleEpoch; the next run begins with the board as it is."""
    saver, other = BlackboardSaver(client.board("graphs")), client.board("graphs")
    first = await put(saver, {"n": 1})
    await other.checkpoint("then")
    second = await put(saver, {"n": 2}, first)
    await other.restore("then")
    with pytest.raises(StaleEpoch):
        await put(saver, {"n": 3}, second)
    found = await saver.aget_tuple(T1)
    assert found is not None
    assert found.config == first
    with pytest.raises(Conflict):
        await put(saver, {"n": 3}, second)
    await put(saver, {"n": 4}, first)
    assert await values_at(saver, T1) == {"n": 4}


async def test_a_thread_that_is_deleted_ends_its_run(board: Board) -> None:
    saver = BlackboardSaver(board)
    config = await put(saver, {"n": 1})
    await BlackboardSaver(board).adelete_thread("t1")
    for _ in range(2):  # also when it is not the newest one any more
        with pytest.raises(Conflict):
            await put(saver, {"n": 2}, config)
        with pytest.raises(Conflict):
            await saver.aput_writes(config, [("n", "a secret")], "task")
        assert await saver.aget_tuple(T1) is None
        assert [entry.key async for entry in board.scan("public/langgraph/t1/**")] == []
    await put(saver, {"n": 3})


# --- bad input ------------------------------------------------------------------------------------


async def test_what_is_not_there_is_none(board: Board) -> None:
    saver = BlackboardSaver(board)
    assert await saver.aget_tuple(T1) is None
    assert [one async for one in saver.alist(T1)] == []
    await saver.adelete_thread("t1")
    await saver.aprune(["t1"])
    await saver.acopy_thread("t1", "t2")
    await saver.adelete_for_runs(["r"])
    missing: RunnableConfig = {"configurable": {**T1["configurable"], "checkpoint_id": "none"}}
    assert await saver.aget_tuple(missing) is None


async def test_a_call_that_means_nothing_is_refused(board: Board) -> None:
    saver = BlackboardSaver(board)
    await put(saver, {"n": 1})
    with pytest.raises(KeyError, match="thread_id"):
        await saver.aget_tuple({"configurable": {}})
    for nowhere in ({}, {"checkpoint_ns": ""}):  # not: in all threads
        with pytest.raises(KeyError, match="thread_id"):
            [one async for one in saver.alist({"configurable": nowhere})]
    with pytest.raises(TypeError, match="filter"):
        [one async for one in saver.alist(T1, filter="step=1")]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep_latest"):
        await saver.aprune(["t1"], strategy="everything")
    with pytest.raises(asyncio.InvalidStateError, match="await"):
        saver.get_tuple(T1)
    assert [one async for one in saver.alist(T1, limit=0)] == []


async def test_an_empty_id_names_no_checkpoint(board: Board) -> None:
    saver = BlackboardSaver(board)
    await put(saver, {"n": 1})
    empty: RunnableConfig = {"configurable": {**T1["configurable"], "checkpoint_id": ""}}
    assert await saver.aget_tuple(empty) is not None
    assert len([one async for one in saver.alist(empty)]) == 1
    assert len([one async for one in saver.alist(T1, before=empty)]) == 1


async def test_a_record_that_was_put_by_hand_is_named(board: Board) -> None:
    saver = BlackboardSaver(board)
    config = await put(saver, {"n": 1})
    key = f"public/langgraph/t1/c/-/{config['configurable']['checkpoint_id']}"
    for value in (b"", b"\x01junk", b"\x07", 7, {"file": "public/langgraph/t1/f/none"}):
        await board.put(key, value)
        with pytest.raises((Corrupt, blackboard.BlackboardError)) as caught:
            await BlackboardSaver(board).aget_tuple(T1)
        assert "t1" in str(caught.value)


async def test_a_dead_service_is_unavailable(tmp_path: Path) -> None:
    """Nothing is half stored: it comes back with what was put."""
    shell = Shell(tmp_path)
    # One that the kernel picks is anybody's while nobody listens at it.
    with shell.service(port=free_port()) as running:
        url = next(line.split()[1] for line in running.lines if line.strip().startswith("url"))
        token = (tmp_path / "data" / "token").read_text().strip()
        async with blackboard.connect(url, token=token) as patient:
            await put(BlackboardSaver(patient.board("graphs")), {"n": 1})
        hurried = lowered(commit_timeout_ms=3_000)
        client = await blackboard.connect(url, token=token, patience_ms=3_000, limits=hurried)
        saver = BlackboardSaver(client.board("graphs"))
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await put(saver, {"n": 2})
    with pytest.raises(Unavailable):
        await saver.aget_tuple(T1)
    await client.aclose()
