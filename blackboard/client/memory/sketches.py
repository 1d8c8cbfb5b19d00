"""Sketches of vectors: a bit for each number, which tell quickly what is not near.

A bit says whether a number is above that of the centre of all. Two vectors of a small angle differ
in few bits: of independent ones in half, give or take half the root of their number. So a search
compares the sketches of all rows, a thirtieth of the vectors' bytes, and the vectors themselves of
the best only.

Charikar, "Similarity estimation techniques from rounding algorithms", STOC 2002.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
Mask = NDArray[np.bool_]
_WORD_BITS: Final = 64
_ROWS_AT_ONCE: Final = 4_096
_CANDIDATES: Final = 32
"""One row in so many is compared exactly,"""
_CANDIDATES_EACH: Final = 40
"""and at least so many for each that is wanted."""
_SPREADS: Final = 3.0
"""How many standard deviations what was left out has to be farther away than what was found: of a
neighbour that is as near, one in a thousand differs in so many more bits."""


class Sketches:
    """The sketch of each row: `words` of 64 bits, one column a row."""

    def __init__(self, rows: Matrix, is_there: Mask) -> None:
        count, dimensions = rows.shape
        self._centre: Matrix = rows.sum(axis=0) / np.float32(max(1, int(is_there.sum())))
        self._spread = math.sqrt(dimensions) / 2
        self._bits = np.zeros((-(-dimensions // _WORD_BITS), count), np.uint64)
        for first in range(0, count, _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            self._bits[:, part] = self._sketched(rows[part]).T

    def put(self, row: int, vector: Matrix) -> None:
        """Set that of a row; zeros remove it."""
        self._bits[:, row] = self._sketched(vector[None])[0] if vector.any() else 0

    def candidates(
        self, question: Matrix, count: int, allowed: Mask
    ) -> tuple[NDArray[np.intp], NDArray[np.uint16], int]:
        """The rows among `allowed` that may be the `count` nearest ones, in how many bits each
        differs, and in how many the first that was left out does."""
        asked = self._sketched(question[None])[0]
        distances = np.zeros(len(allowed), np.uint16)
        for word, bits in zip(asked, self._bits, strict=True):
            distances += np.bitwise_count(bits[: len(allowed)] ^ word)
        wanted = max(_CANDIDATES_EACH * count, len(allowed) // _CANDIDATES)
        reached = np.cumsum(np.bincount(distances[allowed]))
        limit = int(np.searchsorted(reached, wanted)) + 1
        rows = np.flatnonzero((distances < limit) & allowed)
        return rows, distances[rows], limit

    def is_certain(self, found: NDArray[np.uint16], limit: int) -> bool:
        """Whether nothing as near as what was `found` differs in `limit` bits or more."""
        return not len(found) or int(found.max()) + _SPREADS * self._spread < limit

    def _sketched(self, rows: Matrix) -> NDArray[np.uint64]:
        packed = np.packbits(rows > self._centre, axis=1)
        room = np.zeros((len(rows), 8 * len(self._bits)), np.uint8)
        room[:, : packed.shape[1]] = packed
        return room.view(np.uint64)
