"""Run seeds again: `python -m tests.simulation.run SEED [--count N] [--trace FILE] ...`."""

import argparse
import sys
import time
from pathlib import Path

from tests.simulation.plan import ENGINES, draw
from tests.simulation.world import simulate


def main() -> int:
    """Run the seeds that the command line names; the number of those that break a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--past", action=argparse.BooleanOptionalAction, help="with an archive")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--trace", type=Path, help="a file to add everything that happened to")
    given = parser.parse_args()
    broken, began_s, commits = 0, time.process_time(), 0
    for seed in range(given.seed, given.seed + given.count):
        verdict = simulate(draw(seed, given.engine, given.past))
        commits += verdict.commits
        if given.trace is not None:
            with given.trace.open("a") as file:
                file.write("".join(f"{line}\n" for line in verdict.trace.lines))
        if verdict.findings:
            broken += 1
            sys.stdout.write(f"{verdict}\n")
            sys.stdout.flush()
    spent_s = time.process_time() - began_s
    sys.stdout.write(f"{given.count} seeds, {commits} commits, {broken} broken, {spent_s:.1f} s\n")
    if given.count == 1:
        sys.stdout.write(f"{dict(sorted(verdict.trace.counts.items()))} {verdict.seconds:.1f} s\n")
        sys.stdout.write(f"{verdict.trace.digest()}\n")
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())
