"""Writers, readers and watchers over WebSockets while processes are killed under them.

Everything is recorded, and the history is then held to every guarantee. BLACKBOARD_GUARANTEE_WRITES
is the number of commits of each writer: 100 takes seconds, 10,000 a night.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.core import access
from tests.guarantees.checkers import check
from tests.guarantees.history import History
from tests.guarantees.processes import ServiceProcess
from tests.guarantees.traffic import Recorder
from tests.redis_process import RedisProcess
from tests.waiting import wait_until

WRITES = int(os.environ.get("BLACKBOARD_GUARANTEE_WRITES") or 120)
WRITERS = ("ada", "bob", "eve", "joe")
WATCHED = ("public/", "public/pair/", "public/own/", "public/counter/")
READERS = 2
FAULTS = 3
PATIENCE_S = 60 + WRITES / 2
pytestmark = pytest.mark.timeout(3 * PATIENCE_S)

Fault = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class Run:
    """One run: the participants connect to the services in turn."""

    services: Sequence[ServiceProcess]
    seed: int
    recorder: Recorder = field(init=False)
    end: int | None = None
    """The last revision, once all writers are done."""

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.seed)

    async def go(self, faults: Sequence[Fault]) -> History:
        """Let everybody work while `faults` happen; returns what was recorded."""
        async with AsyncExitStack() as clients:

            async def board(agent: str, number: int) -> Board:
                service = self.services[number % len(self.services)]
                connected = service.connect(access.agent(agent))
                return (await clients.enter_async_context(connected)).board("main")

            writing = [await board(name, i) for i, name in enumerate(WRITERS)]
            reading = [await board("reader", i) for i in range(READERS)]
            watching = [await board("watcher", i) for i in range(len(WATCHED))]
            with anyio.fail_after(PATIENCE_S):
                await self._work(writing, reading, watching, faults)
                await self.recorder.read_log(await self._operator(clients))
        return self.recorder.history

    async def _operator(self, clients: AsyncExitStack) -> Board:
        """Who sees every revision, also those that only end the lane of a refused retry."""
        connected = self.services[0].connect(access.operator())
        return (await clients.enter_async_context(connected)).board("main")

    async def _work(
        self,
        writing: list[Board],
        reading: list[Board],
        watching: list[Board],
        faults: Sequence[Fault],
    ) -> None:
        recorder = self.recorder
        async with anyio.create_task_group() as others:
            for board in reading:
                others.start_soon(recorder.read, board, lambda: self.end is not None)
            for board, prefix in zip(watching, WATCHED, strict=True):
                others.start_soon(recorder.watch, board, prefix, lambda: self.end)
            async with anyio.create_task_group() as writers:
                for board, name in zip(writing, WRITERS, strict=True):
                    writers.start_soon(recorder.write, board, name, WRITES)
                writers.start_soon(self._break, faults)
            self.end = (await writing[0].head()).revision

    async def _break(self, faults: Sequence[Fault]) -> None:
        """Let each fault happen when another part of the work was done."""
        writes, total = self.recorder.history.writes, WRITES * len(WRITERS)
        for number, fault in enumerate(faults, 1):
            threshold = total * number // (len(faults) + 1)

            async def is_reached(threshold: int = threshold) -> bool:
                return len(writes) >= threshold

            await wait_until(is_reached, timeout_s=PATIENCE_S)
            await fault()


def assert_kept(history: History) -> None:
    """Every guarantee holds, and the history is one in which it could have been broken."""
    assert check(history) == {}
    outcomes = Counter(write.outcome for write in history.writes)
    assert sum(outcomes.values()) == WRITES * len(WRITERS)
    assert outcomes["done"] > sum(outcomes.values()) / 3
    assert outcomes["refused"] > 0
    assert len(history.reads) > WRITES / 10
    assert all(len(watches) > 1 for watches in history.watches[:1])
    told = sum(len(watched.entries) for watches in history.watches for watched in watches)
    assert told >= len(history.log)


def killing(service: ServiceProcess) -> Fault:
    """Kill a service and start it again."""

    async def fault() -> None:
        await service.kill()
        await service.start()

    return fault


def killing_redis(redis: RedisProcess) -> Fault:
    """Kill a Redis and start it again."""

    async def fault() -> None:
        await redis.kill()
        await redis.restart()

    return fault


async def test_all_guarantees_hold_while_nothing_breaks(tmp_path: Path, seed: int) -> None:
    async with ServiceProcess("sqlite", tmp_path) as service:
        assert_kept(await Run([service], seed).go([]))


async def test_all_guarantees_hold_while_the_embedded_service_is_killed(
    tmp_path: Path, seed: int
) -> None:
    async with ServiceProcess("sqlite", tmp_path) as service:
        history = await Run([service], seed).go([killing(service)] * FAULTS)
    assert_kept(history)


async def test_all_guarantees_hold_while_two_services_and_their_redis_are_killed(
    tmp_path: Path, redis_binary: Path, seed: int
) -> None:
    async with RedisProcess(redis_binary) as redis:
        first = ServiceProcess(redis.url, tmp_path / "first")
        second = ServiceProcess(redis.url, tmp_path / "second", secret=first.secret)
        async with first, second:
            faults = [killing(first), killing(second), killing_redis(redis)]
            random.Random(seed).shuffle(faults)
            history = await Run([first, second], seed).go(faults)
    assert_kept(history)
    epochs = [entry for entry in history.log if entry.from_revision is not None]
    assert len(epochs) == 1


async def test_a_frozen_service_does_not_delay_another_one(
    tmp_path: Path, redis_binary: Path, seed: int
) -> None:
    """It keeps its connections and answers nothing while the other goes on; then it follows."""
    async with RedisProcess(redis_binary) as redis:
        first = ServiceProcess(redis.url, tmp_path / "first")
        second = ServiceProcess(redis.url, tmp_path / "second", secret=first.secret)
        async with first, second:
            run = Run([first, second], seed)

            async def freeze() -> None:
                second.pause()
                writes = run.recorder.history.writes
                enough = len(writes) + 20

                async def others_went_on() -> bool:
                    return len(writes) >= enough

                await wait_until(others_went_on, timeout_s=PATIENCE_S)
                second.resume()

            assert_kept(await run.go([freeze]))
