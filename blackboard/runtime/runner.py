"""Takes the steps of one agent: it hydrates the agent, runs a step, and commits it or runs it
again.

Invariants
- a step is one commit: the private state, everything the step wrote and sent, the end of its
  journal. A step that changed nothing and called nothing commits nothing.
- every commit has the condition that the agent's state is the one that the step began with: of two
  processes that run the same agent, one commits, and the other repeats its step on the new state.
- between two steps nothing is held in memory that is not on the board.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from blackboard import telemetry
from blackboard.client.step import Step
from blackboard.client.views import Entry, Receipt
from blackboard.core.commit import DeletePrefix, Op, Put
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    BoardFrozen,
    Conflict,
    Corrupt,
    Diverged,
    Fenced,
    InvalidState,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    Rejected,
    StaleEpoch,
    Unauthenticated,
    Unavailable,
    WorkspaceHeld,
)
from blackboard.limits import STEP_ATTEMPTS_MAX, Limits
from blackboard.runtime.agent import Agent
from blackboard.runtime.approvals import decisions_of, requests_of
from blackboard.runtime.board_port import BoardPort
from blackboard.runtime.calls import CallRecord
from blackboard.runtime.chunks import kept_prefix
from blackboard.runtime.context import Context, StepRun, Suspended
from blackboard.runtime.files import AgentFiles
from blackboard.runtime.journal import (
    Journal,
    JournalOrigin,
    Observer,
    StepPoint,
    StoredJournal,
    load,
    unobserved,
)
from blackboard.runtime.state import (
    S,
    Status,
    StoredState,
    declared_key,
    guard,
    journal_prefix,
    state_key,
    stored_in,
)
from blackboard.units import Prefix, Revision
from blackboard.wire.codec import encode_value

if TYPE_CHECKING:
    from blackboard.client.workspace.step_files import StepFiles

_FIRST_PAUSE_MS = 10
_FINAL = (BoardFrozen, Fenced, StaleEpoch, Unauthenticated)
"""Errors that no other path through the step would avoid."""
_OF_THE_BOARD: tuple[type[BlackboardError], ...] = (
    LeaseLost,
    Fenced,
    LeaseHeld,
    WorkspaceHeld,
    BoardFrozen,
    Unavailable,
    OutcomeUnknown,
    AccessDenied,
    Unauthenticated,
    Corrupt,
    InvalidState,
)
"""Errors that `run_agent` and a supervisor tell from a crash of the step, or from one that another
attempt may avoid. Of several at once the first here counts."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of a step.

    `number` is that of the last step committed. `receipt` is None when nothing was committed.
    `idle`: it changed nothing, and will not until one of its reads changes. `patterns` are its
    reads, or what it waits for; `since` is a revision from before these reads.
    """

    agent: str
    number: int
    status: Status
    receipt: Receipt | None = None
    idle: bool = False
    patterns: tuple[str, ...] = ()
    since: Revision = 0
    calls: tuple[CallRecord, ...] = ()
    attempts: int = 1
    outcome: str = ""
    diverged: Diverged | None = None

    @property
    def rests(self) -> bool:
        """Whether there is nothing to do until something happens on the board."""
        return self.idle or self.status in (Status.WAITING, Status.WAITING_FOR_APPROVAL)


@dataclass(slots=True)
class Hydrated:
    """An agent's state on the board: `revision` is that of the state, 0 if it has none yet."""

    stored: StoredState
    revision: Revision
    since: Revision
    kept: StoredJournal
    declared: Any


