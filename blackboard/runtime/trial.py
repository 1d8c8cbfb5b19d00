"""A step as a pure function: state and inputs in, state and effects out. For tests and replays.

    trial = await try_step(Researcher("ann"), Notes(round=1), Inputs({"public/price": 1200}))
    assert trial.state.round == 2
    assert trial.written == {"public/round": 2}

The board is in memory and follows the rules of core/model.py; there is no engine, clock or service.
Tools are called, unless `calls` answers them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic

from blackboard.client.views import Entry, Listing, Receipt
from blackboard.core.commit import (
    Append,
    Commit,
    CommitId,
    Committed,
    Condition,
    Epoch,
    HeldFence,
    LogEntry,
    Op,
    Put,
)
from blackboard.core.model import decide, log_entry, prolong
from blackboard.core.path import parse_pattern
from blackboard.core.state import State, evolve
from blackboard.errors import InvalidRequest, StaleEpoch
from blackboard.limits import CALL_INLINE_BYTES, DEFAULT, LIST_ENTRIES_MAX, STEP_ATTEMPTS_MAX
from blackboard.runtime import chunks as large
from blackboard.runtime.agent import Agent
from blackboard.runtime.approvals import Answer, decisions_of, requests_of
from blackboard.runtime.calls import CallRecord
from blackboard.runtime.journal import RESULT, Observer, unobserved
from blackboard.runtime.runner import Runner, Stepped
from blackboard.runtime.state import S, Status, StoredState, journal_prefix, state_key
from blackboard.units import Key, Revision
from blackboard.wire.codec import decode_value, encode_large, encode_value, prepare

_WORLD = "world"
_PERSON = "person"


class MemoryBoardPort:
    """A board in memory for `agent`; `seed` writes to it as another author."""

    def __init__(self, agent: str, name: str = "trial") -> None:
        self.agent = agent
        self.account = agent
        self.name = name
        self.limits = DEFAULT
        self.log: list[LogEntry] = []
        self._state = State(Epoch(1, "trial"))

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`."""
        found = self._state.entries.get(key)
        return None if found is None else Entry.of(found)

    async def entries(self, keys: Sequence[Key]) -> Mapping[Key, Entry]:
        """The entries of `keys`."""
        entries = self._state.entries
        return {key: Entry.of(entries[key]) for key in keys if key in entries}

    async def list(
        self, pattern: str, *, after: Key | None = None, limit: int = LIST_ENTRIES_MAX
    ) -> Listing:
        """A page of the entries that match."""
        meant = parse_pattern(pattern)
        found = (
            key
            for key in self._state.entries.irange(minimum=after, inclusive=(False, True))
            if meant.matches(key)
        )
        page = list(islice(found, limit + 1))
        entries = tuple(Entry.of(self._state.entries[key]) for key in page[:limit])
        return Listing(self._state.revision, entries, page[limit - 1] if page[limit:] else None)

    async def commit(
        self,
        ops: Sequence[Op],
        *,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
        based_on: Sequence[tuple[Key, Revision]] = (),
        note: str = "",
    ) -> Receipt:
        """Carry out `ops`. Errors: the refusal."""
        commit = self._commit(self.agent, ops)
        parts = (tuple(conditions), tuple(fences), tuple(based_on), note)
        return self._send(Commit(commit.id, commit.epoch, commit.ops, *parts))

    def document(self, key: Key) -> None:
        """A trial has no documents."""

    def files(self, directory: Path) -> None:
        """A trial has no files."""

    async def renew(self, error: StaleEpoch) -> None:
        """There is one epoch only."""
        raise error

    async def kept_call(self, key: Key, step: int) -> Sequence[Entry]:
        """No restore has kept anything."""
        return ()

    def seed(self, author: str, *ops: Op) -> None:
        """Carry out `ops` as `author`."""
        self._send(self._commit(author, ops))

    def _commit(self, author: str, ops: Sequence[Op]) -> Commit:
        # A number that no earlier commit has: `decide` takes none for a repeated one.
        name = CommitId(author, 0, author, self._state.revision + 1)
        return Commit(name, self._state.epoch.id, tuple(ops))

    def _send(self, commit: Commit) -> Receipt:
        # Not a clock: the same inputs have to give the same times.
        now_ms = self._state.revision + 1
        decided = decide(self._state, commit, now_ms)
        if not isinstance(decided, Committed):
            raise decided
        if not prolong(self._state, commit, decided):
            entry = log_entry(commit, decided, prepare(commit).digest)
            evolve(self._state, entry)
            self.log.append(entry)
        return Receipt(decided.revision, now_ms, decided.results, "memory")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that a step depends on, besides its state.

    `entries` are on the board; `inbox` has pairs of sender and message. `answers` says what people
    answer to a question of `ctx.approve`. With `calls` (recorded ones) every call is answered from
    them, and one that is not among them is Diverged. `step` is how many steps were taken before.
    """

    entries: Mapping[Key, Any] = field(default_factory=dict)
    inbox: Sequence[tuple[str, Any]] = ()
    answers: Mapping[str, bool] = field(default_factory=dict)
    calls: Sequence[CallRecord] | None = None
    step: int = 0


@dataclass(frozen=True, slots=True)
class Trial(Generic[S]):
    """The outcome of a step for given inputs.

    `written` and `deleted` leave out what the runtime keeps for itself; `sent` has pairs of
    recipient and message.
    """

    state: S
    stepped: Stepped
    written: Mapping[Key, Any]
    deleted: tuple[Key, ...]
    sent: tuple[tuple[str, Any], ...]

    @property
    def calls(self) -> tuple[CallRecord, ...]:
        """The calls that were made or answered, in their order."""
        return self.stepped.calls


async def try_step(
    agent: Agent[S],
    state: S | None = None,
    inputs: Inputs | None = None,
    *,
    observe: Observer = unobserved,
) -> Trial[S]:
    """Take one step of `agent` from `state` (None: that of a new agent) on `inputs`.

    The same arguments give the same result, as far as the tools do. Errors: those of `Runner.step`;
    Diverged when a call is not among `inputs.calls`.
    """
    inputs = inputs or Inputs()
    port = MemoryBoardPort(agent.name)
    _seed(port, agent, agent.first() if state is None else state, inputs)
    begin = len(port.log)
    runner = Runner(agent, port, observe=observe, strict=inputs.calls is not None)
    for _ in range(STEP_ATTEMPTS_MAX):
        stepped = await runner.step()
        waits = stepped.status is Status.WAITING_FOR_APPROVAL
        if not (waits and await _answer(port, inputs.answers)):
            break
        runner.forget()
    runner.forget()
    after, _ = await runner.hydrate()
    return _trial(after, stepped, port.log[begin:])


def _seed(port: MemoryBoardPort, agent: Agent[S], state: S, inputs: Inputs) -> None:
    """Put everything on the board before the step."""
    for key, value in inputs.entries.items():
        port.seed(_WORLD, Put(key, encode_value(value)))
    for sender, message in inputs.inbox:
        port.seed(sender, Append(f"inbox/{agent.name}/messages", encode_value(message)))
    plain = agent.schema.dump(agent.name, state)
    stored = StoredState(
        kind=agent.kind, version=agent.schema_version, step=inputs.step, state=plain
    )
    port.seed(agent.name, Put(state_key(agent.name), encode_value(stored.plain())))
    seen: dict[str, int] = {}
    for record in inputs.calls or ():
        if record.apart:
            raise InvalidRequest(field="calls", reason=f"the result of {record.name} is elsewhere")
        count = seen[record.digest] = seen.get(record.digest, -1) + 1
        # As `Call.slot` makes it, so that the calls of the step find their records.
        key = f"{journal_prefix(agent.name)}/{record.digest[:32]}-{count}"
        for put in _puts(key, record):
            port.seed(agent.name, put)


def _puts(key: Key, record: CallRecord) -> list[Put]:
    """The operations that put `record` at `key`, with its result beside it if that is large."""
    if record.result_bytes <= CALL_INLINE_BYTES:
        return [Put(key, encode_value(record.plain()))]
    alone = record.model_copy(update={"result": None, "apart": True})
    beside = large.puts(f"{key}/{RESULT}", encode_large(record.result))
    return [*beside, Put(key, encode_value(alone.plain()))]


async def _answer(port: MemoryBoardPort, answers: Mapping[str, bool]) -> bool:
    """Answer the requests that `answers` knows. Returns whether there was one."""
    answered = False
    for entry in (await port.list(f"{requests_of(port.agent)}/*")).entries:
        question = entry.value["question"]
        if question in answers:
            value = Answer(approved=answers[question], request=entry.mod_revision).model_dump()
            key = f"{decisions_of(port.agent)}/{entry.key.rpartition('/')[2]}"
            if await port.entry(key) is None:
                port.seed(_PERSON, Put(key, encode_value(value)))
                answered = True
    return answered


def _trial(state: S, stepped: Stepped, log: Sequence[LogEntry]) -> Trial[S]:
    """Gather the effects from the log."""
    written: dict[Key, Any] = {}
    deleted: dict[Key, None] = {}
    sent: list[tuple[str, Any]] = []
    for entry in log:
        for change in entry.changes if entry.author == stepped.agent else ():
            space, to, *rest = change.key.split("/")
            if change.value is None:
                written.pop(change.key, None)
                deleted[change.key] = None
            elif space == "inbox" and change.item is not None:
                sent.append((to, decode_value(change.value)))
            else:
                deleted.pop(change.key, None)
                written[change.key] = decode_value(change.value)
            if _is_kept_by_runtime([space, to, *rest]):
                written.pop(change.key, None)
                deleted.pop(change.key, None)
    return Trial(state, stepped, written, tuple(deleted), tuple(sent))


def _is_kept_by_runtime(segments: list[str]) -> bool:
    if large.is_part(segments):
        return True
    own = {"~state", "~journal", "~declared", "~approvals", "~decisions", "~cache"}
    # A record of the service, such as `system/origin`, has two segments.
    return not own.isdisjoint(segments[1:2] if segments[0] == "public" else segments[2:3])
