"""What an append leaves in memory, so that the next one need not read it from the database again.

Invariants
- It counts only for a board whose row says just what it said then: the same id, as far, with the
  same hash chain. So it does not matter who else appends, or what is lost with a process.
- It is bounded: ARCHIVE_WARM_BOARDS boards, of each ARCHIVE_WARM_KEYS keys, and the sums of
  ARCHIVE_WARM_NAMESPACES namespaces.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from blackboard.archive.fold import Known
from blackboard.core.checkpoints import Mark
from blackboard.types import (
    ARCHIVE_WARM_BOARDS,
    ARCHIVE_WARM_KEYS,
    ARCHIVE_WARM_NAMESPACES,
    Key,
)


@dataclass(frozen=True, slots=True)
class Warm:
    """The end of a board's archive: `known` and `totals` are as in `Fold`, but not all of them."""

    board: int
    mark: Mark
    known: dict[Key, Known]
    totals: dict[str, int]


class Warmth:
    """What is warm, of the boards that were appended to last."""

    def __init__(self) -> None:
        self._boards: dict[int, Warm] = {}

    def take(self, row: Any) -> Warm | None:
        """What is known of the board with `row`, if it is still true. It is given away."""
        warm = self._boards.pop(row.id, None)
        if warm is None or (warm.mark.revision, warm.mark.chain) != (row.through, bytes(row.chain)):
            return None
        return warm

    def keep(self, warm: Warm) -> None:
        """Keep what an append left, once it was committed."""
        _shorten(warm.known, ARCHIVE_WARM_KEYS)
        _shorten(warm.totals, ARCHIVE_WARM_NAMESPACES)
        self._boards.pop(warm.board, None)
        self._boards[warm.board] = warm
        if len(self._boards) > ARCHIVE_WARM_BOARDS:
            del self._boards[next(iter(self._boards))]


def _shorten(found: dict[Any, Any], items_max: int) -> None:
    """Forget what stands first."""
    for key in list(islice(found, max(0, len(found) - items_max))):
        del found[key]


def left_out(wanted: Mapping[Any, Any], known: Mapping[Any, Any]) -> list[Any]:
    """Those of `wanted` that have to be read."""
    return [key for key in wanted if key not in known]
