"""The commits that one transaction of the embedded engine writes, with the callers to answer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from blackboard import limits
from blackboard.core.commit import Committed, Epoch, Head, LogEntry, Renew
from blackboard.core.model import Outcome, decide, log_entry, prolong
from blackboard.core.state import State, evolve
from blackboard.engines.base import BatchAnswer
from blackboard.engines.sqlite.cache import NotLoaded
from blackboard.engines.sqlite.file import WriteError, Written
from blackboard.engines.sqlite.follower import Backlog
from blackboard.engines.sqlite.rows import LogRows, Places, Taken
from blackboard.engines.sqlite.tablets import Span
from blackboard.errors import BlackboardError, OutcomeUnknown, Unavailable
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
    places: list[Places] = field(default_factory=list)
    log: LogRows = field(default_factory=LogRows)
    log_below: Revision | None = None
    commits: int = 0
    bytes: int = 0
    head: Head | None = None
    written: Written | None = None
    """What its transaction did to the file."""
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
    ) -> tuple[list[Outcome], Span | None]:
        """Decide a batch, and change `state` by what was accepted.

        A commit that looks up what is not loaded ends that: the outcomes are those of the commits
        before it, and the range is what has to be loaded. If a rule raises unexpectedly, `state` is
        invalid.
        """
        outcomes: list[Outcome] = []
        missing: Span | None = None
        for prepared in batch:
            try:
                outcome = decide(state, prepared.commit, now_ms)
            except NotLoaded as found:
                missing = found.span
                break
            outcomes.append(outcome)
            if not isinstance(outcome, Committed) or outcome.duplicate:
                continue
            # A commit that only renews leases has no entry in the log (docs/decisions/0040).
            if not prolong(state, prepared.commit, outcome):
                entry = log_entry(prepared.commit, outcome, prepared.digest)
                row = self.log.add(entry, prepared, encode_results(outcome.results))
                self.places.append(backlog.note(state, entry, row))
                evolve(state, entry)
                self.entries.append(entry)
                self.sizes.append(prepared.size)
        self.commits += len(outcomes)
        self.bytes = sum(self.sizes)
        return outcomes, missing

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


def only_renews(prepared: Prepared) -> bool:
    """Whether a commit does nothing but renew leases."""
    return all(isinstance(op, Renew) for op in prepared.commit.ops)


def _unknown(prepared: Prepared, failure: WriteError) -> OutcomeUnknown:
    name = prepared.commit.id
    return OutcomeUnknown(name.agent, name.lane, name.incarnation, name.step, failure.reason)


class Parts:
    """A batch whose commits are decided in parts, because some looked up what was not loaded."""

    def __init__(self, batch: Sequence[Prepared]) -> None:
        self.left = batch
        self._answers: list[tuple[Sequence[Prepared], asyncio.Future[list[Outcome]]]] = []

    def decided(self, count: int, answer: "asyncio.Future[list[Outcome]]") -> None:
        """The next `count` commits get their outcomes in `answer`."""
        if count:
            self._answers.append((self.left[:count], answer))
            self.left = self.left[count:]

    def failed(self, error: BlackboardError) -> None:
        """Nothing more is decided. Raises `error` if nothing was."""
        if not self._answers:
            raise error
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        answer.set_exception(error)
        self.decided(len(self.left), answer)

    async def outcomes(self) -> list[Outcome]:
        """The outcomes of all, once they are durable. Errors: as for one part."""
        if len(self._answers) == 1:
            return await self._answers[0][1]
        found: list[Outcome] = []
        answers = (answer for _, answer in self._answers)
        told = await asyncio.gather(*answers, return_exceptions=True)
        for (batch, _), outcomes in zip(self._answers, told, strict=True):
            if isinstance(outcomes, list):
                found += outcomes
            elif not found:
                raise outcomes
            else:
                # Those before it have outcomes, and no outcome of a commit says: surely not.
                failure = WriteError(str(outcomes), certain=False)
                found += [_unknown(prepared, failure) for prepared in batch]
        return found
