"""What a run does, drawn from its seed before it begins: who takes part, and what goes wrong.

Each run has a few kinds of faults, not all: two that hide each other would otherwise always meet
(swarm testing: Groce and others, "Swarm Testing", ISSTA 2012).
"""

import random
from dataclasses import dataclass
from typing import Final

ENGINES: Final = ("sqlite", "redis")
NETWORK: Final = ("lost request", "lost reply", "straggler", "delay", "stall")
"""What befalls one message between a client and a service. A straggler arrives although the
connection that it was sent on broke, and so does a duplicate of it on the next one."""
CALLS: Final = ("lost call", "lost answer", "late call")
"""What befalls one call of a service to Redis."""
DEEDS: Final = ("kill", "restart", "failover", "jump", "trim", "cancel")
"""What happens now and then: the end of a service's process, or of the engine's; a replica that
takes over without the newest commits, or a power loss; a clock that is set; a log that is cut; a
request that its sender gives up."""
SYNCS: Final = ("failed sync",)
"""What befalls a disk: a sync fails, and what it should have written is dropped, at once or never,
or with the power; the process is killed after a while. Only where commits are synced."""
_SYNCS_PART: Final = 0.4
_ENGINE_PARTS: Final = (8, 2)
_PAST_PART: Final = 0.06
"""Runs with an archive take six times as long as others."""
PAST: Final = ("checkpoint", "restore", "branch")
ACTS: Final = ("freeze", "redact", "remove")
"""What an operator does to a board. The last two are about its archive, too."""
_ACTS_PART: Final = 0.4
_FREEZE_PART: Final = 0.1
"""Of the runs without an archive."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `faults` are the kinds that may happen in it; `steps` bounds what each actor does.

    `level` is of the embedded engine. `has_past` says that there is an archive, and a team that
    is taken back in time. `acts` are the kinds of acts of its operator.
    """

    seed: int
    engine: str
    services: int
    level: str
    faults: frozenset[str]
    writers: int
    watchers: int
    lockers: int
    agents: int
    steps: int
    deeds: int
    rate: float
    slow_reader: bool
    has_past: bool
    acts: frozenset[str]

    @property
    def command(self) -> str:
        """What runs this plan again."""
        past = "--past" if self.has_past else "--no-past"
        return f".venv/bin/python -m tests.simulation.run {self.seed} --engine {self.engine} {past}"


def draw(seed: int, engine: str | None = None, has_past: bool | None = None) -> Plan:
    """The plan of a seed; with `engine`, on that one; with `has_past`, with an archive or not."""
    dice = random.Random(f"plan {seed}")
    # Calls of a script in Python's Redis cost ten times those of the embedded engine.
    chosen = dice.choices(ENGINES, _ENGINE_PARTS)[0]
    engine = engine or chosen
    possible = [*NETWORK, *DEEDS, *(CALLS if engine == "redis" else ())]
    faults = frozenset(fault for fault in possible if dice.random() < 0.4)
    with_past = dice.random() < _PAST_PART
    has_past = with_past if has_past is None else has_past
    if has_past:
        # A checkpoint of what an engine lost is judged by hand-made histories, not here.
        faults = (faults - {"failover"}) | set(PAST)
    services = dice.randint(1, 3) if engine == "redis" else 1
    level = dice.choice(("memory", "disk"))
    if engine == "sqlite" and level == "disk" and not has_past:
        # From dice of its own: other seeds stay what they were.
        faults |= set(SYNCS) if random.Random(f"syncs {seed}").random() < _SYNCS_PART else set()
    return Plan(
        seed,
        engine,
        services=services,
        level=level,
        faults=faults,
        writers=dice.randint(1, 3),
        watchers=dice.randint(1, 2),
        lockers=_lockers(seed, engine) if has_past else dice.randint(0, 2),
        agents=dice.randint(2, 3) if has_past else 0,
        steps=dice.randint(3, 8),
        deeds=dice.randint(3, 6) if has_past else dice.randint(1, 4),
        rate=dice.choice((0.01, 0.04, 0.1)),
        slow_reader=dice.random() < 0.4,
        has_past=has_past,
        acts=_acts(seed, has_past=has_past),
    )


def _acts(seed: int, *, has_past: bool) -> frozenset[str]:
    """What an operator does in a run: from dice of its own, other seeds stay what they were."""
    dice = random.Random(f"operator's acts {seed}")
    if not has_past:
        return frozenset({"freeze"} if dice.random() < _FREEZE_PART else ())
    return frozenset(act for act in ACTS if dice.random() < _ACTS_PART)


def _lockers(seed: int, engine: str) -> int:
    """How many hold leases while a team is taken back: a restore ends every lease.

    None over Redis, where a run with an archive is the slowest there is.
    """
    return random.Random(f"leases {seed}").randint(0, 2) if engine == "sqlite" else 0
