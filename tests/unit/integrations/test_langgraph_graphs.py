"""Compiled graphs on a board: interrupts, subgraphs, time travel, forks, with and without async."""

import operator
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import blackboard
import blackboard.sync
from blackboard.integrations.langgraph import BlackboardSaver, BlackboardStore
from tests.acceptance.shell import Shell
from tests.serving import Served
from tests.waiting import wait_until

ANN: RunnableConfig = {"configurable": {"thread_id": "ann@example.com"}}


class Talk(TypedDict):
    """The state of the graphs here."""

    said: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


class Reply(TypedDict):
    """The state of the subgraph."""

    messages: Annotated[list[AnyMessage], add_messages]


class Count(TypedDict):
    """A list that each run replaces by a longer one."""

    runs: list[str]


def talk(checkpointer: Any, store: Any = None) -> Any:
    """Works, asks a person, and says what was answered; a subgraph writes a message."""

    def work(state: Talk) -> dict[str, Any]:
        return {"said": [f"turn {len(state['said'])}"], "messages": [HumanMessage("go on?")]}

    def ask(state: Talk) -> dict[str, Any]:
        return {"said": [f"answered {interrupt('go on?')}"]}

    def answer(state: Reply) -> dict[str, Any]:
        return {"messages": [AIMessage(f"after {len(state['messages'])}")]}

    inner = StateGraph(Reply).add_node("answer", answer).add_edge(START, "answer").compile()
    outer = StateGraph(Talk).add_node("work", work).add_node("ask", ask).add_node("inner", inner)
    for one, other in ((START, "work"), ("work", "ask"), ("ask", "inner"), ("inner", END)):
        outer.add_edge(one, other)
    return outer.compile(checkpointer=checkpointer, store=store)


def story(values: dict[str, Any]) -> list[str]:
    """What a state says."""
    return [*values["said"], *(message.text for message in values["messages"])]


DONE = ["turn 0", "answered yes", "go on?", "after 1"]


@pytest.fixture(params=["embedded", "sync", "connected"])
async def saver(
    request: pytest.FixtureRequest, tmp_path: Path, served: Served
) -> AsyncIterator[BlackboardSaver]:
    """A saver in each way that there is."""
    if request.param == "sync":
        with blackboard.sync.open(tmp_path / "sync", level="memory") as client:
            yield BlackboardSaver(client.board("graphs"))
    elif request.param == "embedded":
        async with blackboard.open(tmp_path / "async", level="memory") as opened:
            yield BlackboardSaver(opened.board("graphs"))
    else:
        async with blackboard.connect(served.url, token=served.token()) as connected:
            yield BlackboardSaver(connected.board("graphs"))


async def in_thread(call: Callable[[], Any]) -> Any:
    """A synchronous call, as a program without a loop makes it."""
    return await anyio.to_thread.run_sync(call)


async def test_an_interrupted_graph_is_resumed(saver: BlackboardSaver) -> None:
    graph = talk(saver)
    asked = await graph.ainvoke({"said": []}, ANN)
    assert [each.value for each in asked["__interrupt__"]] == ["go on?"]
    assert (await graph.aget_state(ANN)).next == ("ask",)
    assert story(await graph.ainvoke(Command(resume="yes"), ANN)) == DONE


async def test_the_same_without_async(saver: BlackboardSaver) -> None:
    graph = talk(saver)
    await in_thread(lambda: graph.invoke({"said": []}, ANN))
    values = await in_thread(lambda: graph.invoke(Command(resume="yes"), ANN))
    assert story(values) == DONE
    history = await in_thread(lambda: list(graph.get_state_history(ANN)))
    assert [snapshot.metadata["step"] for snapshot in history] == [3, 2, 1, 0, -1]


def without_ids(snapshot: Any) -> Any:
    """What a snapshot says, without ids and times."""
    tasks = [(task.name, len(task.interrupts), task.error) for task in snapshot.tasks]
    return (
        story({"said": [], "messages": [], **snapshot.values}),
        snapshot.next,
        snapshot.metadata["step"],
        snapshot.metadata["source"],
        tasks,
    )


