"""Replay seeds: `python -m tests.simulation.run SEED [--engine redis] [--count N] [--trace FILE]`."""

import argparse
import sys
import time
from pathlib import Path

from tests.simulation.plan import ENGINES
from tests.simulation.world import simulate


def main() -> int:
    """Run the seeds that the command line names; the number of those that break a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--trace", type=Path, help="where to write everything that happened")
    given = parser.parse_args()
    broken, began_s, commits = 0, time.process_time(), 0
    for seed in range(given.seed, given.seed + given.count):
        verdict = simulate(seed, given.engine)
        commits += verdict.commits
        if given.trace is not None:
            given.trace.write_text("\n".join(verdict.trace.lines) + "\n")
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
