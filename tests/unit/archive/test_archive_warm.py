"""What an append leaves in memory: bounded, and true or not used."""

from types import SimpleNamespace
from typing import Any

import pytest

from blackboard.archive.append import Warm, Warmth, left_out
from blackboard.archive.fold import Known
from blackboard.core.checkpoints import Mark
from blackboard.core.commit import Epoch
from blackboard.limits import ARCHIVE_WARM_BOARDS, ARCHIVE_WARM_KEYS, ARCHIVE_WARM_NAMESPACES

CHAIN = bytes(32)


def warm(board: int, keys: int = 0, namespaces: int = 0) -> Warm:
    """A board at revision 5."""
    known = {f"public/k{number}": Known(number, 1, 0, None) for number in range(keys)}
    totals = {f"private/a{number}": number for number in range(namespaces)}
    return Warm(board, Mark(0, 5, Epoch(1, "e"), CHAIN), known, totals)


def row(board: int, through: int = 5, chain: bytes = CHAIN) -> Any:
    """As the database has it."""
    return SimpleNamespace(id=board, through=through, chain=chain)


def test_it_is_given_away_once() -> None:
    """Its holder changes it; if that fails, it must not be found again."""
    warmth, one = Warmth(), warm(1)
    warmth.keep(one)
    assert warmth.take(row(1)) is one
    assert warmth.take(row(1)) is None


@pytest.mark.parametrize("other", [row(2), row(1, through=6), row(1, chain=b"x" * 32)])
def test_it_counts_only_where_nothing_changed(other: Any) -> None:
    """Another board, one that is further, one with another history."""
    warmth = Warmth()
    warmth.keep(warm(1))
    assert warmth.take(other) is None


def test_it_is_bounded() -> None:
    """What changed longest ago is forgotten: boards, keys and namespaces."""
    warmth = Warmth()
    for board in range(ARCHIVE_WARM_BOARDS + 1):
        warmth.keep(warm(board))
    assert warmth.take(row(0)) is None
    assert warmth.take(row(1)) is not None
    for above in (0, 1):
        warmth.keep(warm(9, ARCHIVE_WARM_KEYS + above, ARCHIVE_WARM_NAMESPACES + above))
        found = warmth.take(row(9))
        assert found is not None
        assert (len(found.known), len(found.totals)) == (ARCHIVE_WARM_KEYS, ARCHIVE_WARM_NAMESPACES)
        assert left_out({"public/k0": None}, found.known) == ["public/k0"] * above
