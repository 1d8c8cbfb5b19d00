"""Trajectories: the steps of agents, read from the log, and their replay.

    async for trajectory in trajectories(board):
        print(trajectory.model_dump_json())             # one line of JSON Lines

A trajectory belongs to one agent: for each step its reads, calls, writes, resulting state and
costs. With calls answered from it, the code of the agent repeats the steps (`replay`), and the
first one with a different result is reported.

Invariants
- A trajectory has the steps that led to the agent's state. Steps that a restore undid are only
  counted.
- nothing is invented: a value that the log does not have (any more) is listed in `unknown`. A
  state that cannot be read, such as a redacted one, is no step.
- At most one copy of a board's state is in memory, and the steps of each agent's trajectory.

Limits: what was read by `ctx.peek`, and which keys were found absent, is not in the log.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from blackboard.client.board import Board
from blackboard.client.views import Change, RevisionEvent
from blackboard.errors import BlackboardError, Compacted, Corrupt, Diverged
from blackboard.limits import LOG_ENTRIES_MAX
from blackboard.runtime.agent import Agent
from blackboard.runtime.calls import CallRecord, Value
from blackboard.runtime.chunks import is_part
from blackboard.runtime.journal import StoredJournal
from blackboard.runtime.models import Reply
from blackboard.runtime.state import (
    S,
    Status,
    StoredState,
    error_line,
    journal_prefix,
    state_key,
)
from blackboard.runtime.trial import Inputs, Trial, try_step
from blackboard.units import Key, Milliseconds, Revision

_OWN = ("~state", "~journal", "~declared", "~approvals", "~decisions", "~cache", "~identity")


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True)


class Input(_Plain):
    """An entry that a step read. `sender` is its author."""

    key: Key
    revision: Revision
    sender: str
    value: Value = None


class Costs(_Plain):
    """The use of calls. `cost_microusd` counts the calls whose price was known."""

    tool_calls: int = 0
    model_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_microusd: int = 0
    failures: int = 0

    def __add__(self, other: "Costs") -> "Costs":
        mine, its = self.model_dump(), other.model_dump()
        return Costs(**{name: mine[name] + its[name] for name in mine})


class StepTaken(_Plain):
    """A committed step. `unknown`: keys whose values, as the step read them, are not in the log;
    and those of its calls, or of the state before it, that cannot be read."""

    step: int
    revision: Revision
    time_ms: Milliseconds
    note: str
    inputs: tuple[Input, ...]
    unknown: tuple[Key, ...]
    calls: tuple[CallRecord, ...]
    before: dict[str, Any] | None
    after: dict[str, Any]
    written: dict[Key, Value]
    deleted: tuple[Key, ...]
    sent: tuple[tuple[str, Value], ...]
    costs: Costs


class Trajectory(_Plain):
    """The steps of one agent. Restores undid `abandoned` further steps."""

    board: str
    agent: str
    kind: str
    version: int
    status: str
    outcome: str
    abandoned: int
    costs: Costs
    steps: tuple[StepTaken, ...]


def costs_of(calls: Iterable[CallRecord]) -> Costs:
    """The costs of `calls`. A shared call, which another agent had made, cost nothing."""
    total = Costs()
    for call in calls:
        total += Costs(failures=len(call.failures))
        if call.shared or call.kind not in ("tool", "model"):
            continue
        if call.kind == "tool":
            total += Costs(tool_calls=1)
            continue
        total += Costs(model_calls=1)
        try:
            usage = Reply.model_validate(call.result).usage
        except ValidationError:
            continue  # it failed, and its cost is not known
        total += Costs(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cost_microusd=usage.cost_microusd or 0,
        )
    return total


# --- from the log ---------------------------------------------------------------------------------


async def trajectories(board: Board, *, agent: str | None = None) -> AsyncIterator[Trajectory]:
    """The trajectories of all agents (or of `agent`), by name, as far as log and archive reach.

    Only agents whose private namespaces you may read are included. Errors: AccessDenied.
    """
    reader = _Reader(board.name)
    async for revised in _log(board):
        reader.take_in(revised)
    for name in sorted(reader.agents):
        found = reader.agents[name].trajectory(board.name, name)
        if agent in (None, name) and found is not None:
            yield found


async def _log(board: Board) -> AsyncIterator[RevisionEvent]:
    """All of it, up to the present head."""
    # Only up to the head of now: on a busy board the end would move away for ever.
    head, after = await board.head(), 0
    while after < head.revision:
        try:
            page = await board.log(after=after, limit=LOG_ENTRIES_MAX)
        except Compacted as gone:
            after = gone.oldest - 1
            continue
        if not page:
            return
        for revised in page:
            yield revised
        after = page[-1].revision


@dataclass(slots=True)
class _Seen:
    """The known facts about an agent so far."""

    stored: StoredState | None = None
    journal: StoredJournal = field(default_factory=StoredJournal)
    steps: list[StepTaken] = field(default_factory=list)
    abandoned: int = 0
    unread: set[Key] = field(default_factory=set)
    """Keys of its state and its journal whose present values cannot be read: redacted ones, say."""

    def trajectory(self, board: str, name: str) -> Trajectory | None:
        """The whole trajectory; None for an agent without a state (any more)."""
        if self.stored is None:
            return None
        total = Costs()
        for step in self.steps:
            total += step.costs
        return Trajectory(
            board=board,
            agent=name,
            kind=self.stored.kind,
            version=self.stored.version,
            status=self.stored.status.value,
            outcome=self.stored.outcome,
            abandoned=self.abandoned,
            costs=total,
            steps=tuple(self.steps),
        )

    def calls(self) -> tuple[CallRecord, ...]:
        """The calls of the step, in their order, with their separately stored results."""
        found = dict(self.journal.records)
        for slot, record in self.journal.records.items():
            with suppress(Corrupt):  # the result is not in the log
                result = self.journal.result_of(slot)
                found[slot] = record.model_copy(update={"result": result, "apart": False})
        return tuple(sorted(found.values(), key=lambda record: record.number))

    def go_back_to(self, stored: StoredState | None) -> None:
        """A restore, or a person, changed the agent's state."""
        kept = stored.step if stored else 0
        later = [step for step in self.steps if step.step > kept]
        self.abandoned += len(later)
        self.steps = self.steps[: len(self.steps) - len(later)]
        self.stored = stored


