"""What a run of a team leaves behind, with the ghost history that nobody in the run can see.

An agent runs steps 1, 2 ...: it reads, then commits once: its private state, what it publishes, the
messages that it sends and those that it takes. Beside the board, the run notes what every step
could have known, and what its private state then was. A cut (what a checkpoint holds, by whatever
means it was taken) is judged against that.

Source: consistent cuts after Chandy and Lamport, "Distributed snapshots" (1985), and Mattern,
"Virtual time and global states of distributed systems" (1989); the rules C1 to C8 are this
project's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Agent = str
Message = str


@dataclass(frozen=True, slots=True)
class Step:
    """One committed step, as only the ghost knows it.

    `know` is the highest revision that the step could have seen, through whatever it read;
    `state` is the private state that it left, `writes` what it made of public keys (None =
    removed), `sent` and `taken` are messages.
    """

    agent: Agent
    number: int
    epoch: str
    revision: int
    know: int
    state: str
    writes: tuple[tuple[str, str | None], ...] = ()
    sent: tuple[Message, ...] = ()
    taken: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """What somebody holds for the team's state: of each agent its step, its private state and what
    that state could know; of the board its revision, public keys and undelivered messages."""

    epoch: str
    revision: int
    steps: Mapping[Agent, int]
    states: Mapping[Agent, str]
    know: Mapping[Agent, int]
    public: Mapping[str, str]
    inboxes: frozenset[Message]


@dataclass(frozen=True, slots=True)
class Restored:
    """The board was restored to `source`: that `ended` one epoch and began `epoch` at `revision`;
    `cut` is what the board held there."""

    source: Cut
    ended: str
    epoch: str
    revision: int
    cut: Cut


@dataclass(slots=True)
class TeamHistory:
    """Steps in the order of their revisions, the cuts that were taken, and the restores."""

    steps: list[Step] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    restored: list[Restored] = field(default_factory=list)

    def lineage(self, epoch: str, revision: int) -> list[Step]:
        """The steps that count at a revision: the past of the board, without abandoned futures."""
        found: list[Step] = []
        reach, where = revision, epoch
        for restore in reversed(self.restored):
            if restore.epoch == where:
                mine = [s for s in self.steps if s.epoch == where and s.revision <= reach]
                found = mine + found
                where, reach = restore.source.epoch, restore.source.revision
        return [s for s in self.steps if s.epoch == where and s.revision <= reach] + found
