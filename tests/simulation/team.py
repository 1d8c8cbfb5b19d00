"""A team that is taken back in time, in a simulated run, and the ghost that knows what it knew.

What the ghost notes is by attempt: whether a step's commit took effect, and where, the log tells
after the run. So a step whose answer was lost counts as what it was.
"""

from dataclasses import dataclass, field
from typing import Final

from blackboard.client.board import Board
from blackboard.client.views import Entry
from blackboard.core.commit import RESTORE, Append, ChangeKind, Delete, KeyAt, LogEntry, Op, Put
from blackboard.errors import OutcomeUnknown, Rejected, Unavailable
from blackboard.wire.codec import decode_value, encode_value
from tests.guarantees.cut_checkers import check
from tests.guarantees.cut_history import Cut, Restored, Step, TeamHistory
from tests.guarantees.cut_team import AGENTS, STATE
from tests.simulation.actors import PAUSE_S, Stage
from tests.simulation.loop import rest

KEYS: Final = tuple(f"public/team/{name}" for name in "abcd")
SECRET: Final = "private/leak/note"
_FIRST: Final = "first"
_PATIENCE: Final = 100


@dataclass(slots=True)
class Ghost:
    """Every attempt at a step, by the private state that it would leave."""

    attempts: dict[str, Step] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    messages: int = 0


@dataclass(slots=True)
class _Mind:
    """What an agent has in mind: its step, what it knows, and where its state is on the board."""

    step: int = 0
    know: int = 0
    revision: int = 0


class Agent:
    """Reads, then commits once: its state, what it publishes, messages that it sends and takes."""

    def __init__(self, stage: Stage, ghost: Ghost, name: str) -> None:
        self._stage = stage
        self._ghost = ghost
        self._name = name
        self._dice = stage.dice(name)
        self._mind = _Mind()

    async def run(self) -> None:
        """A few steps; after whatever was in the way, go on from what the board holds."""
        async with self._stage.board(self._name) as client:
            board = client.as_agent(self._name)
            for _ in range(self._stage.plan.steps):
                await rest(self._dice.random() * PAUSE_S)
                try:
                    await self._step(board)
                except (Rejected, OutcomeUnknown, Unavailable) as error:
                    self._stage.told(self._name, error.code)
                    await self._hydrate(board)

    async def _hydrate(self, board: Board) -> None:
        for _ in range(_PATIENCE):
            try:
                await board.refresh()
                kept = await board.entry(f"private/{self._name}/{STATE}")
            except Unavailable:
                await rest(PAUSE_S)
                continue
            told = kept.value if kept else {"step": 0, "know": 0}
            self._mind = _Mind(told["step"], told["know"], kept.mod_revision if kept else 0)
            return
        raise AssertionError("the board is never there")

    async def _step(self, board: Board) -> None:
        mind, name = self._mind, self._name
        read = list((await board.entries(self._dice.sample(KEYS, 2))).values())
        self._learn(read)
        await rest(self._dice.random() * PAUSE_S / 4)
        inbox = list((await board.list(f"inbox/{name}/**")).entries)
        self._learn(inbox)
        taken = inbox[: self._dice.randrange(3)]
        number = mind.step + 1
        state = f"{name} {number} of {self._dice.getrandbits(48)}"
        writes, sent = self._writes(f"{name}:{number}:{state[-6:]}"), self._sent()
        kept = f"private/{name}/{STATE}"
        told = {"step": number, "state": state, "know": mind.know}
        ops: list[Op] = [Put(kept, encode_value(told))]
        ops += [Delete(k) if v is None else Put(k, encode_value(v)) for k, v in writes]
        ops += [Append(f"inbox/{to}", encode_value(message)) for to, message in sent]
        ops += [Delete(entry.key) for entry in taken]
        names = tuple(message for _, message in sent)
        took = tuple(str(entry.value) for entry in taken)
        self._ghost.attempts[state] = Step(
            name, number, "", 0, mind.know, state, writes, names, took
        )
        receipt = await board.commit(ops, conditions=[KeyAt(kept, mind.revision)])
        self._ghost.acknowledged[state] = receipt.revision
        self._mind = _Mind(number, max(mind.know, receipt.revision), receipt.revision)
        self._stage.told(name, f"step {number} at {receipt.revision}")

    def _learn(self, entries: list[Entry]) -> None:
        self._mind.know = max([self._mind.know, *(entry.mod_revision for entry in entries)])

    def _writes(self, value: str) -> tuple[tuple[str, str | None], ...]:
        keys = self._dice.sample(KEYS, self._dice.randrange(3))
        return tuple((key, None if self._dice.random() < 0.2 else value) for key in keys)

    def _sent(self) -> list[tuple[str, str]]:
        found = []
        for other in AGENTS[: self._stage.plan.agents]:
            if other != self._name and self._dice.random() < 0.4:
                self._ghost.messages += 1
                found.append((other, f"m{self._ghost.messages}"))
        return found


