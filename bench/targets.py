"""What Blackboard promises of its own speed, as data, and the verdict on a run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.figures import WORST_ROUND_COUNTS, Results, Spread

Outcome = Literal["met", "not met", "not measured"]


@dataclass(frozen=True, slots=True)
class Target:
    """One promise: a figure of a row, or its ratio to a reference row, inside a limit.

    Exactly one of `at_least` and `below` is set. Without `reference` the limit is in the
    figure's own unit; with it the limit is a quotient.
    """

    text: str
    cell: str
    row: str
    figure: str
    reference: str | None = None
    at_least: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.below is None):
            raise ValueError(f"{self.text}: exactly one limit is needed")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what the run says about it; `measured` is None when it was not measured."""

    target: Target
    outcome: Outcome
    measured: Spread | None


def judge(target: Target, results: Results) -> Verdict:
    """Hold the median over all rounds, or the worst round of a fault, against the limit."""
    if target.reference is None:
        measured = results.figure(target.cell, target.row, target.figure)
    else:
        measured = results.ratio(target.cell, target.row, target.reference, target.figure)
    if measured is None:
        return Verdict(target, "not measured", None)
    value = measured.high if target.figure in WORST_ROUND_COUNTS else measured.median
    met = (
        value >= target.at_least
        if target.at_least is not None
        else target.below is not None and value < target.below
    )
    return Verdict(target, "met" if met else "not met", measured)


def _watching(row: str) -> tuple[Target, ...]:
    return (
        Target(
            f"100 watchers of {row}: at least 2x NATS KV's deliveries/s",
            "fan n=100",
            row,
            "deliveries/s",
            reference="nats",
            at_least=2.0,
        ),
        Target(
            f"100 watchers of {row}: p50 below 5 ms", "fan n=100", row, "paced p50 ms", below=5.0
        ),
        Target(
            f"100 watchers of {row}: no change lost in any round",
            "fan n=100",
            row,
            "lost",
            below=1.0,
        ),
    )


def _flat(row: str) -> Target:
    return Target(
        f"a reader of {row} that stopped reading costs the service less than 16 MB",
        "stall",
        row,
        "stalled growth MB",
        below=16.0,
    )


def _ratio(text: str, cell: str, row: str, reference: str, at_least: float) -> Target:
    figure = "increments/s" if cell in ("cas", "increment") else "op/s"
    return Target(text, cell, row, figure, reference=reference, at_least=at_least)


TARGETS: tuple[Target, ...] = (
    _ratio(
        "one durable writer, default configuration: at least 1.3x etcd",
        *("put w=1", "ours-archived", "etcd", 1.3),
    ),
    _ratio(
        "64 durable writers, default configuration: at least 2x etcd",
        *("put w=64", "ours-archived", "etcd", 2.0),
    ),
    _ratio(
        "64 durable writers, Redis with AOF always: at least 2x etcd",
        *("put w=64", "ours-redis", "etcd", 2.0),
    ),
    _ratio(
        "64 writers, embedded engine in-process: at least NATS KV's default",
        *("put w=64", "ours-in-process", "nats", 1.0),
    ),
    _ratio(
        "eight writers on one counter, compare and set: at least etcd",
        *("cas", "ours-embedded", "etcd", 1.0),
    ),
    _ratio(
        "eight writers on one counter, increments over Redis: at least a Redis script",
        *("increment", "ours-redis", "redis-always", 1.0),
    ),
    *_watching("ours-team"),
    *_watching("ours-redis"),
    _flat("ours-embedded"),
    _flat("ours-redis"),
)


def _documents(row: str) -> tuple[Target, ...]:
    cell = "fanout n=50"
    return (
        Target(
            f"50 peers of a document, {row}: at least Hocuspocus' deliveries/s",
            cell,
            row,
            "deliveries/s",
            reference="hocuspocus",
            at_least=1.0,
        ),
        Target(
            f"50 peers, {row}: p50 at most Hocuspocus' and one durable commit",
            cell,
            row,
            "p50 less commit ms",
            reference="hocuspocus",
            below=1.0,
        ),
        Target(f"50 peers, {row}: p50 at most 2 ms", cell, row, "paced p50 ms", below=2.0),
        Target(f"50 peers, {row}: p99 at most 5 ms", cell, row, "paced p99 ms", below=5.0),
        Target(f"50 peers, {row}: no edit lost in any round", cell, row, "lost", below=1.0),
        Target(
            f"a document of 10,000 edits is loaded in less than 20 ms, {row}",
            "load 10,000 edits",
            row,
            "load ms",
            below=20.0,
        ),
        _flat(row),
        Target(
            f"a session of two writers, {row}: at most 1.3x Hocuspocus' time",
            "session of two",
            row,
            "session s",
            reference="hocuspocus",
            below=1.3,
        ),
        Target(
            f"a session of two writers, {row}: at most 1 MB of files after a stop",
            "session of two",
            row,
            "stopped MB",
            below=1.0,
        ),
    )


DOCUMENT_TARGETS: tuple[Target, ...] = (*_documents("ours-embedded"), *_documents("ours-redis"))
"""Those of bench/documents.py."""
