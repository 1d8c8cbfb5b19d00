"""Measure what stored values take on the disk, in the default configuration.

    python -m bench.stored             values of 1, 4 and 16 KB, at new keys or at 100 keys
    python -m bench.stored --publish   and put the table into docs/sizing.md

Each cell fills a board of `blackboard.open` with 4 MB or more, closes it, and adds up its files.
The values are the same each time: random bytes, or words.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import string
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import blackboard
from bench.published import publish
from bench.report import Table, markdown
from blackboard import Board

SIZES = (1_024, 4_096, 16_384)
WRITERS = 16
TOTAL_BYTES = 4 * 1024 * 1024
AGAIN_KEYS = 100


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to fill a board."""

    size: int
    is_text: bool
    is_new: bool
    """Whether each value gets a key of its own."""

    @property
    def title(self) -> str:
        """Its row."""
        keys = "a new key each" if self.is_new else f"{AGAIN_KEYS} keys again and again"
        return f"{self.size // 1024} KB, {keys}"


def values_of(cell: Cell, count: int) -> list[str | bytes]:
    """The values of a cell, always the same."""
    rng = random.Random(1)
    if not cell.is_text:
        return [rng.randbytes(cell.size) for _ in range(count)]
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(3000)]
    return [" ".join(rng.choices(words, k=cell.size // 3))[: cell.size] for _ in range(count)]


async def fill(board: Board, cell: Cell, values: list[str | bytes]) -> None:
    """Put all values, some at a time."""

    async def write(first: int) -> None:
        for number in range(first, len(values), WRITERS):
            key = number if cell.is_new else number % AGAIN_KEYS
            await board.put(f"public/k{key:05d}", values[number])

    await asyncio.gather(*map(write, range(WRITERS)))


def sizes_in(folder: Path) -> dict[Path, int]:
    """The size of each file, by its path in the folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.stat().st_size for path in files}


async def measured(cell: Cell) -> tuple[float, float, float]:
    """The bytes of the boards' files, of the archive, and of all, for each byte of a value."""
    count = max(TOTAL_BYTES // cell.size, 4 * AGAIN_KEYS)
    with tempfile.TemporaryDirectory() as folder:
        async with blackboard.open(folder) as client:
            await fill(client.board("bench"), cell, values_of(cell, count))
        files = sizes_in(Path(folder))
    written = count * cell.size
    boards = sum(size for path, size in files.items() if path.parts[0] == "boards")
    archive = sum(size for path, size in files.items() if path.parts[0] in ("archive.db", "blobs"))
    return boards / written, archive / written, sum(files.values()) / written


async def run() -> Table:
    """Measure every cell."""
    rows = []
    for size in SIZES:
        for is_new in (True, False):
            shown = []
            for is_text in (True, False):
                cell = Cell(size, is_text, is_new)
                boards, archive, total = await measured(cell)
                shown.append(f"{total:.2f} ({boards:.2f} + {archive:.2f})")
            rows.append([cell.title, *shown])
    return Table("bytes", ["values", "text", "random bytes"], rows)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and publish if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--publish", action="store_true", help="renew docs/sizing.md")
    given = parser.parse_args(arguments)
    table = asyncio.run(run())
    print(markdown(table))
    if given.publish:
        publish(
            f"`python -m bench.stored`: {TOTAL_BYTES // 1024**2} MB of values or more, default"
            " configuration, after a stop; all files, in brackets boards + archive, as multiples"
            " of the values",
            {"bytes": table},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
