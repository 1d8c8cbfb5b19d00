"""Our store by the name that the framework's own tests import."""

import itertools
import tempfile

from langgraph.store.base import IndexConfig

import blackboard.sync
from blackboard.integrations.langgraph import BlackboardStore

_CLIENT = blackboard.sync.open(tempfile.mkdtemp(), level="memory")
_NUMBERS = itertools.count()


class InMemoryStore(BlackboardStore):
    """A new and empty store."""

    def __init__(self, *, index: IndexConfig | None = None) -> None:
        super().__init__(_CLIENT.board(f"board{next(_NUMBERS)}"), index=index)