class _Reader:
    """Reads a log."""

    def __init__(self, board: str) -> None:
        self.board = board
        self.agents: dict[str, _Seen] = {}
        self._now: dict[Key, Input] = {}

    def take_in(self, revised: RevisionEvent) -> None:
        """Process the next revision."""
        changes = [change for change in revised.changes if change.kind in ("put", "delete")]
        stepped = self._step_in(revised, changes)
        if stepped is not None:
            seen = self.agents.setdefault(revised.author, _Seen())
            # Before the changes of this revision are noted: `_now` still has what the step read.
            seen.steps.append(self._taken(seen, stepped, revised, changes))
            seen.stored, seen.journal, seen.unread = stepped, StoredJournal(), set()
        for change in changes:
            self._note(change, revised, is_step=stepped is not None)
            if change.kind == "put":
                self._now[change.key] = Input(
                    key=change.key,
                    revision=revised.revision,
                    sender=revised.author,
                    value=change.value,
                )
            else:
                self._now.pop(change.key, None)

    def _step_in(self, revised: RevisionEvent, changes: Sequence[Change]) -> StoredState | None:
        """The state that a step of the author led to, if the revision is one."""
        key = state_key(revised.author)
        put = next((c for c in changes if c.key == key and c.kind == "put"), None)
        if put is None:
            return None
        stored = _stored(put)
        if stored is None or stored.status in (Status.WAITING, Status.WAITING_FOR_APPROVAL):
            return None  # it says what the next step waits for
        # `blackboard migrate` writes as the agent, too, and leaves the number of the step.
        seen = self.agents.get(revised.author, _Seen())
        before = None if key in seen.unread else seen.stored
        is_next = stored.step == (before.step if before else stored.step - 1) + 1
        return stored if is_next and stored.step else None

    def _taken(
        self, seen: _Seen, stepped: StoredState, revised: RevisionEvent, changes: Sequence[Change]
    ) -> StepTaken:
        read = [(key, self._now.get(key), at) for key, at in revised.based_on]
        ours = [change for change in changes if not (_is_own(change.key) or _is_part(change.key))]
        calls = seen.calls()
        before = None if state_key(revised.author) in seen.unread else seen.stored
        return StepTaken(
            step=stepped.step,
            revision=revised.revision,
            time_ms=revised.time_ms,
            note=revised.note,
            inputs=tuple(
                found for key, found, at in read if found and found.revision == at and _is_read(key)
            ),
            unknown=tuple(
                [key for key, found, at in read if not (found and found.revision == at)]
                + sorted(seen.unread)
            ),
            calls=calls,
            before=before.state if before else None,
            after=stepped.state,
            written={c.key: c.value for c in ours if c.kind == "put" and not _is_letter(c.key)},
            deleted=tuple(c.key for c in ours if c.kind == "delete" and not _is_letter(c.key)),
            sent=tuple(
                (c.key.split("/")[1], c.value)
                for c in ours
                if c.kind == "put" and _is_letter(c.key)
            ),
            costs=costs_of(calls),
        )

    def _note(self, change: Change, revised: RevisionEvent, *, is_step: bool) -> None:
        """Process a change in an agent's private namespace."""
        space, _, rest = change.key.partition("/")
        name = rest.partition("/")[0]
        if space != "private" or (is_step and name == revised.author):
            return
        if change.key == state_key(name):
            seen = self.agents.setdefault(name, _Seen())
            stored = _stored(change) if change.kind == "put" else None
            if stored is None and change.kind == "put":
                seen.unread.add(change.key)
                return
            seen.unread.discard(change.key)
            # A wait, or a migration: no step was taken or taken back.
            if stored and seen.stored and stored.step == seen.stored.step:
                seen.stored = stored
            else:
                seen.go_back_to(stored)
        elif change.key.startswith(journal_prefix(name) + "/"):
            self._note_call(self.agents.setdefault(name, _Seen()), change, name)

    def _note_call(self, seen: _Seen, change: Change, name: str) -> None:
        seen.unread.discard(change.key)
        if change.kind != "put":
            seen.journal.records.pop(change.key.rpartition("/")[2], None)
            return
        try:
            seen.journal.add(change, journal_prefix(name))
        except Corrupt:
            seen.unread.add(change.key)


