"""What the soak makes of its samples: a wrong slope would hide a leak, or invent one."""

from collections import Counter
from pathlib import Path

import pytest

from bench.soak import Noted, Window, file_bytes, series, slope, table


def test_a_slope_is_that_of_the_line() -> None:
    """Through points that lie on one, and through the middle of points that do not."""
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope([(0, 1), (1, 2), (2, 1)]) == pytest.approx(0)
    assert slope([(3, 1), (3, 9)]) == 0
    assert slope([]) == 0


def test_files_are_recognised_by_their_content(tmp_path: Path) -> None:
    """Boards with their journals, the archive, its blobs, and what Redis appends to."""
    for name in ("boards/a.db", "boards/a.db-wal", "archive.db", "blobs/ab", "appendonlydir/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1234")
    (tmp_path / "token").write_bytes(b"1")
    assert file_bytes(tmp_path) == Counter(boards=8, archive=4, blobs=4, redis=4)


def test_the_table_leaves_the_warm_up_out() -> None:
    """What grows only at the beginning is no slope; what grows to the end is one per hour."""
    windows = [
        Window(60.0 * n, n, n, 1.0, 2.0, 100.0 + min(n, 3), 40 + n, {"boards": 1.0})
        for n in range(1, 13)
    ]
    told = table(windows, Noted(counts=Counter(commit=12_345)))
    assert "| resident memory MiB | 103.00 | 103.00 | +0.00 |" in told
    assert "| descriptors | 44.50 | 51.50 | +60.00 |" in told
    assert "12,345 commit" in told
    assert "failures: none" in told


def test_the_series_shows_every_window() -> None:
    """The warm-up too: what a table of means leaves out must be there to be seen."""
    windows = [Window(60.0 * n, n, n, 1.0, 2.4 + n, 100.0 + n, 40 + n, {}) for n in range(3)]
    assert series(windows).splitlines() == [
        "resident MiB: 100 101 102",
        "descriptors: 40 41 42",
        "commit p99 ms: 2 3 4",
    ]
