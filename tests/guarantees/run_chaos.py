"""Chaos for as long as you like: `make chaos`, or `python -m tests.guarantees.run_chaos`.

Rounds follow each other, each on a new stage with a seed of its own, the engines in turn. Ends with
a table of what was tried; exits with 1 if a promise was broken. Environment variables:

- BLACKBOARD_CHAOS_SECONDS: how long in all, without building the stages; 60 unless it is said
- BLACKBOARD_CHAOS_ENGINE: "redis", "embedded" or "cluster" instead of all three
- BLACKBOARD_CHAOS_FAULTS: only these kinds of faults, with commas, such as "restore,kill engine"
- BLACKBOARD_TEST_SEED: the seed of the first round; each one after it has the next number
- BLACKBOARD_PROOF_DIR: a directory for the figures as JSON, a file for each run
"""

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from itertools import count
from pathlib import Path

import anyio

from tests.guarantees.chaos import CHECKERS, Round
from tests.guarantees.stage import ENGINES, Scene
from tests.servers import server_binaries

SECONDS = float(os.environ.get("BLACKBOARD_CHAOS_SECONDS") or 60)
ROUND_SECONDS = 20.0
"""What one history holds: a long run is many rounds, each of them judged and forgotten."""
ENGINE = os.environ.get("BLACKBOARD_CHAOS_ENGINE")
KINDS = tuple(filter(None, os.environ.get("BLACKBOARD_CHAOS_FAULTS", "").split(",")))
SEED = int(os.environ.get("BLACKBOARD_TEST_SEED") or random.SystemRandom().randrange(2**31))
PROOF = os.environ.get("BLACKBOARD_PROOF_DIR")
SHOWN_MAX = 5
"""Findings that are printed for each promise; the file has all of them."""


def main() -> int:
    """Play rounds until the time is over; the status to exit with."""
    say(f"chaos for {SECONDS:.0f} s, BLACKBOARD_TEST_SEED={SEED}")
    engines = [ENGINE] if ENGINE else list(ENGINES)
    rounds: list[Round] = []
    left_s = SECONDS
    for number in count():
        if left_s <= 0:
            break
        played = play(engines[number % len(engines)], SEED + number, min(left_s, ROUND_SECONDS))
        rounds.append(played)
        left_s -= ROUND_SECONDS
        played.forget()
    say(table(rounds))
    write_proof(rounds)
    return 1 if any(played.violations for played in rounds) else 0


def play(engine: str, seed: int, seconds: float) -> Round:
    """One round; what it left behind is kept only if a promise was broken."""
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{engine}-{seed}-"))
    scene = Scene(engine, server_binaries()[0].path, directory, KINDS)
    played = Round(scene, seed, seconds)
    try:
        anyio.run(played.play, progress)
    except BaseException:
        say(f"\nfailed; its files are in {directory}\n{replay(played)}")
        raise
    progress("")
    if played.violations:
        (directory / "history.json").write_text(json.dumps(asdict(played), default=str, indent=1))
        say(broken(played, directory))
    else:
        shutil.rmtree(directory)
    return played


def replay(played: Round) -> str:
    """The command that does the same to a stage again."""
    return (
        f"again: make chaos BLACKBOARD_TEST_SEED={played.seed}"
        f" BLACKBOARD_CHAOS_ENGINE={played.scene.engine}"
        f" BLACKBOARD_CHAOS_SECONDS={played.seconds:.0f}"
        + (f' BLACKBOARD_CHAOS_FAULTS="{",".join(KINDS)}"' if KINDS else "")
    )


def broken(played: Round, directory: Path) -> str:
    """What was found, for people."""
    lines = [f"BROKEN, {played.scene.engine}, seed {played.seed}"]
    for name, found in played.violations.items():
        lines += [f"  {name}: {sentence}" for sentence in found[:SHOWN_MAX]]
        lines += [f"  {name}: and {len(found) - SHOWN_MAX} more"] * (len(found) > SHOWN_MAX)
    return "\n".join([*lines, f"its history and files are in {directory}", replay(played)])


def table(rounds: list[Round]) -> str:
    """What was tried, and what was found."""
    rows = [("engine", "seed", "seconds", "commits", "faults", "rolled back", "broken")]
    rows += [
        (
            played.scene.engine,
            str(played.seed),
            f"{played.seconds:.0f}",
            f"{played.commits:,}",
            str(sum(played.faults.values())),
            str(played.lost),
            str(sum(map(len, played.violations.values()))),
        )
        for played in rounds
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    faults = ", ".join(f"{kind} {n}" for kind, n in sorted(by_kind(rounds).items()))
    in_all = sum(played.commits for played in rounds)
    return "\n".join(
        [
            *lines,
            f"{in_all:,} acknowledged commits, {by_kind(rounds).total()} faults: {faults}",
            f"held to: {', '.join(CHECKERS)}",
        ]
    )


def by_kind(rounds: list[Round]) -> Counter[str]:
    """How often each fault was inflicted."""
    return sum((Counter(played.faults) for played in rounds), Counter())


def write_proof(rounds: list[Round]) -> None:
    """The figures as a file, where somebody asked for them."""
    if PROOF is None:
        return
    figures = {
        "layer": "chaos",
        "operations": sum(played.commits for played in rounds),
        "faults": dict(by_kind(rounds)),
        "seeds": [played.seed for played in rounds],
        "violations": sum(len(f) for played in rounds for f in played.violations.values()),
        "seconds": sum(played.seconds for played in rounds),
        "rolled_back": sum(played.lost for played in rounds),
        "checkers": list(CHECKERS),
    }
    directory = Path(PROOF)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"chaos-{SEED}-{time.time_ns()}.json").write_text(json.dumps(figures, indent=1))


def say(text: str) -> None:
    """A line for people, out at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def progress(text: str) -> None:
    """A line that the next one overwrites; only where somebody looks."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\033[K{text}")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
