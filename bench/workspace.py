"""Measure snapshots of a directory beside git and restic, in one run on this machine.

    python -m bench.workspace                 100,000 files, of which 10 change, five rounds
    python -m bench.workspace --files 10000   another size
    python -m bench.workspace --quick         does it run at all; figures are worthless

The files have 200 bytes and lie in directories of a hundred. In each round, 10 of them change, and
then each keeps the directory once: ours by `Workspace.snapshot`, on the embedded engine with its
archive as it comes; git by `git stash create`, which keeps what changed as a commit and leaves
everything as it is; restic by `restic backup`, if it is on this machine. Told are the seconds of
the first time (of git: `add` and `commit`), and of each round, whose order is random.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import blackboard
from blackboard.client.board import Board

CHANGED, ROUNDS, FILE_BYTES, IN_A_DIRECTORY = 10, 5, 200, 100
COMMAND_SECONDS_MAX = 170.0
Keep = Callable[[], Awaitable[None]]


def write(top: Path, number: int, dice: random.Random) -> None:
    """File `number`, with a new content."""
    place = top / f"d{number // IN_A_DIRECTORY}"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"f{number}").write_bytes(dice.randbytes(FILE_BYTES))


async def run_command(top: Path, environ: Mapping[str, str], *command: str) -> None:
    """A command in the directory. Errors: CalledProcessError."""
    await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=top,
        env={**os.environ, **environ},
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=COMMAND_SECONDS_MAX,
    )


def ours(board: Board, top: Path) -> tuple[Keep, Keep]:
    """A snapshot, the first time and later."""
    files = board.workspace(top)

    async def keep() -> None:
        await files.snapshot()

    return keep, keep


def git(top: Path, home: Path) -> tuple[Keep, Keep]:
    """A repository beside the directory, so that nobody else sees it."""
    names = ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    environ = {f"GIT_{name}": "bench" for name in names}
    environ |= {"GIT_DIR": str(home / "git"), "GIT_WORK_TREE": str(top)}

    async def first() -> None:
        await run_command(top, environ, "git", "init", "--quiet")
        await run_command(top, environ, "git", "add", "--all")
        await run_command(top, environ, "git", "commit", "--quiet", "--message", "first")

    async def again() -> None:
        await run_command(top, environ, "git", "stash", "create")

    return first, again


def restic(top: Path, home: Path) -> tuple[Keep, Keep]:
    """A repository of its own, and no cache."""
    environ = {"RESTIC_REPOSITORY": str(home / "restic"), "RESTIC_PASSWORD": "bench"}

    async def again() -> None:
        await run_command(top, environ, "restic", "backup", "--quiet", "--no-cache", ".")

    async def first() -> None:
        await run_command(top, environ, "restic", "init", "--quiet")
        await again()

    return first, again


async def seconds(keep: Keep) -> float:
    """How long it takes."""
    began = time.perf_counter()
    await keep()
    return time.perf_counter() - began


async def run(count: int, rounds: int) -> dict[str, list[float]]:
    """By row: the seconds of the first time, and of each round."""
    dice = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        top = home / "files"
        for number in range(count):
            write(top, number, dice)
        async with blackboard.open(home / "data") as client:
            rows = {"ours": ours(client.board("bench"), top)}
            rows |= {
                name: row(top, home)
                for name, row in (("git", git), ("restic", restic))
                if shutil.which(name)
            }
            took = {name: [await seconds(first)] for name, (first, _) in rows.items()}
            for _ in range(rounds):
                for number in dice.sample(range(count), CHANGED):
                    write(top, number, dice)
                for name in dice.sample([*rows], len(rows)):
                    took[name].append(await seconds(rows[name][1]))
    return took


def report(took: Mapping[str, Sequence[float]], count: int) -> None:
    """A table, and which peers are missing."""
    print(f"{count:,} files, {CHANGED} changed before each of {len(took['ours']) - 1} rounds\n")
    print("| row | first s | median s | longest s |\n| --- | ---: | ---: | ---: |")
    for name, (first, *later) in took.items():
        print(f"| {name} | {first:.2f} | {statistics.median(later):.2f} | {max(later):.2f} |")
    for name in ("git", "restic"):
        if name not in took:
            print(f"\n{name} is not on this machine: not measured.")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.workspace")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    count, rounds = (500, 1) if options.quick else (options.files, ROUNDS)
    report(asyncio.run(run(count, rounds)), count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