class Runner(Generic[S]):
    """Runs an agent on a port, one step at a time."""

    def __init__(
        self,
        agent: Agent[S],
        port: BoardPort,
        *,
        observe: Observer = unobserved,
        strict: bool = False,
    ) -> None:
        """With `strict`, a call that is not in the journal is an error, as in a replay."""
        assert agent.name == port.agent, (agent.name, port.agent)
        self.agent = agent
        self._port = port
        self._observe = observe
        self._strict = strict
        self._schema = agent.schema
        self._hydrated: Hydrated | None = None
        self.woken_by = ""
        """The note of the commit that ended the agent's rest, until its next step is taken."""

    def forget(self) -> None:
        """Read the state again before the next step."""
        self._hydrated = None

    async def hydrate(self) -> tuple[S, StoredState]:
        """The state in the schema version of the code, and the stored state.

        Errors: SchemaTooNew, MigrationFailed, InvalidState, Corrupt. Nothing is written.
        """
        now = await self._read()
        return self._schema.revive(self.agent.name, now.stored), now.stored

    async def _read(self) -> Hydrated:
        if self._hydrated is None:
            name = self.agent.name
            page = await self._port.list(state_key(name))
            entry = page.entries[0] if page.entries else None
            # Read after the state: calls made from an older state must not answer those of this
            # one.
            declared, kept = await asyncio.gather(
                self._port.entry(declared_key(name)), load(self._port)
            )
            self._hydrated = Hydrated(
                stored=self._stored(entry),
                revision=entry.mod_revision if entry else 0,
                since=page.revision,
                kept=kept,
                declared=declared.value if declared else None,
            )
            self._observe(StepPoint.HYDRATED, name)
        return self._hydrated

    def _stored(self, entry: Entry | None) -> StoredState:
        if entry is not None:
            return stored_in(entry)
        first = self._schema.dump(self.agent.name, self.agent.first())
        return StoredState(kind=self.agent.kind, version=self._schema.version, state=first)

    # --- a step -----------------------------------------------------------------------------------

    async def step(self) -> Stepped:
        """Take a step: run it until it is committed, or has to wait, or changes nothing.

        On a Conflict it runs again on fresh state, STEP_ATTEMPTS_MAX times in all, after a growing
        pause; after any other refusal it runs again once, with `ctx.refused` set. After a restore,
        the present epoch is adopted.

        Errors: the last Conflict, or the refusal; Fenced when another process is this agent;
        SchemaTooNew, MigrationFailed, InvalidState; whatever the step itself raises. Then nothing
        of the step is committed; results in the journal stay. Cancellation: likewise, unless the
        step was already committed.
        """
        try:
            return await self._until_accepted()
        except BaseException:
            # Also after a cancellation: the commit may have been applied.
            self.forget()
            raise
        finally:
            self.woken_by = ""

    async def _until_accepted(self) -> Stepped:
        refused: Rejected | None = None
        for attempt in range(1, STEP_ATTEMPTS_MAX + 1):
            try:
                return await self._attempt(attempt, refused)
            except StaleEpoch as error:
                self._give_up(attempt, error)
                await self._port.renew(error)
            except Conflict as error:
                self._give_up(attempt, error)
                refused = error
                await asyncio.sleep(_pause_s(attempt, self._port.limits))
            except _NotAccepted as error:
                # The same refusal twice: `ctx.refused` did not help the agent to another path.
                if isinstance(error.refusal, _FINAL) or type(error.refusal) is type(refused):
                    raise error.refusal from None
                self._give_up(attempt, error.refusal)
                refused = error.refusal
            self.forget()
        raise AssertionError("the last attempt returns or raises")

    def _give_up(self, attempt: int, error: Rejected) -> None:
        if attempt == STEP_ATTEMPTS_MAX:
            raise error

    async def _attempt(self, attempt: int, refused: Rejected | None) -> Stepped:
        """One run of the step."""
        now = await self._read()
        number = now.stored.step + 1
        # Also when it is done: it may have been killed before its directory was what it committed.
        async with self._tree() as tree:
            if now.stored.status is Status.DONE:
                return self._stepped(now, attempt)
            name, board = self.agent.name, self._port.name
            with telemetry.step(name, board, number, self.woken_by) as span:
                stepped = await self._take(now, StepRun(number, attempt, refused), tree)
                if span is not None and stepped.receipt is not None:
                    span.at(stepped.receipt.revision)
            return stepped

    @asynccontextmanager
    async def _tree(self) -> "AsyncIterator[StepFiles | None]":
        """The agent's files for one run of the step, as the board has them; None without any."""
        directory = self.agent.workspace()
        tree = None if directory is None else self._port.files(Path(directory))
        try:
            if tree is not None:
                await tree.begin(self._port.limits.agents.workspace_wait_ms)
            yield tree
        finally:
            if tree is not None:
                await tree.end()

    async def _take(self, now: Hydrated, run: StepRun, tree: "StepFiles | None") -> Stepped:
        """Run the step, and commit it if it changed something."""
        number, attempt, refused = run.number, run.attempt, run.refused
        condition = guard(self.agent.name, now.revision)
        origin = JournalOrigin(number, condition, self._strict, refused is not None)
        journal = Journal(self._port, origin, now.kept, self._observe)
        state = self._schema.revive(self.agent.name, now.stored)
        step = Step(self._port, validate=True, note=_note(number))
        files = None if tree is None else AgentFiles(tree, step, self._port.limits.agents)
        ctx = Context(state, run, step, journal, self._port, files)
        self._observe(StepPoint.STEP_BEGUN, str(number))
        suspended = None
        async with _Committing(step) as committing:
            suspended = await self._run(ctx, journal, files)
            asked = self._asked_below(now.stored, journal)
            changed = suspended is None and self._finish(now, ctx, step, journal)
            if changed:
                # Not in `keep`: a run that waits, or changes its mind, leaves no parts behind.
                await journal.put_ahead(ctx.keeping.kept)
                await journal.make_way(asked, ctx.keeping.kept.keys())
                committing.wanted = True
                self._observe(StepPoint.COMMITTING, str(number))
        if suspended is not None:
            return await self._suspend(now, suspended, journal, attempt)
        if not changed:
            stepped = self._stepped(now, attempt)
            return replace(stepped, idle=True, patterns=step.patterns, since=now.since)
        assert step.receipt is not None
        if tree is not None:
            await tree.committed(step.receipt)
        return self._committed(now, ctx, step, journal)

    async def _run(
        self, ctx: Context[S], journal: Journal, files: AgentFiles | None
    ) -> Suspended | None:
        """Let the agent take its step. Returns how it was suspended, if it was."""
        try:
            try:
                await self.agent.step(ctx)
            finally:
                if files is not None:
                    await files.close()
            if files is not None:
                await files.put()
        except asyncio.CancelledError:
            # Without waiting for other calls: an agent that is stopped must release its identity in
            # bounded time.
            raise
        except BaseException as error:
            await journal.settle()
            suspended = await self._judge(error, journal)
            if suspended is None:
                raise
            return suspended
        await journal.settle()
        return None

    async def _judge(self, error: BaseException, journal: Journal) -> Suspended | None:
        """Classify an error that left the step: it waits, it is stale, or it failed."""
        leaves = list(_leaves(error))
        # Before all other errors of a group: the step runs again, whatever else went wrong in it.
        for kind in (StaleEpoch, Conflict):
            for leaf in leaves:
                if isinstance(leaf, kind):
                    raise leaf
        waits = [leaf for leaf in leaves if isinstance(leaf, Suspended)]
        if waits and len(waits) == len(leaves):
            return _together(waits)
        # The caller needs the error of the step, not that of the cleaning up.
        with suppress(BlackboardError):
            await journal.forget_failures()
        if isinstance(error, BaseExceptionGroup):
            _raise_of_the_board(leaves)
        return None

    def _finish(self, now: Hydrated, ctx: Context[S], step: Step, journal: Journal) -> bool:
        """Add the runtime's own operations to the step's commit; False if there is nothing to
        commit."""
        agent, stored = self.agent, now.stored
        plain = self._schema.dump(agent.name, ctx.state)
        after = StoredState(
            kind=agent.kind,
            version=self._schema.version,
            step=stored.step + 1,
            status=Status.RUNNING if ctx.outcome is None else Status.DONE,
            outcome=ctx.outcome or "",
            state=plain,
        )
        same = plain == stored.state and after.status is stored.status
        kept, removed = ctx.keeping.kept, ctx.keeping.removed(journal.ahead)
        written = step.ops or journal.records or kept or removed
        # Without a revision the agent has no state on the board yet; its first one
        # is always written.
        if same and not written and now.revision:
            return False
        step.expect(guard(agent.name, now.revision))
        step.put(state_key(agent.name), after.plain())
        for digest in removed:
            step.delete_prefix(f"{kept_prefix(agent.name)}/{digest}")
        if journal.records or kept or journal.ahead:
            step.delete_prefix(journal_prefix(agent.name))
        for prefix in self._asked_below(stored, journal):
            step.delete_prefix(prefix)
        if now.declared != agent.declared():
            step.put(declared_key(agent.name), agent.declared())
        # Already now, as `_committed` reads it. If the commit is refused, `forget` drops it.
        now.stored = after
        return True

    def _asked_below(self, stored: StoredState, journal: Journal) -> tuple[Prefix, ...]:
        """The prefixes of requests for approval that the step's commit has to remove, and of their
        answers; none if there are no requests."""
        decided = any(record.kind == "decision" for record in journal.records.values())
        if not decided and stored.status is not Status.WAITING_FOR_APPROVAL:
            return ()
        return requests_of(self.agent.name), decisions_of(self.agent.name)

    def _committed(self, now: Hydrated, ctx: Context[S], step: Step, journal: Journal) -> Stepped:
        """Update the cached state after the step was committed."""
        receipt = step.receipt
        assert receipt is not None
        self._observe(StepPoint.COMMITTED, str(now.stored.step))
        calls, patterns = journal.made, step.patterns
        now.revision, now.since, now.kept = receipt.revision, receipt.revision, StoredJournal()
        now.declared = self.agent.declared()
        return Stepped(
            self.agent.name,
            now.stored.step,
            now.stored.status,
            receipt=receipt,
            patterns=patterns,
            since=now.since,
            calls=calls,
            attempts=ctx.run.attempt,
            outcome=now.stored.outcome,
            diverged=journal.diverged,
        )

    async def _suspend(
        self, now: Hydrated, suspended: Suspended, journal: Journal, attempt: int
    ) -> Stepped:
        """Record on the board what the agent waits for, unless it is recorded already."""
        update = {"status": suspended.status, "waiting": suspended.patterns}
        after = now.stored.model_copy(update=update)
        receipt = None
        if suspended.ops or after != now.stored:
            self._observe(StepPoint.SUSPENDING, str(after.step + 1))
            withdrawn: list[Op] = []
            if now.stored.status is Status.WAITING_FOR_APPROVAL is not after.status:
                # It took another path: an answer to what it asked must not count in a later step.
                name = self.agent.name
                withdrawn = [DeletePrefix(requests_of(name)), DeletePrefix(decisions_of(name))]
            receipt = await self._port.commit(
                [
                    *withdrawn,
                    *suspended.ops,
                    Put(state_key(self.agent.name), encode_value(after.plain())),
                ],
                conditions=[guard(self.agent.name, now.revision), *suspended.conditions],
                note=f"step {after.step + 1} waits",
            )
            self._observe(StepPoint.SUSPENDED, str(after.step + 1))
        since = now.since
        now.stored = after
        # The commit put the state, and perhaps records: both are read again.
        self.forget()
        stepped = self._stepped(now, attempt)
        return replace(
            stepped, receipt=receipt, patterns=suspended.patterns, since=since, calls=journal.made
        )

    def _stepped(self, now: Hydrated, attempt: int) -> Stepped:
        stored = now.stored
        return Stepped(
            self.agent.name,
            stored.step,
            stored.status,
            attempts=attempt,
            outcome=stored.outcome,
            since=now.since,
        )


