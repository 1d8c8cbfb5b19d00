"""Recorded runs of teams that nobody ever ran: `python -m tests.traces FILE` writes team.jsonl."""

import json
import random
import sys
from pathlib import Path
from typing import Any

TEAM = Path(__file__).parent / "acceptance" / "team.jsonl"
SEED = 20261121
AGENTS = ("planner", "surveyor", "Ledger.Clerk_2")
STEPS = 14


def lines(seed: int = SEED, runs: int = 3) -> list[str]:
    """A trace in which every kind of write occurs in both namespaces."""
    rng = random.Random(seed)
    found: list[dict[str, Any]] = []
    for run in range(1, runs + 1):
        expect = {"mistake_step": rng.randrange(STEPS)} if run > 1 else {}
        found.append({"t": "run", "id": f"made/{run}", "agents": AGENTS, "expect": expect})
        found += [_step(rng, number) for number in range(STEPS)]
    return [json.dumps(line, sort_keys=True) for line in found]


def _step(rng: random.Random, number: int) -> dict[str, Any]:
    agent = rng.choice(AGENTS)
    writes: list[Any] = [["pub", "transcript", "append", f"{agent} says {rng.getrandbits(32):08x}"]]
    reads: list[Any] = [["pub", "transcript", rng.randrange(number + 1)]]
    for space in ("pub", "prv"):
        key = rng.choice(("plan", "budget", "notes/today"))
        kind = rng.choice(("put", "rmw", "del"))
        if kind == "rmw":
            reads.append([space, key, None])
        value = None if kind == "del" else {"by": agent, "usd_bn": rng.randrange(5000)}
        writes.append([space, key, kind, value])
    if rng.random() < 0.5:
        writes.append(["prv", "diary", "append", ["thought", number, rng.random()]])
    return {"t": "step", "i": number, "a": agent, "r": reads, "w": writes}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(lines()) + "\n")
