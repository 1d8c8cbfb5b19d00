"""Vectors in NumPy: one matrix of unit vectors, which are compared with a question.

Few are all compared, so a search finds exactly the nearest ones, also behind a filter. Of many, the
best by their sketches are compared, and all if the sketches do not tell the nearest apart
(docs/decisions has why: no graph was as good on what changes all the time).

The products are those of one thread (`vecdot`): a multiplication by all cores lets the others spin
for as long again.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blackboard.client.memory.sketches import Mask, Matrix as Matrix, Sketches
from blackboard.errors import ModelFailed
from blackboard.limits import EMBEDDING_DIMENSIONS_MAX

_STORED: Final = np.dtype("<f4")
_ROWS_MIN: Final = 256
_GATHER_PART: Final = 4
"""A filter that leaves less than one in so many rows is applied before the multiplication."""
SKETCHED_ROWS_MIN: Final = 16_384
"""From so many rows on sketches are compared first: fewer take a few milliseconds as they are."""


def unit_vectors(model: str, found: Any, count: int) -> Matrix:
    """What a model answered, as `count` rows of unit length. Errors: ModelFailed."""
    try:
        with np.errstate(over="ignore"):  # it becomes infinity, which is refused below
            rows = np.array(found, dtype=np.float32, ndmin=1)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelFailed(model, "did not answer with one list of numbers for each text") from error
    if rows.ndim != 2 or not rows.shape[1]:
        raise ModelFailed(model, "did not answer with one list of numbers for each text")
    if rows.shape[0] != count:
        raise ModelFailed(model, f"gave {rows.shape[0]} vectors for {count} texts")
    if rows.shape[1] > EMBEDDING_DIMENSIONS_MAX:
        raise ModelFailed(
            model, f"gave {rows.shape[1]} dimensions: at most {EMBEDDING_DIMENSIONS_MAX}"
        )
    if not np.isfinite(rows).all():
        raise ModelFailed(model, "gave a vector with NaN or infinity")
    # By the largest first: the square of a large float32 is no float32 any more.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if not largest.all():
        raise ModelFailed(model, "gave a vector of zeros, which has no direction")
    rows = rows / largest
    return np.ascontiguousarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def joined(parts: Sequence[Matrix]) -> Matrix:
    """The rows of all `parts`."""
    return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)


def packed(vector: Matrix) -> bytes:
    """A vector as a store keeps it."""
    return vector.astype(_STORED, copy=False).tobytes()


class Vectors:
    """Rows by number; a row may have no vector.

    Not safe for several threads at once: its index has a lock.
    """

    def __init__(self, dimensions: int, *, sketched_rows_min: int = SKETCHED_ROWS_MIN) -> None:
        self.dimensions = dimensions
        self._sketched_rows_min = sketched_rows_min
        self._sketches: Sketches | None = None
        self._rows = np.zeros((_ROWS_MIN, dimensions), np.float32)
        self._is_there = np.zeros(_ROWS_MIN, np.bool_)
        self._end = 0

    def put(self, row: int, stored: bytes) -> bool:
        """Set a row; False, and the row has no vector, if `stored` is not one of this size."""
        self._grow(row + 1)
        self._is_there[row] = False
        if len(stored) != self.dimensions * _STORED.itemsize:
            return False
        vector = np.frombuffer(stored, _STORED).astype(np.float32)
        norm = np.linalg.norm(vector)
        if not np.isfinite(norm) or not norm:
            return False
        # Again: any writer may have put it, and a longer vector would win every search.
        self._rows[row] = vector / norm
        self._is_there[row] = True
        self._sketch(row)
        return True

    def drop(self, row: int) -> None:
        """Remove the vector of a row: nothing of it is left in memory."""
        if row < self._end:
            self._is_there[row] = False
            self._rows[row] = 0
            self._sketch(row)

    def nearest(
        self, question: Matrix, count: int, among: Sequence[int] | None
    ) -> list[tuple[int, float]]:
        """The `count` rows nearest to `question`, the nearest first, with the cosine; of the rows
        `among`, if that is given."""
        allowed = self._is_there[: self._end]
        if among is not None:
            wanted = np.zeros(self._end, np.bool_)
            wanted[np.fromiter((row for row in among if row < self._end), np.int64)] = True
            allowed = allowed & wanted
        if int(np.count_nonzero(allowed)) >= self._sketched_rows_min:
            found = self._by_sketches(question, count, allowed)
            if found is not None:
                return found
        return self._of_all(question, count, allowed)

    def _of_all(self, question: Matrix, count: int, allowed: Mask) -> list[tuple[int, float]]:
        rows = np.flatnonzero(allowed)
        if len(rows) * _GATHER_PART < self._end:
            return _best(np.vecdot(self._rows[rows], question), rows, count)
        cosines = np.vecdot(self._rows[: self._end], question)
        return _best(cosines[rows], rows, count)

    def _by_sketches(
        self, question: Matrix, count: int, allowed: Mask
    ) -> list[tuple[int, float]] | None:
        """The nearest ones; None if the sketches do not tell which they are."""
        if self._sketches is None:
            self._sketches = Sketches(self._rows, self._is_there)
        rows, distances, limit = self._sketches.candidates(question, count, allowed)
        if len(rows) * _GATHER_PART >= self._end:
            return None
        found = _best(np.vecdot(self._rows[rows], question), rows, count)
        theirs = distances[np.searchsorted(rows, [row for row, _ in found])]
        return found if self._sketches.is_certain(theirs, limit) else None

    def _sketch(self, row: int) -> None:
        if self._sketches is not None:
            self._sketches.put(row, self._rows[row])

    def _grow(self, end: int) -> None:
        if end > len(self._rows):
            size = max(end, 2 * len(self._rows))
            rows = np.zeros((size, self.dimensions), np.float32)
            rows[: self._end] = self._rows[: self._end]
            is_there = np.zeros(size, np.bool_)
            is_there[: self._end] = self._is_there[: self._end]
            self._rows, self._is_there = rows, is_there
            self._sketches = None  # made again, around the centre that there is then
        self._end = max(self._end, end)


def _best(cosines: Matrix, rows: NDArray[np.intp], count: int) -> list[tuple[int, float]]:
    """The `count` largest, in order; among equals, the smaller row first."""
    places = np.arange(len(cosines))
    if count < len(cosines):
        places = np.argpartition(cosines, -count)[-count:]
    places = places[np.lexsort((places, -cosines[places]))]
    return list(zip(rows[places].tolist(), cosines[places].tolist(), strict=True))
