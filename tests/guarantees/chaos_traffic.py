"""The traffic of traffic.py on a board that may lose a suffix, with secrets in between.

A client that learns of a rollback accepts it and continues; everything it received is recorded.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from blackboard.client.board import Board
from blackboard.core.commit import KeyAt, Op, Put
from blackboard.errors import OutcomeUnknown, Rejected, RolledBack, StaleEpoch, Unavailable
from blackboard.wire.codec import encode_value
from tests.guarantees.history import Entry, Mark, Watched, Write
from tests.guarantees.rollback import TOLD
from tests.guarantees.traffic import COUNTERS, PAIRS, Recorder, follow, whole_log
from tests.waiting import let_pass

SECRET = "hidden"
"""What the private values begin with; they are never written with a public key of their own."""
PAUSE_S = 0.002
"""Between two commits of a writer, so that hours of them fit into memory, round by round."""


@dataclass
class ChaosRecorder(Recorder):
    """Takes part until `over`; `leaks` is what somebody was shown who may not see it."""

    pause_s: float = PAUSE_S
    """Between two commits of a writer, and two reads of a reader where nobody answers."""
    over: anyio.Event = field(default_factory=anyio.Event)
    leaks: list[str] = field(default_factory=list)

    async def write_on(self, board: Board, name: str) -> None:
        """Ask for commits of four kinds until it is over."""
        dice, number = random.Random(f"{self.seed} {name}"), 0
        while not self.over.is_set():
            value, number = f"{name}-{number}", number + 1
            match dice.randrange(4):
                case 0:
                    await self._attempt(board, value, PAIRS, None)
                case 1:
                    await self._update(board, value, dice.choice(COUNTERS))
                case 2:
                    await self._attempt(board, value, (f"public/own/{name}",), None)
                case _:
                    await self._attempt(board, value, (f"public/own/{name}",), None, secret=name)
            await let_pass(self.pause_s)

    async def put_on(self, board: Board, name: str) -> None:
        """Ask for commits without a read in between, beside `write_on`, until it is over."""
        number = 0
        while not self.over.is_set():
            value, number = f"{name}-own-{number}", number + 1
            await self._attempt(board, value, (f"public/own/{name}",), None)
            await let_pass(self.pause_s)

    async def _update(self, board: Board, value: str, key: str) -> None:
        try:
            entry = await board.entry(key)
        except Unavailable:
            return
        await self._attempt(board, value, (key,), entry.mod_revision if entry else 0)

    async def _attempt(
        self,
        board: Board,
        value: str,
        keys: tuple[str, ...],
        expected: int | None,
        *,
        secret: str | None = None,
    ) -> None:
        ops: list[Op] = [Put(key, encode_value(value)) for key in keys]
        if secret is not None:
            hidden = encode_value(f"{SECRET} {value}")
            ops.append(Put(f"private/{secret}/note", hidden))
        conditions = [] if expected is None else [KeyAt(keys[0], expected)]
        started, outcome, revision = time.monotonic(), "done", 0
        try:
            revision = (await board.commit(ops, conditions=conditions)).revision
        except StaleEpoch:
            outcome = TOLD
        except (Rejected, Unavailable):
            outcome = "refused"
        except OutcomeUnknown:
            outcome = "unknown"
        write = Write(value, keys, started, time.monotonic(), outcome, revision, expected)
        self.history.writes.append(write)
        if outcome == TOLD:
            await self._accept(board)

    async def _accept(self, board: Board) -> None:
        """Take the board as it is now."""
        while not self.over.is_set():
            try:
                await board.refresh()
            except Unavailable:
                await let_pass(self.pause_s)
            else:
                return

    async def read_on(self, board: Board, until: Callable[[], bool]) -> None:
        """As `read`, through times in which nobody answers."""
        while not until():
            try:
                await self.read(board, until)
            except Unavailable:
                await let_pass(self.pause_s)

    async def watch_on(self, board: Board, prefix: str, until: Callable[[], int | None]) -> None:
        """As `watch`; after a rollback it goes on from what is left, as a watcher of its own."""
        dice = random.Random(f"{self.seed} {prefix}")
        token: str | int = 0
        while True:
            watches: list[Watched] = []
            self.history.watches.append(watches)
            try:
                return await self._watch_through(board, prefix, token, watches, until, dice)
            except RolledBack as error:
                token = error.from_revision

    async def _watch_through(
        self,
        board: Board,
        prefix: str,
        token: str | int,
        watches: list[Watched],
        until: Callable[[], int | None],
        dice: random.Random,
    ) -> None:
        reached = _revision_of(token)
        while (end := until()) is None or reached < end:
            watched = Watched(prefix, reached)
            watches.append(watched)
            try:
                async with board.watch(prefix + "**", after=token) as watch:
                    await follow(watch, watched, until, dice.randrange(20, 200))
                    token = watch.position
            except Unavailable:
                watches.pop()  # it gets everything again: it never used its token
                continue
            reached = _revision_of(token)
            if watched.position != reached:
                watched.told.append(Mark(reached))

    async def read_all(self, board: Board) -> None:
        """Read the log as somebody who may see everything; keep what is public of it."""
        for entry in await whole_log(board):
            changes = tuple(change for change in entry.changes if change[0].startswith("public/"))
            kept = Entry(entry.revision, changes, entry.from_revision)
            self.history.log.append(kept)

    def look_for_leaks(self) -> None:
        """Note what is private among what readers and watchers were shown."""
        shown = [
            c for w in self.history.watches for one in w for e in one.entries for c in e.changes
        ]
        shown += [value for read in self.history.reads for value in read.values]
        for key, value in shown:
            if not key.startswith("public/") or SECRET in str(value):
                self.leaks.append(f"{key} was shown: {value}")


def _revision_of(token: str | int) -> int:
    return token if isinstance(token, int) else int(token.split(":")[1])