def _stored(change: Change) -> StoredState | None:
    """The state that was put; None for one that cannot be read."""
    try:
        return StoredState.model_validate(change.value)
    except ValidationError:
        return None


def _is_own(key: Key) -> bool:
    """Whether a key belongs to the runtime."""
    segments = key.split("/")
    at = 1 if segments[0] == "public" else 2
    # A record of the service, such as `system/origin`, has two segments.
    return segments[at:] != [] and segments[at] in _OWN


def _is_read(key: Key) -> bool:
    return not _is_own(key)


def _is_part(key: Key) -> bool:
    return is_part(key.split("/"))


def _is_letter(key: Key) -> bool:
    return key.startswith("inbox/")


# --- replay ---------------------------------------------------------------------------------------


class StepDifference(_Plain):
    """The first step with a different result: `what` differs in it, and how."""

    step: int
    what: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: `steps` had the same result as recorded."""

    agent: str
    steps: int
    difference: StepDifference | None = None


async def replay(agent: Agent[S], trajectory: Trajectory) -> Replayed:
    """Take the steps of `trajectory` again, each from its recorded state, inputs and calls.

    No tool or model is called, and no board is used. It ends at the first difference: in a call,
    the state, what was written, deleted or sent; or with the error that the code raises now.
    """
    for taken, count in zip(trajectory.steps, range(len(trajectory.steps)), strict=True):
        difference = await _replayed(agent, taken)
        if difference is not None:
            return Replayed(trajectory.agent, count, difference)
    return Replayed(trajectory.agent, len(trajectory.steps))


async def _replayed(agent: Agent[S], taken: StepTaken) -> StepDifference | None:
    schema = agent.schema
    letters = [found for found in taken.inputs if _is_letter(found.key)]
    entries = dict.fromkeys(taken.deleted)  # keys to be removed must exist
    entries |= {found.key: found.value for found in taken.inputs if not _is_letter(found.key)}
    inputs = Inputs(
        entries=entries,
        inbox=[(found.sender, found.value) for found in letters],
        calls=taken.calls,
        step=taken.step - 1,
    )
    try:
        # Read as a runner reads it: from JSON, which a model may take in another way.
        state = None
        if (before := taken.before) is not None:
            stored = StoredState(kind=schema.kind, version=schema.version, state=before)
            state = schema.revive(agent.name, stored)
        trial = await try_step(agent, state, inputs)
    except Diverged as error:
        return StepDifference(
            step=taken.step, what="call", recorded=error.expected, replayed=error.found
        )
    except BlackboardError as error:
        return StepDifference(step=taken.step, what="error", recorded=None, replayed=str(error))
    except Exception as error:  # noqa: BLE001 - the agent's own code may raise what it likes
        line = error_line(error)
        return StepDifference(step=taken.step, what="error", recorded=None, replayed=line)
    return _difference(agent, taken, trial)


def _difference(agent: Agent[S], taken: StepTaken, trial: Trial[S]) -> StepDifference | None:
    deleted = [key for key in trial.deleted if not _is_letter(key)]
    pairs = {
        "calls": ([c.digest for c in taken.calls], [c.digest for c in trial.calls]),
        "state": (taken.after, agent.schema.dump(agent.name, trial.state)),
        "written": (taken.written, {k: v for k, v in trial.written.items() if not _is_own(k)}),
        "deleted": (sorted(taken.deleted), sorted(key for key in deleted if not _is_own(key))),
        "sent": (list(taken.sent), list(trial.sent)),
    }
    for what, (recorded, replayed) in pairs.items():
        if recorded != replayed:
            return StepDifference(step=taken.step, what=what, recorded=recorded, replayed=replayed)
    return None
