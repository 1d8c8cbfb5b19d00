"""Vectors: what a search by sketches finds, compared with every cosine."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from blackboard.client.memory.sketches import Matrix
from blackboard.client.memory.vectors import SKETCHED_ROWS_MIN, Vectors, packed
from tests.conftest import SEED

DIMENSIONS, CLUSTERS, NEAREST = 384, 200, 10
Draw = Callable[[np.random.Generator, int], Matrix]


def clustered(dice: np.random.Generator, count: int) -> Matrix:
    """In clusters, as those of texts."""
    middles = np.random.default_rng(0).standard_normal((CLUSTERS, DIMENSIONS), np.float32)
    spread = np.float32(0.7) * dice.standard_normal((count, DIMENSIONS), np.float32)
    drawn: Matrix = middles[dice.integers(0, CLUSTERS, count)] + spread
    return drawn


def shifted(dice: np.random.Generator, count: int) -> Matrix:
    """As `clustered`, all in one direction: hardly a number is below zero."""
    drawn: Matrix = clustered(dice, count) + np.float32(3)
    return drawn


def scattered(dice: np.random.Generator, count: int) -> Matrix:
    """Anywhere: nothing is near to anything."""
    return dice.standard_normal((count, DIMENSIONS), np.float32)


def sparse(dice: np.random.Generator, count: int) -> Matrix:
    """A few numbers each, and many of them the same."""
    drawn = np.zeros((count, DIMENSIONS), np.float32)
    for _ in range(3):
        drawn[np.arange(count), dice.integers(0, DIMENSIONS, count)] += 1
    return drawn


def unit(rows: Matrix) -> Matrix:
    """`rows` of unit length."""
    found: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def check(vectors: Vectors, held: dict[int, Matrix], asked: Matrix, among: set[int] | None) -> int:
    """Compare with every cosine; returns how many of the nearest were found."""
    rows = [row for row in held if among is None or row in among]
    known = np.array([held[row] for row in rows], np.float64).reshape(-1, DIMENSIONS)
    cosines = known @ asked.astype(np.float64)
    found = vectors.nearest(asked, NEAREST, None if among is None else sorted(among))
    exact = dict(zip(rows, cosines.tolist(), strict=True))
    assert all(abs(exact[row] - cosine) < 1e-5 for row, cosine in found)
    assert [cosine for _, cosine in found] == sorted((c for _, c in found), reverse=True)
    assert len({row for row, _ in found}) == min(NEAREST, len(rows)) == len(found)
    least = np.sort(cosines)[-len(found)] - 1e-5 if found else 0.0
    return sum(exact[row] >= least for row, _ in found)


@pytest.mark.parametrize("drawn", [clustered, shifted, scattered, sparse])
def test_sketches_find_what_every_cosine_finds(drawn: Draw) -> None:
    """At least 95 of 100, of every kind, while rows come, change and go, and behind filters; and
    each with its exact cosine."""
    dice, coin = np.random.default_rng(SEED), Random(SEED)
    vectors = Vectors(DIMENSIONS, sketched_rows_min=100)
    held: dict[int, Matrix] = {}
    found = of = 0
    for size in (1, 150, 2_000, 3_000):
        for row, vector in enumerate(unit(drawn(dice, size))):
            if row not in held or coin.random() < 0.3:
                assert vectors.put(row, packed(vector))
                held[row] = vector
        for row in coin.sample([*held], len(held) // 5):
            vectors.drop(row)
            del held[row]
        for number, asked in enumerate(unit(drawn(dice, 15))):
            among = None if number % 3 else {*coin.sample([*held], len(held) // (1 + number % 2))}
            found += check(vectors, held, asked, among)
            of += min(NEAREST, len(held) if among is None else len(among))
    assert found >= 0.95 * of


def test_of_clusters_few_vectors_are_compared() -> None:
    """That is what sketches are for; of what is scattered, all are."""
    for drawn, is_enough in ((clustered, True), (shifted, True), (scattered, False)):
        dice = np.random.default_rng(SEED)
        vectors = Vectors(DIMENSIONS)
        for row, vector in enumerate(unit(drawn(dice, SKETCHED_ROWS_MIN))):
            vectors.put(row, packed(vector))
        allowed = vectors._is_there[:SKETCHED_ROWS_MIN]
        for asked in unit(drawn(dice, 5)):
            found = vectors._by_sketches(asked, NEAREST, allowed)
            assert (found is not None) == is_enough
            exact = vectors._of_all(asked, NEAREST, allowed)
            assert [row for row, _ in vectors.nearest(asked, NEAREST, None)] == [
                row for row, _ in exact
            ]


def test_a_row_that_is_dropped_leaves_no_bits() -> None:
    """Neither its vector nor its sketch is in memory."""
    vectors = Vectors(DIMENSIONS, sketched_rows_min=1)
    rows = unit(clustered(np.random.default_rng(SEED), 200))
    for row, vector in enumerate(rows):
        vectors.put(row, packed(vector))
    vectors.nearest(rows[0], 1, None)
    assert vectors._sketches is not None
    assert vectors._sketches._bits[:, 7].any()
    vectors.drop(7)
    assert not vectors._sketches._bits[:, 7].any()
    assert not vectors._rows[7].any()
    assert [row for row, _ in vectors.nearest(rows[7], 1, None)] != [7]
