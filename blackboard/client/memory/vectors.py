"""Vectors in NumPy: one matrix of unit vectors, compared with a question by one multiplication.

Every vector is compared, so a search finds exactly the nearest ones, also behind a filter
(docs/decisions has why: nothing faster was as good on what changes all the time).
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blackboard.errors import ModelFailed
from blackboard.limits import EMBEDDING_DIMENSIONS_MAX

Matrix = NDArray[np.float32]
_STORED: Final = np.dtype("<f4")
_ROWS_MIN: Final = 256
_NOT_COMPARED: Final = np.float32(-2.0)
"""Below every cosine."""
_GATHER_PART: Final = 4
"""A filter that leaves less than one in so many rows is applied before the multiplication."""


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

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
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
        self._rows[row] = vector / norm
        self._is_there[row] = True
        return True

    def drop(self, row: int) -> None:
        """Remove the vector of a row: nothing of it is left in memory."""
        if row < self._end:
            self._is_there[row] = False
            self._rows[row] = 0

    def nearest(
        self, question: Matrix, count: int, among: Sequence[int] | None
    ) -> list[tuple[int, float]]:
        """The `count` rows nearest to `question`, the nearest first, with the cosine; of the rows
        `among`, if that is given."""
        end = self._end
        if among is None:
            rows = None
            cosines = np.where(self._is_there[:end], self._rows[:end] @ question, _NOT_COMPARED)
        else:
            rows = np.fromiter((row for row in among if row < end), np.int64)
            if len(rows) * _GATHER_PART < end:
                cosines = self._rows[rows] @ question
            else:
                cosines = (self._rows[:end] @ question)[rows]
            cosines = np.where(self._is_there[rows], cosines, _NOT_COMPARED)
        return _best(cosines, rows, count)

    def _grow(self, end: int) -> None:
        if end > len(self._rows):
            size = max(end, 2 * len(self._rows))
            rows = np.zeros((size, self.dimensions), np.float32)
            rows[: self._end] = self._rows[: self._end]
            is_there = np.zeros(size, np.bool_)
            is_there[: self._end] = self._is_there[: self._end]
            self._rows, self._is_there = rows, is_there
        self._end = max(self._end, end)


def _best(cosines: Matrix, rows: NDArray[np.int64] | None, count: int) -> list[tuple[int, float]]:
    """The `count` largest, in order; among equals, the smaller row first."""
    places = np.arange(len(cosines))
    if count < len(cosines):
        places = np.argpartition(cosines, -count)[-count:]
    places = places[np.lexsort((places, -cosines[places]))]
    numbers = places if rows is None else rows[places]
    found = zip(numbers.tolist(), cosines[places].tolist(), strict=True)
    return [(row, cosine) for row, cosine in found if cosine > _NOT_COMPARED]