async def test_the_history_is_the_one_that_is_kept_in_memory(saver: BlackboardSaver) -> None:
    """Through two turns, a change by hand, and a branch from the past."""
    histories = []
    for checkpointer in (saver, InMemorySaver()):
        graph = talk(checkpointer)
        for _ in range(2):
            await graph.ainvoke({"said": ["x"]}, ANN)
            await graph.ainvoke(Command(resume="yes"), ANN)
        first = [snapshot async for snapshot in graph.aget_state_history(ANN)][-3]
        branch = await graph.aupdate_state(first.config, {"said": ["other"]}, as_node="work")
        await graph.ainvoke(None, branch)
        await graph.ainvoke(Command(resume="no"), ANN)
        await graph.aupdate_state(ANN, {"said": ["by hand"]})
        histories.append([snapshot async for snapshot in graph.aget_state_history(ANN)])
        assert [without_ids(await graph.aget_state(each.config)) for each in histories[-1]] == [
            without_ids(each) for each in histories[-1]
        ]
    ours, theirs = histories
    assert [without_ids(each) for each in ours] == [without_ids(each) for each in theirs]
    assert "answered no" in ours[0].values["said"]
    assert "answered yes" not in ours[0].values["said"]


async def test_what_was_done_before_a_failure_is_not_done_again(saver: BlackboardSaver) -> None:
    """Two tasks of one step: the one that succeeded keeps its writes."""
    runs: list[str] = []
    is_broken = True

    def good(state: Talk) -> dict[str, Any]:
        runs.append("good")
        return {"said": ["good"]}

    async def is_kept() -> bool:
        found = await saver.aget_tuple(ANN)
        return found is not None and bool(found.pending_writes)

    async def bad(state: Talk) -> dict[str, Any]:
        if is_broken:
            await wait_until(is_kept)
            raise OSError("no network")
        return {"said": ["bad"]}

    graph: Any = StateGraph(Talk).add_node("good", good).add_node("bad", bad)
    graph = graph.add_edge(START, "good").add_edge(START, "bad").compile(checkpointer=saver)
    with pytest.raises(OSError, match="no network"):
        await graph.ainvoke({"said": []}, ANN)
    is_broken = False
    assert sorted((await graph.ainvoke(None, ANN))["said"]) == ["bad", "good"]
    assert runs == ["good"]


async def test_a_subgraph_with_a_memory_of_its_own(saver: BlackboardSaver) -> None:
    """Its namespace is a path of names and ids, too long for a segment of a key."""

    def count(state: Count) -> dict[str, Any]:
        return {"runs": [*state["runs"], f"run {len(state['runs'])}"]}

    inner: Any = StateGraph(Count).add_node("count", count).add_edge(START, "count")
    compiled = inner.compile(checkpointer=True)
    for depth in range(4):
        name = f"level-{depth}-{'n' * 40}"
        outer: Any = StateGraph(Count).add_node(name, compiled).add_edge(START, name)
        compiled = outer.compile(checkpointer=True if depth < 3 else saver)
    first = await compiled.ainvoke({"runs": []}, ANN)
    await compiled.ainvoke(first, ANN)
    found = [each async for each in saver.alist(ANN)]
    namespaces = {each.config["configurable"]["checkpoint_ns"] for each in found}
    assert len(namespaces) == 5
    assert max(map(len, namespaces)) > 128
    deepest = [
        each
        for each in found
        if each.config["configurable"]["checkpoint_ns"] == max(namespaces, key=len)
    ]
    assert deepest[0].checkpoint["channel_values"]["runs"] == ["run 0", "run 1"]
    everything = [each async for each in saver.alist(None)]
    assert [each.config for each in everything] == [each.config for each in found]
    await saver.adelete_thread("ann@example.com")
    assert [each async for each in saver.alist(None)] == []


