"""Writers, readers and watchers that write down what they did and saw."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from blackboard.client.board import Board
from blackboard.client.views import RevisionEvent
from blackboard.client.watch import Watch
from blackboard.core.commit import KeyAt, Op, Put
from blackboard.errors import Compacted, OutcomeUnknown, Rejected, Unavailable
from blackboard.wire.codec import encode_value
from tests.guarantees.history import Entry, History, Mark, Read, Watched, Write
from tests.waiting import let_pass

LOG_PAGE = 1_000
PAIRS = ("public/pair/left", "public/pair/right")
COUNTERS = ("public/counter/0", "public/counter/1")


@dataclass
class Recorder:
    """Takes part in the life of a board, and writes a `History`."""

    seed: int
    history: History = field(default_factory=History)
    read_pause_s: float = 0.0
    """Between two reads of a reader."""

    # --- writers and readers ----------------------------------------------------------------------

    async def write(self, board: Board, name: str, count: int) -> None:
        """Ask for `count` commits, one after the other, of three kinds."""
        dice = random.Random(f"{self.seed} {name}")
        for number in range(count):
            value = f"{name}-{number}"
            match dice.randrange(3):
                case 0:
                    await self._commit(board, value, PAIRS, None)
                case 1:
                    key = dice.choice(COUNTERS)
                    entry = await board.entry(key)
                    revision = entry.mod_revision if entry else 0
                    await self._commit(board, value, (key,), revision)
                case _:
                    await self._commit(board, value, (f"public/own/{name}",), None)
            await anyio.lowlevel.checkpoint()

    async def _commit(
        self, board: Board, value: str, keys: tuple[str, ...], expected: int | None
    ) -> None:
        ops: list[Op] = [Put(key, encode_value(value)) for key in keys]
        conditions = [] if expected is None else [KeyAt(keys[0], expected)]
        started, outcome, revision = time.monotonic(), "done", 0
        try:
            revision = (await board.commit(ops, conditions=conditions)).revision
        except (Rejected, Unavailable):
            outcome = "refused"
        except OutcomeUnknown:
            outcome = "unknown"
        ended = time.monotonic()
        write = Write(value, keys, started, ended, outcome, revision, expected)
        self.history.writes.append(write)

    async def read(self, board: Board, until: Callable[[], bool]) -> None:
        """Read the shared keys again and again, until told to stop."""
        while not until():
            started = time.monotonic()
            listing = await board.list("public/**")
            ended = time.monotonic()
            values = {entry.key: entry.value for entry in listing.entries}
            keys = (*PAIRS, *COUNTERS)
            shown = tuple((key, values[key]) for key in keys if key in values)
            self.history.reads.append(Read(keys, started, ended, listing.revision, shown))
            await let_pass(self.read_pause_s)

    # --- watchers ---------------------------------------------------------------------------------

    async def watch(self, board: Board, prefix: str, until: Callable[[], int | None]) -> None:
        """Watch from the beginning until `until` was delivered; begin again now and then.

        A watch is ended after a random number of revisions, and the next one begins at its token.
        """
        dice = random.Random(f"{self.seed} {prefix} {len(self.history.watches)}")
        watches: list[Watched] = []
        self.history.watches.append(watches)
        token: str | int = 0
        reached = 0
        while (end := until()) is None or reached < end:
            watched = Watched(prefix, reached)
            watches.append(watched)
            async with board.watch(prefix + "**", after=token) as watch:
                await follow(watch, watched, until, dice.randrange(10, 100))
                token = watch.position
            reached = int(token.split(":")[1])
            if watched.position != reached:
                watched.told.append(Mark(reached))

    async def read_log(self, board: Board) -> None:
        """Read the whole log as the witness."""
        self.history.log = await whole_log(board)


async def follow(
    watch: Watch, watched: Watched, until: Callable[[], int | None], count: int
) -> None:
    """Take `count` revisions, or everything up to the end that `until` names."""
    while len(watched.told) < count:
        end = until()
        if end is not None:
            watched.told += [entry_of(revised) for revised in await watch.wait_for(end)]
            return
        with anyio.move_on_after(0.2):  # to look whether there is an end by now
            watched.told.append(entry_of(await anext(watch)))


async def whole_log(board: Board) -> list[Entry]:
    """Every revision that the log still holds."""
    found: list[Entry] = []
    try:
        page = await board.log(after=0, limit=LOG_PAGE)
    except Compacted as error:
        page = await board.log(after=error.oldest - 1, limit=LOG_PAGE)
    while page:
        found += [entry_of(revised) for revised in page]
        page = await board.log(after=page[-1].revision, limit=LOG_PAGE)
    return found


def entry_of(revised: RevisionEvent) -> Entry:
    """A revision as a history keeps it."""
    changes = tuple((change.key, change.value) for change in revised.changes)
    from_revision = None if revised.epoch is None else revised.epoch.from_revision
    return Entry(revised.revision, changes, from_revision)
