"""Deletes of prefixes, however many keys lie below them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from blackboard.client.views import Listing, Receipt
from blackboard.core.commit import Delete, DeletePrefix, Op
from blackboard.errors import LimitExceeded
from blackboard.limits import OPERATIONS_MAX
from blackboard.units import Key, Prefix


class DeletingBoard(Protocol):
    """The part of a Board that a delete uses."""

    async def commit(self, ops: Sequence[Op]) -> Receipt:
        """Carry out all of `ops`."""

    async def list(self, pattern: str, *, limit: int) -> Listing:
        """A page of the entries that match."""


async def delete_below(
    board: DeletingBoard, prefix: Prefix, progress: Callable[[int], None] | None
) -> tuple[Key, ...]:
    """`Board.delete_prefix`: at once if the engine takes it, else page by page until it does."""
    gone: list[Key] = []
    while True:
        try:
            receipt = await board.commit([DeletePrefix(prefix)])
        except LimitExceeded as refused:
            page = await board.list(f"{prefix}/**", limit=OPERATIONS_MAX)
            if refused.limit != "OPERATIONS_MAX" or not page.entries:
                raise
            keys = [entry.key for entry in page.entries]
            await board.commit([Delete(key) for key in keys])
        else:
            [last] = receipt.results
            assert isinstance(last, tuple)
            return (*gone, *map(str, last))
        gone += keys
        if progress is not None:
            progress(len(gone))
