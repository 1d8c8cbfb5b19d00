"""Two LangGraph agents and their shared memory are taken back at once, by one restore.

    python -m blackboard.demos.langgraph_team

An analyst and a planner are two graphs with a thread each, and share a store. A wrong figure
spreads: from the analyst's thread into the store, and from there into the planner's. A checkpointer
can take back one thread; what the other one read in between stays. A board takes back all of it.

Needs LangGraph (`pip install 'agent-blackboard[langgraph]'`), and no model.
"""

import operator
import tempfile
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore

import blackboard.sync
from blackboard.errors import Fenced, LeaseLost
from blackboard.integrations.langgraph import BlackboardSaver, BlackboardStore
from blackboard.ops import Release

ANALYST: RunnableConfig = {"configurable": {"thread_id": "analyst"}}
PLANNER: RunnableConfig = {"configurable": {"thread_id": "planner"}}
FACTS = ("team", "facts")


class Notes(TypedDict):
    """What an agent has written down."""

    notes: Annotated[list[str], operator.add]


def analyst(saver: BlackboardSaver, store: BlackboardStore) -> Any:
    """A graph that keeps the figure it is given, in its thread and in the store."""

    def read(state: Notes, *, store: BaseStore) -> dict[str, list[str]]:
        figure = state["notes"][-1]
        store.put(FACTS, "valuation", {"usd_bn": int(figure)})
        return {"notes": [f"valued at {figure}"]}

    graph = StateGraph(Notes).add_node("read", read).add_edge(START, "read").add_edge("read", END)
    return graph.compile(checkpointer=saver, store=store)


def planner(saver: BlackboardSaver, store: BlackboardStore) -> Any:
    """A graph that plans on what the store says."""

    def plan(state: Notes, *, store: BaseStore) -> dict[str, list[str]]:
        fact = store.get(FACTS, "valuation")
        assert fact is not None
        return {"notes": [f"plan {len(state['notes'])} on {fact.value['usd_bn']}"]}

    graph = StateGraph(Notes).add_node("plan", plan).add_edge(START, "plan").add_edge("plan", END)
    return graph.compile(checkpointer=saver, store=store)


def told(graph: Any, config: RunnableConfig) -> list[str]:
    """The notes of a thread."""
    notes: list[str] = graph.get_state(config).values["notes"]
    return notes


def taken_back(board: blackboard.sync.Board) -> None:
    """The wrong figure spreads, and is gone from both threads and the store."""
    saver, store = BlackboardSaver(board), BlackboardStore(board)
    analysis, plans = analyst(saver, store), planner(saver, store)
    analysis.invoke({"notes": ["2900"]}, ANALYST)
    plans.invoke({"notes": []}, PLANNER)
    board.checkpoint("agreed")

    analysis.invoke({"notes": ["29"]}, ANALYST)  # a slip
    plans.invoke({"notes": []}, PLANNER)  # and somebody believed it
    print("spread:  ", told(analysis, ANALYST)[-1], "|", told(plans, PLANNER)[-1])
    assert told(plans, PLANNER)[-1] == "plan 1 on 29"

    restored = board.restore("agreed")
    print("restored:", told(analysis, ANALYST)[-1], "|", told(plans, PLANNER)[-1])
    print(f"         by one commit, revision {restored.revision}")
    fact = store.get(FACTS, "valuation")
    assert fact is not None
    assert fact.value == {"usd_bn": 2900}
    assert told(analysis, ANALYST) == ["2900", "valued at 2900"]
    assert told(plans, PLANNER) == ["plan 0 on 2900"]
    plans.invoke({"notes": []}, PLANNER)
    assert told(plans, PLANNER)[-1] == "plan 1 on 2900"
    print("and on:  ", told(plans, PLANNER)[-1])


def replaced(board: blackboard.sync.Board) -> None:
    """A worker that was away for too long cannot write to a thread that another one has now."""
    saver, store = BlackboardSaver(board), BlackboardStore(board)
    plans = planner(saver, store)
    before = told(plans, PLANNER)
    try:
        with saver.own("planner"):
            (lease,) = board.leases("public/langgraph/planner/*")
            assert lease.holder is not None
            board.commit([Release(lease.key, lease.holder, lease.fence)])  # as its end would
            plans.invoke({"notes": []}, PLANNER)
    except (Fenced, LeaseLost) as error:
        print("replaced:", error.code)
    assert told(plans, PLANNER) == before


def main() -> None:
    """The whole story, in a new directory."""
    with tempfile.TemporaryDirectory() as folder, blackboard.sync.open(folder) as client:
        board = client.board("team")
        taken_back(board)
        replaced(board)
    print("ok: one restore took back two threads and their store")


if __name__ == "__main__":
    main()
