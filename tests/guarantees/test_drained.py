"""SIGTERM to services under load, as when their pods are replaced: no commit fails for its caller,
no watcher misses or repeats a change, no lock is lost, no edit; and the service ends with 0."""

import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

import blackboard
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.integrity.tokens import issue, new_secret
from blackboard.limits import DRAIN_DELAY_MS_MAX
from tests.guarantees.balancer import Balancer
from tests.guarantees.drain_load import Team, check
from tests.guarantees.processes import HOUR_MS, ServiceProcess
from tests.redis_process import RedisProcess
from tests.waiting import TIMEOUT_S, wait_until

SERVICES = 3
TIMES = 10
"""What each member of the team does before and after each stop."""
DELAY_MS = 500
"""Several times what the balancer takes to notice, unless the machine is very busy."""


@asynccontextmanager
async def three_services(
    path: Path, redis: RedisProcess
) -> AsyncIterator[tuple[list[ServiceProcess], Balancer]]:
    """Over one Redis, behind a balancer."""
    secret = new_secret()
    services = [
        ServiceProcess(redis.url, path / str(number), secret, drain_delay_ms=DELAY_MS)
        for number in range(SERVICES)
    ]
    async with AsyncExitStack() as stack:
        for service in services:
            await stack.enter_async_context(service)
        ports = [service.port for service in services]
        balancer = await stack.enter_async_context(Balancer(ports))
        await balancer.all_ready()
        yield services, balancer


@asynccontextmanager
async def at_work(team: Team) -> AsyncIterator[Team]:
    """The team, from its beginning to its end."""
    try:
        await team.begin()
        yield team
    finally:
        await team.aclose()


async def test_services_are_replaced_one_after_the_other(
    tmp_path: Path, redis_binary: Path
) -> None:
    """Three over one Redis behind a balancer, under load."""
    async with (
        RedisProcess(redis_binary) as redis,
        three_services(tmp_path, redis) as (services, balancer),
    ):
        token = issue(services[0].secret, access.operator(), HOUR_MS)

        def connect() -> AbstractAsyncContextManager[Client]:
            return blackboard.connect(balancer.url, token=token)

        async with at_work(Team(connect)) as team:
            await team.works(TIMES)
            for service in services:
                assert service.port in balancer.sent, "nobody was connected to it"
                assert await service.stop() == 0
                await team.works(TIMES)
                await service.start()
                await balancer.all_ready()
            await check(team, await team.end())


async def test_the_embedded_service_is_replaced(tmp_path: Path) -> None:
    """One with its directory: who works meanwhile waits, and that is all."""
    async with (
        ServiceProcess("sqlite", tmp_path) as service,
        at_work(Team(service.connect)) as team,
    ):
        for _ in range(SERVICES):
            await team.works(TIMES)
            assert await service.stop() == 0
            await service.start()
        await team.works(TIMES)
        await check(team, await team.end())


async def test_it_is_not_ready_before_it_stops(tmp_path: Path) -> None:
    """During `drain_delay_ms` everything goes on, new connections too; a second signal ends it."""
    service = ServiceProcess("sqlite", tmp_path, drain_delay_ms=DRAIN_DELAY_MS_MAX)
    ready = f"http://127.0.0.1:{service.port}/readyz"
    asking = httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S)
    async with service, service.connect() as old, asking as http:
        await old.board("main").put("public/a", 1)

        async def is_withdrawn() -> bool:
            return (await http.get(ready)).status_code == 503

        assert not await is_withdrawn()
        service.send_signal(signal.SIGTERM)
        await wait_until(is_withdrawn)
        assert (await http.get(ready)).json()["reason"] == "stopping"
        assert (await http.get(ready.replace("readyz", "healthz"))).status_code == 200
        await old.board("main").put("public/a", 2)
        async with service.connect() as new:
            await new.board("main").put("public/a", 3)
        assert await service.stop() == 0
        with pytest.raises(httpx.ConnectError):
            await http.get(ready)