async def test_a_copied_thread_goes_on_by_itself(saver: BlackboardSaver) -> None:
    graph = talk(saver)
    await graph.ainvoke({"said": []}, ANN)
    await saver.acopy_thread("ann@example.com", "bob")
    bob: RunnableConfig = {"configurable": {"thread_id": "bob"}}
    assert story(await graph.ainvoke(Command(resume="no"), bob))[1] == "answered no"
    assert story(await graph.ainvoke(Command(resume="yes"), ANN)) == DONE
    await saver.adelete_thread("ann@example.com")
    assert story((await graph.aget_state(bob)).values)[1] == "answered no"


async def test_a_pruned_thread_keeps_its_newest_state(saver: BlackboardSaver) -> None:
    graph = talk(saver)
    for _ in range(3):
        await graph.ainvoke({"said": []}, ANN)
        await graph.ainvoke(Command(resume="yes"), ANN)
    before = await graph.aget_state(ANN)
    await saver.aprune(["ann@example.com"])
    assert (await graph.aget_state(ANN)).values == before.values
    root: RunnableConfig = {"configurable": ANN["configurable"] | {"checkpoint_ns": ""}}
    assert len([each async for each in saver.alist(root)]) == 1
    await graph.ainvoke({"said": []}, ANN)
    assert len(story((await graph.aget_state(ANN)).values)) == len(story(before.values)) + 2


def test_a_connection_string_opens_a_board_with_and_without_async(tmp_path: Path) -> None:
    """A directory, or a service that `blackboard serve` runs."""
    shell = Shell(tmp_path)
    with shell.service() as running:
        url = next(line.split()[1] for line in running.lines if line.strip().startswith("url"))
        token = (tmp_path / "data" / "token").read_text().strip()
        for where, of in (str(tmp_path / "own"), None), (url, token):
            with (
                BlackboardSaver.from_conn_string(where, token=of) as saver,
                BlackboardStore.from_conn_string(where, token=of) as store,
            ):
                saver.setup()
                store.setup()
                store.put(("team",), "facts", {"n": 1})
                talk(saver, store).invoke({"said": []}, ANN)

            async def resume(where: str = where, of: str | None = of) -> Any:
                async with (
                    BlackboardSaver.from_conn_string(where, token=of) as saver,
                    BlackboardStore.from_conn_string(where, token=of) as store,
                ):
                    await saver.asetup()
                    assert (await store.aget(("team",), "facts")) is not None
                    return await talk(saver).ainvoke(Command(resume="yes"), ANN)

            assert story(anyio.run(resume)) == DONE


class Deltas(TypedDict):
    """A list of which only what is added is stored, with the whole of it now and then."""

    said: Annotated[list[str], DeltaChannel(lambda old, writes: sum(writes, old), list)]


async def test_delta_channels_are_read_back_also_after_pruning(saver: BlackboardSaver) -> None:
    """Their values begin in checkpoints before the newest one, which therefore stay."""

    def say(state: Deltas) -> dict[str, Any]:
        return {"said": [f"{len(state['said'])}"]}

    def more(state: Deltas) -> str:
        return END if len(state["said"]) >= 12 else "say"

    graph: Any = StateGraph(Deltas).add_node("say", say).add_edge(START, "say")
    graph = graph.add_conditional_edges("say", more).compile(checkpointer=saver)
    wanted = [f"{number}" for number in range(12)]
    assert (await graph.ainvoke({"said": []}, ANN))["said"] == wanted
    lengths = [len(each.values.get("said", ())) async for each in graph.aget_state_history(ANN)]
    assert lengths == [*range(12, -1, -1), 0]
    assert len((await in_thread(lambda: graph.get_state(ANN))).values["said"]) == 12
    await saver.aprune(["ann@example.com"])
    assert (await graph.aget_state(ANN)).values["said"] == wanted