class Chronicler:
    """Takes checkpoints, and takes the board back to them, or a branch along."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._dice = stage.dice("chronicler")
        self._count = 0
        self._names: list[str] = []
        self.branches: list[tuple[str, str]] = []
        """Boards that were made, and of which checkpoints."""

    async def checkpoint(self) -> None:
        """Name the present."""
        self._count += 1
        name = f"cut-{self._count}"
        async with self._stage.board("chronicler") as board:
            try:
                await board.checkpoint(name)
                self._names.append(name)
            except (Unavailable, OutcomeUnknown) as error:
                self._stage.told("chronicler", error.code)

    async def restore(self) -> None:
        """Go back to a checkpoint, if there is one."""
        if not self._names:
            await self.checkpoint()
            return
        async with self._stage.board("chronicler") as board:
            try:
                done = await board.restore(self._dice.choice(self._names))
                self._stage.told("chronicler", f"restored at {done.revision}")
            except (Unavailable, OutcomeUnknown) as error:
                self._stage.told("chronicler", error.code)

    async def branch(self) -> None:
        """Begin another board with a checkpoint, if there is one."""
        if not self._names:
            await self.checkpoint()
            return
        self._count += 1
        new, name = f"side-{self._count}", self._dice.choice(self._names)
        async with self._stage.board("chronicler") as board:
            try:
                await board.branch(new, name)
                self.branches.append((new, name))
            except (Unavailable, OutcomeUnknown) as error:
                self._stage.told("chronicler", error.code)


# --- the verdict ----------------------------------------------------------------------------------


async def judge_team(
    board: Board, ghost: Ghost, log: list[LogEntry], branches: list[tuple[str, str]]
) -> dict[str, list[str]]:
    """C1 to C8 of all cuts and restores, and whether branches hold what they began with."""
    story = _Story(log)
    history = TeamHistory(steps=_steps(ghost, log, story))
    taken = {one.name: one.revision for one in await board.checkpoints()}
    for revision in taken.values():
        history.cuts.append(await _cut(board, story, revision))
    for entry in log:
        if entry.epoch is not None and entry.epoch.cause == RESTORE:
            source = await _cut(board, story, entry.epoch.from_revision)
            ended = story.at(entry.revision - 1)
            now = await _cut(board, story, entry.revision)
            history.restored.append(Restored(source, ended, entry.epoch.id, entry.revision, now))
    found = check(history)
    lost = [
        f"{state} was acknowledged at {revision} and is not there"
        for state, revision in ghost.acknowledged.items()
        if not any(step.state == state and step.revision == revision for step in history.steps)
    ]
    if lost:
        found["Exactly once"] = lost
    for new, name in branches:
        side = await _content(Board(board._link, new))
        if side != await _content(board, taken[name]):
            found.setdefault("Branch", []).append(f"{new} is not what {name} held")
    return found


class _Story:
    """Which restore's epoch each revision belongs to; the engine's own change nothing for cuts."""

    def __init__(self, log: list[LogEntry]) -> None:
        self._begins = [(0, _FIRST)] + [
            (entry.revision, entry.epoch.id)
            for entry in log
            if entry.epoch is not None and entry.epoch.cause == RESTORE
        ]

    def at(self, revision: int) -> str:
        return [name for begin, name in self._begins if begin <= revision][-1]


def _steps(ghost: Ghost, log: list[LogEntry], story: _Story) -> list[Step]:
    """The attempts that took effect, in the order of their revisions."""
    found = []
    for entry in log:
        if entry.epoch is not None:
            continue
        for change in entry.changes:
            if change.kind is ChangeKind.PUT and change.key.endswith(STATE):
                assert change.value is not None
                one = ghost.attempts[decode_value(change.value)["state"]]
                step = Step(
                    one.agent,
                    one.number,
                    story.at(entry.revision),
                    entry.revision,
                    one.know,
                    one.state,
                    one.writes,
                    one.sent,
                    one.taken,
                )
                found.append(step)
    return found


async def _cut(board: Board, story: _Story, revision: int) -> Cut:
    entries = await _entries(board, revision)
    kept = {e.key.split("/")[1]: e.value for e in entries if e.key.endswith(STATE)}
    return Cut(
        epoch=story.at(revision),
        revision=revision,
        steps={agent: kept[agent]["step"] for agent in kept},
        states={agent: kept[agent]["state"] for agent in kept},
        know={agent: kept[agent]["know"] for agent in kept},
        public={e.key: e.value for e in entries if e.key in KEYS},
        inboxes=frozenset(e.value for e in entries if e.key.startswith("inbox/")),
    )


async def _content(board: Board, at: int | None = None) -> dict[str, object]:
    """What a team left on a board, but for a secret: redacted, it is a marker in the past only."""
    entries = await _entries(board, at)
    return {e.key: e.value for e in entries if not e.key.startswith(("system/", SECRET))}


async def _entries(board: Board, at: int | None) -> list[Entry]:
    for _ in range(_PATIENCE):
        try:
            return [entry async for entry in board.scan("**", at=at)]
        except Unavailable:
            await rest(PAUSE_S)
    raise AssertionError("the past is never there")
