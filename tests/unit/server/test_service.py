"""The life of a service: start, background work, failing start, stop."""

import asyncio
import logging
from pathlib import Path

import anyio
import pytest

from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import EngineRefused, Unavailable
from blackboard.limits import Limits
from blackboard.server.service import Service
from tests.unit.server.hooked import HookedStore, client_of, service_over
from tests.waiting import wait_until

PATIENCE_S = 60.0


async def test_commits_in_flight_are_carried_out_before_the_engine_closes(tmp_path: Path) -> None:
    gate = anyio.Event()
    with anyio.fail_after(PATIENCE_S):
        async with service_over(tmp_path) as (service, store):
            board = client_of(service).board("main")
            await board.head()
            store.hook("before commit", gate.wait)
            waiting = [asyncio.create_task(board.increment("public/n")) for _ in range(5)]
            await anyio.wait_all_tasks_blocked()
            asyncio.get_running_loop().call_soon(gate.set)
        assert sorted(await asyncio.gather(*waiting)) == [1, 2, 3, 4, 5]
    async with service_over(tmp_path) as (service, _):
        assert await client_of(service).board("main").get("public/n") == 5


async def test_a_service_that_cannot_start_lets_go_of_its_engine(tmp_path: Path) -> None:
    store = await HookedStore.at(tmp_path)

    async def evicting() -> None:
        raise EngineRefused("maxmemory-policy", "allkeys-lru", "noeviction")

    store.hook("before facts", evicting)
    with pytest.raises(EngineRefused):
        async with Service(store):
            pass
    again = await SqliteStore.at(tmp_path)  # nobody owns the directory any more
    await again.aclose()


@pytest.mark.limits(engine_check_interval_ms=5, log_kept_revisions=10)
async def test_the_log_is_trimmed_while_the_service_runs(tmp_path: Path, limits: Limits) -> None:
    async with Service(await SqliteStore.at(tmp_path), limits=limits) as service:
        board = client_of(service).board("main")
        for _ in range(30):
            await board.increment("public/n")

        async def is_trimmed() -> bool:
            return 10 <= (await board.head()).log_entries <= 11

        await wait_until(is_trimmed)


@pytest.mark.limits(engine_check_interval_ms=5)
async def test_background_work_survives_an_engine_that_is_away(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    async def away_at_first() -> None:
        looks.append(1)
        if 2 <= len(looks) <= 4:
            raise Unavailable("engine", "away")

    store = await HookedStore.at(tmp_path)
    store.hook("before facts", away_at_first)
    async with Service(store, limits=limits):

        async def looked_on() -> bool:
            return len(looks) > 6

        await wait_until(looked_on)
    assert "away" in caplog.text


@pytest.mark.limits(engine_check_interval_ms=5)
async def test_background_work_that_has_a_bug_is_reported(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    async def bug() -> None:
        looks.append(1)
        if len(looks) > 1:
            raise ZeroDivisionError

    store = await HookedStore.at(tmp_path)
    store.hook("before facts", bug)
    async with Service(store, limits=limits):

        async def is_reported() -> bool:
            return any(record.levelno == logging.CRITICAL for record in caplog.records)

        await wait_until(is_reported)
    assert "look ended" in caplog.text


async def test_statistics_count_what_was_done(tmp_path: Path) -> None:
    async with service_over(tmp_path) as (service, _):
        first, second = [client_of(service).board(name) for name in ("a", "b")]
        await first.put("public/a", 1)
        await second.put("public/a", 1)
        with pytest.raises(Exception, match="conflict"):
            await second.put("public/a", 1, expected=7)
        async with first.watch("**"), first.watch("**"):
            found = service.statistics()
        assert (found.boards, found.watchers, found.commits, found.refused) == (2, 2, 3, 1)
