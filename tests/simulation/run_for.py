"""Simulated runs, one seed after the other, for so long: `python -m tests.simulation.run_for 60`.

BLACKBOARD_TEST_SEED is the first seed. A run that breaks a promise is told with the command that
shows it again.
"""

import os
import random
import sys
import time

from tests.proof import Layer, say
from tests.simulation.plan import CALLS, DEEDS, NETWORK, PAST, draw
from tests.simulation.world import simulate

FAULTS = {*NETWORK, *DEEDS, *CALLS, *PAST}


def main(seconds: str) -> int:
    """Simulate until the time is over; 1 when a promise was broken."""
    seed = int(os.environ.get("BLACKBOARD_TEST_SEED") or random.SystemRandom().randrange(2**31))
    deadline_s = time.monotonic() + float(seconds)
    with Layer("simulation") as layer:
        while time.monotonic() < deadline_s:
            verdict = simulate(draw(seed))
            layer.seeds.append(seed)
            layer.operations += verdict.commits
            counts = verdict.trace.counts
            layer.faults.update({kind: counts[kind] for kind in FAULTS & counts.keys()})
            if verdict.findings:
                layer.violations += 1
                say(f"{verdict}\nagain: python -m tests.simulation.run {seed}")
            seed += 1
    say(f"{len(layer.seeds)} runs, {layer.violations} broken")
    return min(layer.violations, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
