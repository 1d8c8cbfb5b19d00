"""LangGraph on a board: `BlackboardSaver`, a checkpointer, and `BlackboardStore`, a store.

    from blackboard.integrations.langgraph import BlackboardSaver

    with BlackboardSaver.from_conn_string("data") as saver:
        graph = builder.compile(checkpointer=saver)

Everything that they store is on the board: one checkpoint of the board names the state of all
threads and of the store, and one restore takes all of it back. docs/howto/langgraph.md shows how.
"""

from blackboard.integrations.framework import framework

with framework("langgraph"):
    from blackboard.integrations.langgraph.saver import BlackboardSaver
    from blackboard.integrations.langgraph.store import BlackboardStore

__all__ = ["BlackboardSaver", "BlackboardStore"]
