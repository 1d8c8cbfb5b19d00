"""What was tried to break the promises, and what it found: `make proof`.

Every layer of the tests runs for its share of BLACKBOARD_PROOF_MINUTES (10), notes what it did as
a file of JSON in BLACKBOARD_PROOF_DIR (a new directory unless it is said), and one table is printed
of what is there. A layer that noted nothing is reported as not run.

A file is an object with these keys: `layer`, `operations` (what was asked of a board and checked),
`faults` (how often each kind was inflicted), `seeds`, `violations` and `seconds`.
"""

import contextlib
import json
import os
import platform
import random
import shlex
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers import server_binaries
from tests.source_tree import ROOT

DIRECTORY = "BLACKBOARD_PROOF_DIR"
MINUTES = "BLACKBOARD_PROOF_MINUTES"
OVERTIME = 3
"""Times its share after which a layer is ended: the machine may be busy."""
START_S = 300
"""What a layer may take beside its share: servers start, and the copy of the mutants."""


@dataclass(slots=True)
class Layer:
    """What one run of a layer did: `with Layer("power") as layer: layer.faults["cut"] += 1`.

    Written when the block ends, if somebody asked for it; an error that leaves it is a violation.
    """

    layer: str
    operations: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    seeds: list[int] = field(default_factory=list)
    violations: int = 0
    seconds: float = 0.0

    def __enter__(self) -> Self:
        self.seconds = -time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = round(self.seconds + time.monotonic(), 1)
        self.violations += isinstance(error, Exception)
        if os.environ.get(DIRECTORY):
            directory = Path(os.environ[DIRECTORY])
            directory.mkdir(parents=True, exist_ok=True)
            told = {name: getattr(self, name) for name in self.__slots__}
            name = f"{self.layer}-{os.getpid()}-{time.time_ns()}.json"
            (directory / name).write_text(json.dumps(told))


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run a layer: `share` of the time; `command` and `variables` may hold `{seconds}`,
    `{cuts}`, of which there is one for each second, and `{seed}`, another number in each run."""

    layer: str
    about: str
    share: float
    command: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, seconds: float, directory: Path) -> str:
        """Run it; what went wrong, if anything did."""
        amounts = {
            "seconds": int(seconds),
            "cuts": int(max(60, seconds)),
            "seed": random.SystemRandom().randrange(2**31),
        }
        variables = {name: text.format(**amounts) for name, text in self.variables.items()}
        words = [sys.executable, *shlex.split(self.command.format(**amounts))]
        environment = {**os.environ, **variables, DIRECTORY: str(directory)}
        log = directory / f"{self.layer}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, cwd=ROOT, env=environment, stdout=output, stderr=output
            )
            try:
                status = process.wait(seconds * OVERTIME + START_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                return f"did not end; see {log}"
        return f"exit {status}; see {log}" if status else ""


PLANS = (
    Plan(
        "model",
        "random commits to both engines and to the model, compared in every field",
        0.2,
        "-m tests.conformance.run_walks {seconds}",
    ),
    Plan(
        "simulation",
        "services and agents on a simulated clock and network, one seed for all",
        0.25,
        "-m tests.simulation.run_for {seconds}",
    ),
    Plan(
        "chaos",
        "real processes, killed, frozen, cut off; histories checked against every guarantee",
        0.25,
        "-m tests.guarantees.run_chaos",
        {"BLACKBOARD_CHAOS_SECONDS": "{seconds}"},
    ),
    Plan(
        "power",
        "power cuts, failed syncs, torn writes, zeros and flipped bits, in files of all engines",
        0.1,
        "-m pytest -q -p no:cacheprovider tests/faults/test_power_sqlite.py"
        " tests/faults/test_power_archive.py tests/faults/test_power_redis.py"
        " tests/faults/test_failed_sync.py tests/faults/test_failed_sync_archive.py",
        # Tests under pytest use the same seeds each time unless others are given.
        {"BLACKBOARD_TEST_CUTS": "{cuts}", "BLACKBOARD_TEST_SEED": "{seed}"},
    ),
    Plan("mutants", "faults seeded into a copy of the code", 0.15, "-m tests.mutants"),
    Plan(
        "hostile",
        "input that no client of ours sends: garbage, bombs, floods, forged rights",
        0.05,
        "-m tests.hostile {seconds}",
    ),
)


def collected(directory: Path) -> dict[str, list[Layer]]:
    """What the layers noted, by their names."""
    found: dict[str, list[Layer]] = {}
    for path in sorted(directory.glob("*.json")):
        told = json.loads(path.read_text())
        layer = Layer(
            told["layer"],
            told["operations"],
            Counter(told["faults"]),
            told["seeds"],
            told["violations"],
            told["seconds"],
        )
        found.setdefault(layer.layer, []).append(layer)
    return found


def table(found: Mapping[str, Sequence[Layer]], troubles: Mapping[str, str]) -> str:
    """A Markdown table of it, for docs/proof.md."""
    lines = [
        "| layer | what is done | operations | faults | seeds | minutes | violations |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for plan in PLANS:
        runs = found.get(plan.layer, ())
        if not runs:
            told = troubles.get(plan.layer) or "noted nothing"
            lines.append(f"| {plan.layer} | {plan.about} | **did not run** ({told}) | | | | |")
            continue
        seeds = {seed for run in runs for seed in run.seeds}
        cells = [
            f"{sum(run.operations for run in runs):,}",
            _counted(sum((run.faults for run in runs), Counter())),
            f"{len(seeds):,}",
            f"{sum(run.seconds for run in runs) / 60:.1f}",
            f"{sum(run.violations for run in runs)}",
        ]
        lines.append(f"| {plan.layer} | {plan.about} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _counted(faults: Counter[str]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(faults.items())) or "none"


def versions() -> str:
    """What the table belongs to."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    servers = ", ".join(binary.name for binary in server_binaries())
    date = time.strftime("%Y-%m-%d")
    python = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return f"{date}, commit {commit or 'unknown'}, {python}, {servers or 'no server'}"


def run_all(plans: Iterable[Plan], minutes: float, directory: Path) -> dict[str, str]:
    """Run the layers one after the other; what went wrong with each."""
    troubles = {}
    for plan in plans:
        say(f"{plan.layer}: {plan.about} ...")
        if trouble := plan.run(minutes * 60 * plan.share, directory):
            say(f"{plan.layer}: {trouble}")
            troubles[plan.layer] = trouble
    return troubles


def main() -> int:
    """Run the layers that the command line names, by default all; 1 when something was found."""
    named = sys.argv[1:]
    plans = [plan for plan in PLANS if not named or plan.layer in named]
    minutes = float(os.environ.get(MINUTES) or 10)
    directory = Path(os.environ.get(DIRECTORY) or tempfile.mkdtemp(prefix="blackboard-proof-"))
    directory.mkdir(parents=True, exist_ok=True)
    troubles = run_all(plans, minutes, directory)
    found = collected(directory)
    say(f"\n{table(found, troubles)}\n\n{versions()}; the files are in {directory}")
    broken = any(layer.violations for runs in found.values() for layer in runs)
    return 1 if broken or troubles else 0


def say(text: str) -> None:
    """A line for people, out at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