def _note(number: int) -> str:
    """The note of a step's commit. With telemetry it names the span: from the cut to the trace."""
    mark = telemetry.mark()
    return f"step {number}, {mark}" if mark else f"step {number}"


class _NotAccepted(Exception):
    """The board refused the step's commit."""

    def __init__(self, refusal: Rejected) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class _Quiet(Exception):
    """Leaves the block of a step without committing."""


class _Committing:
    """The block of a step, which distinguishes a refusal of its commit from an error inside it.

    Nothing is committed unless `wanted` was set.
    """

    def __init__(self, step: Step) -> None:
        self.wanted = False
        self._step = step

    async def __aenter__(self) -> "_Committing":
        await self._step.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None or not self.wanted:
            await self._step.__aexit__(_Quiet, error or _Quiet(), trace)
            return
        try:
            await self._step.__aexit__(None, None, None)
        except (Conflict, StaleEpoch):
            raise
        except Rejected as refusal:
            raise _NotAccepted(refusal) from refusal


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in `error`, in groups or alone."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _raise_of_the_board(leaves: Sequence[BaseException]) -> None:
    """Raise one of `leaves`, of a group, if all are errors of the board."""
    if all(isinstance(leaf, _OF_THE_BOARD) for leaf in leaves):
        raise next(leaf for kind in _OF_THE_BOARD for leaf in leaves if isinstance(leaf, kind))


def _together(waits: list[Suspended]) -> Suspended:
    """Combine several waits of a step into one."""
    approval = any(wait.status is Status.WAITING_FOR_APPROVAL for wait in waits)
    return Suspended(
        Status.WAITING_FOR_APPROVAL if approval else Status.WAITING,
        list(dict.fromkeys(pattern for wait in waits for pattern in wait.patterns)),
        [op for wait in waits for op in wait.ops],
        [condition for wait in waits for condition in wait.conditions],
    )


def _pause_s(attempt: int, limits: Limits) -> float:
    """Growing and random, so that agents that conflicted do not conflict again at once."""
    pause_ms = min(limits.agents.step_pause_ms_max, _FIRST_PAUSE_MS * 2.0**attempt)
    return random.uniform(0.5, 1.0) * pause_ms / 1000
