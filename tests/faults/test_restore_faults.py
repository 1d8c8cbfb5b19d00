"""kill -9 in the middle of a restore or of making a branch: the old board or the new one.

BLACKBOARD_KILLS=100 makes it long.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from blackboard.core.commit import Append, Epoch, LogEntry
from blackboard.core.history import check_sequence
from blackboard.core.state import State, evolve
from blackboard.engines.base import Store
from blackboard.errors import Unavailable
from tests.conformance.rules_log import whole_log
from tests.conformance.writer import Writer, packed
from tests.faults.restore_child import (
    BOARD,
    BRANCHED,
    ENTRIES,
    HALF,
    PAGE,
    SEED,
    content,
    open_engine,
    pages,
)
from tests.redis_process import RedisProcess

KILLS = int(os.environ.get("BLACKBOARD_KILLS", "4"))
PAGES = len(ENTRIES) // PAGE


class Victim:
    """What is killed: the process that works on the engine, or the server under it."""

    def __init__(self, where: str, server: RedisProcess | None = None) -> None:
        self.where = where
        self._server = server

    async def dies(self, child: Process) -> None:
        """kill -9, and what is needed to look at what is left."""
        if self._server is not None:
            await self._server.kill()
        child.kill()
        if self._server is not None:
            await self._server.restart()


async def run_and_kill(victim: Victim, what: str, lines: int, dice: random.Random) -> list[int]:
    """Let a child work, and the victim die after so many lines and a moment; all that it told."""
    command = [sys.executable, "-m", "tests.faults.restore_child", victim.where, what]
    told: list[int] = []
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        output = BufferedByteReceiveStream(child.stdout)
        with suppress(anyio.IncompleteRead):  # the end
            while True:
                told.append(int(await output.receive_until(b"\n", 100)))
                if len(told) == lines:
                    until = time.perf_counter() + dice.random() / 50
                    while time.perf_counter() < until:  # some moment of what it does now
                        pass
                    await victim.dies(child)
    assert len(told) >= lines, "the child ended by itself"
    return told


@asynccontextmanager
async def opened(where: str) -> AsyncIterator[Store]:
    """The engine, as the process after the dead one finds it."""
    store = await open_engine(where)
    try:
        yield store
    finally:
        await store.aclose()


async def check_restored(store: Store) -> int:
    """The board is what one restore left, and its log adds up to it; which one."""
    reading = await store.list(BOARD, "", limit=1000)
    log: list[LogEntry] = await whole_log(store, BOARD)
    number = int([entry.note for entry in log if entry.note][-1])
    assert {entry.key: entry.value for entry in reading.entries} == content(number)
    assert check_sequence(0, log) == reading.revision
    state = State(Epoch(1, "first"))
    for entry in log:
        evolve(state, entry)
    assert tuple(state.entries.values()) == reading.entries
    assert state.epoch == (await store.open(BOARD)).epoch
    return reading.revision


async def check_branched(store: Store) -> bool:
    """The branch is complete, or absent and can be made again; returns whether it was there."""
    there = True
    try:
        await store.open(BRANCHED)
    except Unavailable:
        there = False
        assert BRANCHED not in await store.boards()
        await store.seed(BRANCHED, SEED, pages())
    after, found = None, 0
    while True:
        page = await store.list(BRANCHED, "", after=after, limit=1000)
        assert page.entries == tuple(ENTRIES[found : found + len(page.entries)])
        found += len(page.entries)
        after = page.next_key
        if after is None:
            break
    assert found == len(ENTRIES)
    head = await store.open(BRANCHED)
    begun = head.epoch.revision if head.epoch == SEED.epoch else head.epoch.from_revision
    assert begun == SEED.epoch.revision
    ada = await Writer.open(store, BRANCHED)
    assert (await ada.commit(Append("public/list", packed(1)))).results == (
        "public/list/0000000007",
    )
    return there


class RestoreFaults:
    """What both engines promise; subclasses provide `victim`, so that one runs once per server."""

    @pytest.fixture
    def victim(self) -> Any:
        """What dies."""
        raise NotImplementedError

    async def test_a_restore_leaves_one_content(self, victim: Victim, seed: int) -> None:
        """Every acknowledged commit is there. Every other commit is there completely or not at
        all."""
        dice, newest = random.Random(seed), 0
        for _ in range(KILLS):
            told = await run_and_kill(victim, "restore", dice.randint(1, 12), dice)
            async with opened(victim.where) as store:
                revision = await check_restored(store)
                assert revision >= max([newest, *told])
                newest = revision

    async def test_a_branch_is_whole_or_not_there(self, victim: Victim, seed: int) -> None:
        """An absent board can then be made again."""
        dice, outcomes = random.Random(seed), set()
        rounds = [("seed", dice.randint(1, PAGES)) for _ in range(KILLS)]
        for what, lines in [("seed", PAGES + 1), ("half", HALF // PAGE + 1), *rounds]:
            await run_and_kill(victim, what, lines, dice)
            async with opened(victim.where) as store:
                outcomes.add(await check_branched(store))
                await store.drop(BRANCHED)
        assert outcomes == {True, False}


class TestEmbedded(RestoreFaults):
    """The embedded engine's process."""

    @pytest.fixture
    def victim(self, tmp_path: Path) -> Victim:
        """It dies with its engine."""
        return Victim(str(tmp_path))


class TestRedis(RestoreFaults):
    """A client of Redis, or the Redis server itself."""

    @pytest.fixture(params=["client", "server"])
    async def victim(
        self, request: pytest.FixtureRequest, redis_binary: Path
    ) -> AsyncIterator[Victim]:
        """One of them dies."""
        async with RedisProcess(redis_binary) as server:
            yield Victim(server.url, server if request.param == "server" else None)
