"""What a run leaves behind: requests, answers, and what watchers received.

Times are of one monotonic clock. The log of the board, read after the run, is the witness: each
commit's place in it decides what everything else must have looked like.
"""

from dataclasses import dataclass, field

Value = object


@dataclass(frozen=True, slots=True)
class Write:
    """One commit that somebody asked for: it puts `value`, which no other commit does, to `keys`.

    `outcome` is "done" (as `revision`), "refused" (nothing happened) or "unknown". `expected` is
    the revision that the first key was expected to have, None without a condition.
    """

    value: str
    keys: tuple[str, ...]
    started: float
    ended: float
    outcome: str
    revision: int = 0
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A read that showed `values` (absent keys are left out of it) of `keys` at `revision`."""

    keys: tuple[str, ...]
    started: float
    ended: float
    revision: int
    values: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One revision with its changes, None for a removed key; an epoch's first entry has none.

    `from_revision` is set on an entry that begins an epoch: the last one before it that counts.
    """

    revision: int
    changes: tuple[tuple[str, Value | None], ...]
    from_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A watcher learned that it has everything up to `revision`."""

    revision: int


@dataclass(slots=True)
class Watched:
    """One watch of the keys below `prefix`, from `after` on, in the order of being told.

    A watch that was begun again from the position of another one is a `Watched` of its own.
    """

    prefix: str
    after: int
    told: list[Entry | Mark] = field(default_factory=list)

    @property
    def entries(self) -> list[Entry]:
        """What it received, without the marks."""
        return [told for told in self.told if isinstance(told, Entry)]

    @property
    def position(self) -> int:
        """How far it is."""
        return self.told[-1].revision if self.told else self.after

    def sees(self, key: str) -> bool:
        """Whether `key` is one of its keys."""
        return key.startswith(self.prefix)


@dataclass(slots=True)
class History:
    """Everything that was recorded of one run on one board."""

    log: list[Entry] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    watches: list[list[Watched]] = field(default_factory=list)
    """For each watcher its watches, each begun where the one before had come to."""
