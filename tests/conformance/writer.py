"""One writer of one board, for tests: it numbers its steps and names the epoch it believes in."""

from collections.abc import Sequence

from blackboard.core.commit import (
    Commit,
    CommitId,
    Committed,
    Condition,
    Head,
    HeldFence,
    KeyAt,
    Op,
    Result,
)
from blackboard.core.model import Outcome
from blackboard.engines.base import Store
from blackboard.units import Key, Revision
from blackboard.wire.codec import Prepared, encode_value, prepare

JsonValue = object


def packed(value: JsonValue) -> bytes:
    """An encoded value."""
    return encode_value(value)


class Writer:
    """Commits as `agent` to `board`. `await writer.commit(Put(...), Put(...))` is one step."""

    def __init__(self, store: Store, board: str, head: Head, agent: str = "ada") -> None:
        self.store = store
        self.board = board
        self.agent = agent
        self.epoch = head.epoch.id
        self.incarnation = f"{agent}-1"
        self.lane = 0
        self.step = 0

    @classmethod
    async def open(cls, store: Store, board: str, agent: str = "ada") -> "Writer":
        """Open `board` and write to it as `agent`."""
        return cls(store, board, await store.open(board), agent)

    def make(
        self,
        *ops: Op,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
        based_on: Sequence[tuple[Key, Revision]] = (),
        note: str = "",
    ) -> Commit:
        """The next step of this writer, not sent yet."""
        self.step += 1
        name = CommitId(self.agent, self.lane, self.incarnation, self.step)
        return Commit(
            id=name,
            epoch=self.epoch,
            ops=ops,
            conditions=tuple(conditions),
            fences=tuple(fences),
            based_on=tuple(based_on),
            note=note,
        )

    def prepared(self, *ops: Op) -> list[Prepared]:
        """The next step, as a part of a batch."""
        return [prepare(self.make(*ops))]

    async def send(self, commit: Commit) -> Outcome:
        """Send one commit alone and return its outcome."""
        [outcome] = await self.store.commit(self.board, [prepare(commit)])
        return outcome

    async def send_all(self, commits: Sequence[Commit]) -> list[Outcome]:
        """Send commits as one batch."""
        batch: list[Prepared] = [prepare(commit) for commit in commits]
        return await self.store.commit(self.board, batch)

    async def attempt(
        self,
        *ops: Op,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
    ) -> Outcome:
        """Send the next step and return its outcome, whatever it is."""
        return await self.send(self.make(*ops, conditions=conditions, fences=fences))

    async def commit(
        self,
        *ops: Op,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
    ) -> Committed:
        """Send the next step, which must be accepted."""
        outcome = await self.attempt(*ops, conditions=conditions, fences=fences)
        assert isinstance(outcome, Committed), outcome
        return outcome

    async def result(self, op: Op) -> Result:
        """Commit `op` alone and return what it computed."""
        return (await self.commit(op)).results[0]


def at(key: Key, revision: Revision) -> KeyAt:
    """The condition that `key` was last written at `revision`."""
    return KeyAt(key, revision)
