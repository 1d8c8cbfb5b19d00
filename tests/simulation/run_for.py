"""Simulate one seed after the other for a while: `python -m tests.simulation.run_for SECONDS`.

The first seed comes from BLACKBOARD_TEST_SEED, or from chance. Each finding comes with the command
that replays its seed.
"""

import os
import random
import sys
import time
from itertools import count

from tests.proof import Layer
from tests.simulation.plan import ACTS, CALLS, DEEDS, NETWORK, PAST, draw
from tests.simulation.world import simulate

FAULTS = {*NETWORK, *CALLS, *DEEDS, *PAST, *ACTS, "power loss"}


def main() -> int:
    """Run until the time is over; 1 if anything was found."""
    until_s = time.monotonic() + float(sys.argv[1])
    given = os.environ.get("BLACKBOARD_TEST_SEED")
    first = int(given) if given else random.SystemRandom().randrange(2**32)
    with Layer("simulation") as layer:
        for seed in count(first):
            verdict = simulate(draw(seed))
            layer.seeds.append(seed)
            layer.operations += verdict.commits
            layer.faults.update({k: n for k, n in verdict.trace.counts.items() if k in FAULTS})
            if verdict.findings:
                layer.violations += 1
                sys.stdout.write(f"{verdict}\n")
                sys.stdout.flush()
            if time.monotonic() >= until_s:
                break
    sys.stdout.write(f"{len(layer.seeds)} seeds from {first} on, {layer.operations} revisions\n")
    return min(layer.violations, 1)


if __name__ == "__main__":
    sys.exit(main())
