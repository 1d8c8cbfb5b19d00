"""The commits that one transaction writes: what was asked, what was decided, whom to tell."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from blackboard import types as limits
from blackboard.core.commit import Committed, Epoch, Head, LogEntry
from blackboard.core.model import Outcome, decide, log_entry
from blackboard.core.state import State, evolve
from blackboard.engines.sqlite.file import WriteError
from blackboard.engines.sqlite.rows import Touched
from blackboard.errors import OutcomeUnknown, Unavailable
from blackboard.types import Milliseconds
from blackboard.wire.codec import Prepared, encode_results

Waiting = tuple["asyncio.Future[list[Outcome]]", Sequence[Prepared], list[Outcome]]
"""A call of `commit`: whom to tell, what was asked, what was decided."""


@dataclass(slots=True)
class Group:
    """What is written as one transaction."""

    calls: list[Waiting] = field(default_factory=list)
    entries: list[LogEntry] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    touched: Touched = field(default_factory=Touched)
    commits: int = 0
    bytes: int = 0
    head: Head | None = None
    log_remains: bool = False

    @property
    def is_full(self) -> bool:
        """Whether what comes next has to wait for another transaction."""
        return self.commits >= limits.BATCH_COMMITS_MAX or self.bytes >= limits.BATCH_BYTES_MAX

    @property
    def changes_nothing(self) -> bool:
        """Whether it needs no transaction: what it holds was refused, or done before."""
        return not self.entries and self.touched.log_below is None

    def apply(self, state: State, batch: Sequence[Prepared], now_ms: Milliseconds) -> list[Outcome]:
        """Decide a batch, and change `state` by what was accepted.

        A rule that raises half way leaves a state that is no board's.
        """
        outcomes: list[Outcome] = []
        for prepared in batch:
            outcome = decide(state, prepared.commit, now_ms)
            outcomes.append(outcome)
            if isinstance(outcome, Committed) and not outcome.duplicate:
                entry = log_entry(prepared.commit, outcome, prepared.digest)
                self.touched.note(state, entry, prepared, encode_results(outcome.results))
                evolve(state, entry)
                self.entries.append(entry)
                self.sizes.append(prepared.size)
        self.commits += len(batch)
        self.bytes = sum(self.sizes)
        return outcomes

    @property
    def epochs(self) -> list[Epoch]:
        """Those that its commits begin."""
        return [entry.epoch for entry in self.entries if entry.epoch is not None]

    def tell(self) -> None:
        """The file holds it: tell what was decided."""
        for told, _, outcomes in self.calls:
            if not told.done():
                told.set_result(outcomes)

    def tell_failure(self, board: str, failure: WriteError) -> None:
        """The file does not hold it, or perhaps not."""
        for told, batch, _ in self.calls:
            if told.done():
                continue
            if failure.certain or not batch:
                told.set_exception(Unavailable(f"board {board}", failure.reason))
            else:
                told.set_result([_unknown(prepared, failure) for prepared in batch])


def _unknown(prepared: Prepared, failure: WriteError) -> OutcomeUnknown:
    name = prepared.commit.id
    return OutcomeUnknown(name.agent, name.lane, name.incarnation, name.step, failure.reason)
