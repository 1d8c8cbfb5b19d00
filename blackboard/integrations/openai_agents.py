"""Sessions of the OpenAI Agents SDK on a board.

    session = BlackboardSession("user@example.com", board)
    await Runner.run(agent, "What did I ask before?", session=session)

Each item is an entry below `<prefix>/<session>/items`, in the order in which the board took it in.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from blackboard.errors import BlackboardError, Rejected
from blackboard.integrations.framework import framework
from blackboard.integrations.sessions import AnyBoard, Records
from blackboard.ops import Delete, KeyAt

with framework("openai-agents"):
    # Not `from agents import`: in a checkout, type checkers take our folder of that name for it.
    _exceptions = import_module("agents.exceptions")
    _settings = import_module("agents.memory.session_settings")


class BlackboardSession:
    """A `Session` whose items are on `board` (asynchronous, or of `blackboard.sync` for
    `Runner.run_sync`), shared by all that use the same `session_id` and `prefix`.

    Writers do not wait for each other: the items of one call stand together, and none is lost.
    Errors of every method: UserError for what the board refuses (no right to `prefix`, an item of
    more than 1 MiB, an abandoned future); AgentsException when it cannot be reached, or the outcome
    is unknown. Their `__cause__` is the board's error.
    """

    def __init__(
        self,
        session_id: str,
        board: AnyBoard,
        *,
        prefix: str = "public/openai",
        session_settings: Any = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = _settings.coerce_session_settings(session_settings or {})
        self._records = Records(board, prefix, _translate)
        self._items = self._records.key(session_id, "items")

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The items, oldest first, or the last `limit` (by default `session_settings.limit`)."""
        limit = _settings.resolve_session_limit(limit, self.session_settings)
        newest = None if limit is None else max(limit, 0)
        return [entry.value for entry in await self._records.all(f"{self._items}/*", newest=newest)]

    async def add_items(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Add `items` (up to 1,024 and 4 MiB) at the end, as one commit: all of them or none."""
        if items:
            ops = [self._records.append(self._items, dict(item)) for item in items]
            await self._records.commit(ops)

    async def pop_item(self) -> Any | None:
        """Remove the newest item and return it; None when there is none. Of two callers that pop at
        once, each gets another item."""
        for _ in range(self._records.attempts_max):
            newest = await self._records.all(f"{self._items}/*", newest=1)
            if not newest:
                return None
            condition = KeyAt(newest[0].key, newest[0].mod_revision)
            if await self._records.accepted([Delete(newest[0].key)], condition):
                return newest[0].value
        raise _exceptions.AgentsException(f"others pop items of {self.session_id!r} all the time")

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._records.drop(self._items)


def _translate(error: BlackboardError) -> Exception:
    kind = _exceptions.UserError if isinstance(error, Rejected) else _exceptions.AgentsException
    translated: Exception = kind(str(error))
    return translated
