"""Edits of the members here that are on their way: admitted, and not yet back from the log.

An edit may be told as soon as its commit is acknowledged: it cannot be lost any more. The log
brings it a little later, with its revision, and then nobody is told again. What comes out of one
call of the engine is told together.

Invariants
- an edit is told once, however early its acknowledgement or the log is.
- after `close` nothing is told.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from blackboard.client.writer import Wish, Writer
from blackboard.core.commit import Op
from blackboard.core.documents.update import Update
from blackboard.server.documents.awareness import Member


@dataclass(slots=True)
class Flight:
    """An edit of `member`, read as `update`; `is_told` once everybody here has it."""

    member: Member
    update: Update
    is_told: bool = False


class Flights:
    """The edits of one document that are on their way, by their bytes, oldest first.

    `acknowledged` is called with those that are committed and not told yet, in the order of their
    acknowledgements; `failed` when one surely or perhaps was not committed.
    """

    def __init__(
        self, acknowledged: Callable[[Sequence[bytes]], None], failed: Callable[[], None]
    ) -> None:
        self._acknowledged = acknowledged
        self._failed = failed
        self._flights: dict[bytes, Flight] = {}
        self._flying = 0
        """Those without an acknowledgement."""
        self._landed: list[bytes] = []
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._flights)

    def find(self, data: bytes) -> Flight | None:
        """The flight of an edit; None if it is nobody's here, or back from the log."""
        return self._flights.get(data)

    def came_back(self, data: bytes) -> None:
        """The log has brought an edit, and it was told."""
        self._flights.pop(data, None)

    async def commit(self, writer: Writer, ops: tuple[Op, ...], data: bytes, edit: Flight) -> None:
        """Commit `ops`, which put an edit into the log. Errors: those of `Board.commit`."""
        self._flights[data] = edit
        self._flying += 1
        try:
            await writer.commit(Wish(ops), with_held=False)
        except BaseException:
            if self._flights.pop(data, None) is not None:
                self._failed()
            raise
        finally:
            self._flying -= 1
        self._land(data)

    def _land(self, data: bytes) -> None:
        """Tell an edit; while others are on their way, after those that landed with it."""
        self._landed.append(data)
        if not self._flying:
            self._tell()
        elif len(self._landed) == 1:
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        landed, self._landed = self._landed, []
        if landed and not self._is_closed:
            self._acknowledged(landed)

    def close(self) -> None:
        """Tell nothing any more."""
        self._is_closed = True
