"""A process that commits to embedded boards until it is killed: `sqlite_child.py DIR SEED BOARDS`.

It prints one line for each acknowledged commit, after the acknowledgement: board, revision, digest.
Of several boards, two stay open: nearly each commit opens one, while others are closed.
"""

import asyncio
import os
import random
import sys

from blackboard.core.commit import (
    Append,
    Commit,
    CommitId,
    Committed,
    Delete,
    DeletePrefix,
    Grant,
    Increment,
    Op,
    Put,
)
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.wire.codec import encode_value, prepare
from tests.lowered import lowered

BOARD = "crash"
WRITERS = 8
FORGETFUL = lowered(boards_whole_keys=1, boards_cache_bytes=1, tablet_keys_max=3)
"""Tablets of few entries, which are cut, joined, evicted and read again all the time."""
FEW_OPEN = lowered(FORGETFUL, boards_unused_max=1, boards_unused_ms=1)


def names(boards: int) -> list[str]:
    """The boards that it commits to; the first one is BOARD."""
    return [BOARD, *(f"{BOARD}-{number}" for number in range(1, boards))]


def random_op(dice: random.Random) -> Op:
    """Any kind of operation, on few keys, with values from one byte to several pages."""
    key = f"public/k/{dice.randrange(40)}"
    value = encode_value(dice.randbytes(dice.choice((1, 100, 300, 9_000))))
    kind = dice.randrange(12)
    if kind == 0:
        return Delete(key)
    if kind == 1:
        return DeletePrefix(f"public/d/{dice.randrange(4)}")
    if kind == 2:
        return Grant(f"public/lease/{dice.randrange(4)}", "ada", 0)
    if kind == 3:
        return Increment(f"public/count/{dice.randrange(4)}", 1)
    if kind in (4, 5):
        return Append(f"public/d/{dice.randrange(4)}", value)
    return Put(key, value, dice.choice((None, None, 60_000)))


def random_ops(dice: random.Random) -> tuple[Op, ...]:
    """One to four of them, not all removals: a commit that removes nothing makes no revision."""
    ops = [random_op(dice) for _ in range(dice.randint(1, 4))]
    if all(isinstance(op, Delete | DeletePrefix) for op in ops):
        ops.append(Increment("public/count/0", 1))
    return tuple(ops)


async def write(
    store: SqliteStore, epochs: dict[str, str], number: int, dice: random.Random
) -> None:
    """Commit one to four operations at a time to any of the boards, for ever."""
    incarnation = f"{os.getpid()}-{dice.random()}"
    step = 0
    while True:
        step += 1
        name = CommitId(f"agent{number}", 0, incarnation, step)
        ops = random_ops(dice)
        board = dice.choice(list(epochs))
        prepared = prepare(Commit(name, epochs[board], ops))
        [outcome] = await store.commit(board, [prepared])
        assert isinstance(outcome, Committed), outcome
        sys.stdout.write(f"{board} {outcome.revision} {prepared.digest.hex()}\n")
        sys.stdout.flush()


async def main(directory: str, seed: str, boards: str) -> None:
    """Open the store and let all writers loose."""
    store = await SqliteStore.at(directory, limits=FEW_OPEN)
    epochs = {name: (await store.open(name)).epoch.id for name in names(int(boards))}
    dice = random.Random(seed)
    writers = (write(store, epochs, i, dice) for i in range(WRITERS))
    await asyncio.gather(*writers)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
