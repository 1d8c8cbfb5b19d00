"""A history in which a promotion lost a suffix, split into what counts and what was rolled back.

A replica that takes over lacks what it had not got. Revisions of it were answered, read and told;
nothing of them is in the log that is left. What is then demanded is that nobody is left in the
belief that they count (`announced`); and what counts is held to every other guarantee
(`surviving`). Only where a promotion is known to have happened may anything be lost (`explained`).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import takewhile

from tests.guarantees.history import History, Watched, Write

TOLD = "told"
"""The outcome of a write that was refused because its writer had seen what was rolled back."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Revisions after `kept` and before `epoch`, which begins a new one, do not count."""

    kept: int
    epoch: int

    def has(self, revision: int) -> bool:
        """Whether `revision` was rolled back."""
        return self.kept < revision < self.epoch


def losses(history: History) -> list[Loss]:
    """One for each epoch of the log; most of them have lost nothing."""
    return [
        Loss(entry.from_revision, entry.revision)
        for entry in history.log
        if entry.from_revision is not None
    ]


def explained(history: History, kept: Collection[int]) -> list[str]:
    """What was rolled back is what a promotion lost: `kept` are the revisions left by those."""
    found = []
    for loss in losses(history):
        lost = [w for w in history.writes if w.outcome == "done" and loss.has(w.revision)]
        if lost and loss.kept not in kept:
            names = [write.value for write in lost]
            found.append(f"{names} are gone, and the epoch at {loss.epoch} was no promotion")
    return found


def announced(history: History) -> list[str]:
    """A client that knew a rolled-back revision learns of it before it gets anything later."""
    found = []
    for loss in losses(history):
        found += _untold_writers(history.writes, loss)
        for watches in history.watches:
            found += _untold_watcher(watches, loss)
    return found


def _untold_writers(writes: list[Write], loss: Loss) -> list[str]:
    found, misled = [], dict[str, Write]()
    for write in writes:
        name = write.value.partition("-")[0]
        if write.outcome == "done" and loss.has(write.revision):
            misled[name] = write
        elif write.outcome == TOLD:
            misled.pop(name, None)
        elif write.outcome == "done" and write.revision > loss.epoch and name in misled:
            lost = misled.pop(name)
            found.append(
                f"{name} went on with {write.value}, and did not learn that {lost.value} was lost"
            )
    return found


def _untold_watcher(watches: list[Watched], loss: Loss) -> list[str]:
    """Watches that continue each other do so without having been told anything else."""
    told = [one for watched in watches for one in watched.told]
    lost = [one.revision for one in told if loss.has(one.revision)]
    later = [one.revision for one in told if one.revision >= loss.epoch]
    if not lost or not later:
        return []
    return [f"a watcher that saw {lost[-1]} received {later[0]} as if nothing had happened"]


def surviving(history: History) -> History:
    """The history without what was rolled back: it must keep every guarantee."""
    gone = losses(history)

    def counts(revision: int) -> bool:
        return not any(loss.has(revision) for loss in gone)

    return History(
        history.log,
        [_as_refused(w) for w in history.writes if w.outcome != "done" or counts(w.revision)],
        [read for read in history.reads if counts(read.revision)],
        [_before_the_first(watches, gone) for watches in history.watches],
    )


def _as_refused(write: Write) -> Write:
    return replace(write, outcome="refused") if write.outcome == TOLD else write


def _before_the_first(watches: list[Watched], gone: list[Loss]) -> list[Watched]:
    """What watches that continue each other were told before anything that was rolled back."""

    def is_gone(revision: int) -> bool:
        return any(loss.has(revision) for loss in gone)

    kept: list[Watched] = []
    for watched in watches:
        if is_gone(watched.after):
            break
        told = list(takewhile(lambda one: not is_gone(one.revision), watched.told))
        kept.append(Watched(watched.prefix, watched.after, told))
        if len(told) < len(watched.told):
            break
    return kept
