"""The power goes while Redis or Valkey writes its append-only file, at level "disk".

With `appendfsync always` a server syncs before it answers. One commit is under way at a time here,
so the file's length at each answer is what was synced for it; behind that may lie any beginning of
what was written later, or zeros. BLACKBOARD_TEST_CUTS=500 makes it long.
"""

import os
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from blackboard.core.commit import Entry, LogEntry, Put
from blackboard.core.state import State, evolve
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import Unavailable
from tests.conformance.rules_log import whole_log
from tests.conformance.writer import Writer, packed
from tests.faults.sqlite_child import random_ops
from tests.proof import Layer
from tests.redis_process import RedisProcess

CUTS = int(os.environ.get("BLACKBOARD_TEST_CUTS", "16"))
COMMITS = 60
BOARD = "power"
ZERO_BYTES = 1024
LAST = 5
"""Commits in which every byte may be the last one that is left."""


@dataclass(frozen=True)
class Kept:
    """What a server left: its directory, its file, and the file's length after each commit."""

    binary: Path
    directory: Path
    file: Path
    synced: list[int]
    log: list[LogEntry]
    first: State

    def whole_commits(self, size: int) -> int:
        """How many commits were acknowledged when so much was synced."""
        return sum(length <= size for length in self.synced)


def append_only_file(directory: Path) -> Path:
    """The file to which a server appends: in 7.0 and later one of a set."""
    [found] = (*directory.glob("appendonlydir/*.incr.aof"),)
    return found


@pytest.fixture
async def kept(redis_binary: Path, tmp_path: Path, seed: int) -> Kept:
    """A server was killed after so many commits."""
    dice, directory, synced = random.Random(seed), tmp_path / "whole", list[int]()
    async with RedisProcess(redis_binary, directory=directory) as server:
        store = RedisStore.connect(server.url)
        ada = await Writer.open(store, BOARD)
        first = State((await store.open(BOARD)).epoch)
        file = append_only_file(directory)
        while len(synced) < COMMITS:
            ops = random_ops(dice)
            await ada.commit(*ops)
            synced.append(file.stat().st_size)
        log = await whole_log(store, BOARD)
        await store.aclose()
        await server.kill()
    return Kept(redis_binary, directory, file, synced, [*log], first)


@asynccontextmanager
async def came_back(kept: Kept, target: Path, content: bytes) -> AsyncIterator[RedisStore]:
    """A server with that file. Errors: Unavailable when it does not start with it."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(kept.directory, target)
    append_only_file(target).write_bytes(content)
    async with RedisProcess(kept.binary, directory=target) as server:
        store = RedisStore.connect(server.url)
        try:
            yield store
        finally:
            await store.aclose()


async def found_in(store: RedisStore) -> tuple[list[LogEntry], tuple[Entry, ...]]:
    """The log up to the epoch that began with the server, and all entries."""
    await store.open(BOARD)
    log = await whole_log(store, BOARD)
    entries = (await store.list(BOARD, "", limit=1024)).entries
    return [entry for entry in log if entry.epoch is None], entries


def entries_after(kept: Kept, log: list[LogEntry]) -> tuple[Entry, ...]:
    """What the board holds when its log is that."""
    state = State(kept.first.epoch)
    for entry in log:
        evolve(state, entry)
    return tuple(state.entries.values())


async def test_nothing_that_was_acknowledged_is_lost_with_the_power(
    kept: Kept, tmp_path: Path, seed: int
) -> None:
    """Cut anywhere, mostly in the last commits; a commit is there whole or not at all."""
    dice, whole = random.Random(seed), kept.file.read_bytes()
    with Layer("power", seeds=[seed]) as layer:
        for number in range(CUTS):
            least = kept.synced[-LAST - 1] if number % 2 else kept.synced[0]
            size = dice.randint(least, len(whole))
            async with came_back(kept, tmp_path / "cut", whole[:size]) as store:
                log, entries = await found_in(store)
            assert log == kept.log[: kept.whole_commits(size)]
            assert entries == entries_after(kept, log)
            layer.faults["cut"] += 1
            layer.operations += len(log)


async def test_what_was_lost_in_the_middle_of_a_commit_does_not_come_back(
    kept: Kept, tmp_path: Path
) -> None:
    """Redis keeps the beginning of a transaction that lost its end. No other one may end it."""
    whole, target = kept.file.read_bytes(), tmp_path / "cut"
    cut = whole.index(b"HSET", whole.rindex(b"MULTI")) + 10  # behind XADD, in the first HSET
    async with came_back(kept, target, whole[:cut]) as store:
        lost, _ = await found_in(store)
        assert lost == kept.log[: kept.whole_commits(cut)] != kept.log
        await (await Writer.open(store, BOARD, "bob")).commit(Put("public/later", packed(1)))
        found = await found_in(store)
    async with (
        RedisProcess(kept.binary, directory=target) as server,
        aclosing(RedisStore.connect(server.url)) as store,
    ):
        assert await found_in(store) == found


async def test_zeros_behind_what_was_synced_are_refused_or_cut_off(
    kept: Kept, tmp_path: Path, seed: int
) -> None:
    """As a file system leaves them that had lengthened the file and not written it yet."""
    dice, whole, refusals = random.Random(seed), kept.file.read_bytes(), list[str]()
    for _ in range(CUTS // 4):
        size = dice.randint(kept.synced[-LAST - 1], len(whole))
        try:
            async with came_back(kept, tmp_path / "cut", whole[:size] + bytes(ZERO_BYTES)) as store:
                log, entries = await found_in(store)
        except Unavailable as error:
            refusals.append(error.reason)
            continue
        assert log == kept.log[: kept.whole_commits(size)]
        assert entries == entries_after(kept, log)
    assert all("append only file" in reason for reason in refusals), refusals
