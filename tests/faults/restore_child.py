"""A process that makes or restores a board until it is killed: `restore_child.py ENGINE WHAT`.

ENGINE is a directory or a Redis URL. WHAT is "seed": make BRANCH of ENTRIES, a line per page;
"half": the same, and stop in the middle of it; or "restore": restore BOARD from one content to the
next for ever, a line per answer.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path

from blackboard.core.commit import (
    BRANCH,
    RESTORE,
    Commit,
    CommitId,
    Committed,
    Delete,
    Entry,
    Epoch,
    Head,
    Op,
    PutBack,
    Seed,
)
from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.wire.codec import encode_value, prepare

BOARD, BRANCHED = "restored", "branched"
KEYS = [f"public/k/{number:03d}" for number in range(120)]
PAGE = 200
ENTRIES = [
    Entry(f"public/{n:05d}", encode_value(n), n + 1, n + 1, "ada", 1_000, None)
    for n in range(4_000)
]
SEED = Seed(Epoch(1, "branch", BRANCH, 4_000, 4_001), 1_000, (("public/list", 7),))


HALF = len(ENTRIES) // PAGE // 2 * PAGE


def content(number: int) -> dict[str, bytes]:
    """What restore `number` leaves: a value for each key but for one, which is missing."""
    missing = KEYS[number % len(KEYS)]
    padding = "x" * (3_000 if number % 2 else 1)
    return {key: encode_value([number, padding]) for key in KEYS if key != missing}


def restore_to(head: Head, number: int) -> Commit:
    """The restore that leaves `content(number)`."""
    wanted = content(number)
    ops: list[Op] = [PutBack(key, wanted[key]) if key in wanted else Delete(key) for key in KEYS]
    at = head.revision + 1
    epoch = Epoch(head.epoch.number + 1, f"restore-{at}", RESTORE, head.revision, at)
    name = CommitId("ada", 0, f"restore-{at}", 1)
    return Commit(name, head.epoch.id, tuple(ops), note=str(number), begins=epoch)


def tell(number: int) -> None:
    """Print a line for the process that kills this one."""
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


async def pages(stop: int = len(ENTRIES)) -> AsyncIterator[Sequence[Entry]]:
    """ENTRIES, page by page, each told; the one that begins with entry `stop` never comes."""
    for first in range(0, len(ENTRIES), PAGE):
        tell(first)
        if first == stop:
            await asyncio.Event().wait()
        yield ENTRIES[first : first + PAGE]


async def restore(store: Store) -> None:
    """Restore for ever."""
    for number in count((await store.open(BOARD)).revision + 1):
        head = await store.open(BOARD)
        [outcome] = await store.commit(BOARD, [prepare(restore_to(head, number))])
        assert isinstance(outcome, Committed), outcome
        tell(outcome.revision)


async def open_engine(where: str) -> Store:
    """The engine at a directory or a URL."""
    if where.startswith("redis://"):
        return RedisStore.connect(where)
    return await SqliteStore.at(Path(where))


async def main(where: str, what: str) -> None:
    """Do what is asked for, and wait to be killed."""
    store = await open_engine(where)
    if what in ("seed", "half"):
        await store.seed(BRANCHED, SEED, pages(HALF if what == "half" else len(ENTRIES)))
        tell(len(ENTRIES))
        await asyncio.Event().wait()
    await restore(store)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
