"""The commits that one transaction of the embedded engine writes, with the callers to answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from blackboard import limits
from blackboard.core.commit import Committed, Epoch, Head, LogEntry
from blackboard.core.model import Outcome, decide, log_entry, prolong
from blackboard.core.state import State, evolve
from blackboard.engines.base import BatchAnswer
from blackboard.engines.sqlite.file import WriteError
from blackboard.engines.sqlite.follower import Backlog
from blackboard.engines.sqlite.rows import LogRows, Taken
from blackboard.errors import OutcomeUnknown, Unavailable
from blackboard.units import Milliseconds, Revision
from blackboard.wire.codec import Prepared, encode_results

Waiting = tuple[BatchAnswer, Sequence[Prepared], list[Outcome]]
"""A call of `commit`: where its outcomes go, the batch, the outcomes."""


@dataclass(slots=True)
class WriteGroup:
    """The commits of one transaction."""

    calls: list[Waiting] = field(default_factory=list)
    entries: list[LogEntry] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    log: LogRows = field(default_factory=LogRows)
    log_below: Revision | None = None
    commits: int = 0
    bytes: int = 0
    head: Head | None = None
    log_remains: bool = False
    follows: Taken | None = None
    """What it writes, if no commit waits for it."""

    def is_full(self, bytes_max: int) -> bool:
        """Whether the next commit has to wait for another transaction."""
        return self.commits >= limits.BATCH_COMMITS_MAX or self.bytes >= bytes_max

    @property
    def changes_nothing(self) -> bool:
        """Whether it needs no transaction: its commits were refused, are duplicates, or only moved
        deadlines of leases, which the file does not hold."""
        return not self.entries and self.log_below is None

    def apply(
        self, state: State, backlog: Backlog, batch: Sequence[Prepared], now_ms: Milliseconds
    ) -> list[Outcome]:
        """Decide a batch, and change `state` by what was accepted.

        If a rule raises unexpectedly, `state` is invalid.
        """
        outcomes: list[Outcome] = []
        for prepared in batch:
            outcome = decide(state, prepared.commit, now_ms)
            outcomes.append(outcome)
            if not isinstance(outcome, Committed) or outcome.duplicate:
                continue
            # A commit that only renews leases has no entry in the log (docs/decisions/0040).
            if not prolong(state, prepared.commit, outcome):
                entry = log_entry(prepared.commit, outcome, prepared.digest)
                row = self.log.add(entry, prepared, encode_results(outcome.results))
                backlog.note(state, entry, row)
                evolve(state, entry)
                self.entries.append(entry)
                self.sizes.append(prepared.size)
        self.commits += len(batch)
        self.bytes = sum(self.sizes)
        return outcomes

    @property
    def epochs(self) -> list[Epoch]:
        """The epochs that its commits begin."""
        return [entry.epoch for entry in self.entries if entry.epoch is not None]

    def tell(self) -> None:
        """Resolve the callers' futures, once the file holds the group."""
        for answer, _, outcomes in self.calls:
            if not answer.done():
                answer.set_result(outcomes)

    def tell_failure(self, board: str, failure: WriteError) -> None:
        """Fail the callers' futures: the file does not hold the group, or may not hold it."""
        for answer, batch, _ in self.calls:
            if answer.done():
                continue
            # A compaction is a call without commits: it has no outcomes that could be unknown.
            if failure.certain or not batch:
                answer.set_exception(Unavailable(f"board {board}", failure.reason))
            else:
                answer.set_result([_unknown(prepared, failure) for prepared in batch])


def _unknown(prepared: Prepared, failure: WriteError) -> OutcomeUnknown:
    name = prepared.commit.id
    return OutcomeUnknown(name.agent, name.lane, name.incarnation, name.step, failure.reason)
