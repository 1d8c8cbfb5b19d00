"""The Board of a service that seals what is private, over both engines and an archive.

Over Redis the rules are tried in which values go through the engine; all of them with
BLACKBOARD_TEST_SEALED=all.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from redis import Redis

from blackboard.archive.sql import archive_beside
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.engines.base import ServesValues, Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server.assembly import sealed
from blackboard.server.service import Service
from tests.conformance.board_suite import BoardAgents, BoardSuite
from tests.conformance.rules_board_branch import BranchRules
from tests.conformance.rules_board_read import BoardReadRules
from tests.conformance.rules_board_restore import RestoreRules
from tests.conformance.rules_board_write import BoardWriteRules
from tests.conformance.shared import Running, Services, in_this_process
from tests.lowered import PATIENT
from tests.redis_accounts import make_account
from tests.redis_process import RedisProcess
from tests.servers import server_binaries


class _Few(BoardAgents, BoardWriteRules, BoardReadRules, RestoreRules, BranchRules):
    """The rules in which values go through the engine in every way."""


_Rules: Any = BoardSuite if os.environ.get("BLACKBOARD_TEST_SEALED") else _Few


@asynccontextmanager
async def sealing(raw: Store, directory: Path, limits: Limits) -> AsyncIterator[Running]:
    """A service that seals, in front of `raw` and an archive in `directory`."""
    wrapper = LocalWrapper.of(new_master_key())
    logs = raw if isinstance(raw, ServesValues) else None
    store, archive = await sealed(raw, await archive_beside(directory, limits, logs), wrapper)
    async with Service(store, archive=archive, limits=limits) as service:
        yield in_this_process(service)


class TestBoardSealed(BoardSuite):
    """Nobody who uses a board notices."""

    @pytest.fixture(scope="class")
    async def services(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Services]:
        """Over an empty directory."""

        @asynccontextmanager
        async def opening(directory: Path, limits: Limits) -> AsyncIterator[Running]:
            store = await SqliteStore.at(directory, "memory")
            async with sealing(store, directory, limits) as running:
                yield running

        async with Services(tmp_path_factory, opening) as services:
            yield services


@pytest.fixture(scope="module")
def one_server() -> Iterator[RedisProcess]:
    """A server of one kind: what seals is in front of it, and the same for all of them."""
    binary = server_binaries()[0].path
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(RedisProcess(binary)) as server,
    ):
        yield server


@pytest.mark.redis
class TestBoardSealedRedis(_Rules):  # type: ignore[misc]
    """Nor over Redis, as the account that may do what is needed only."""

    @pytest.fixture(scope="class")
    async def services(
        self, one_server: RedisProcess, tmp_path_factory: pytest.TempPathFactory
    ) -> AsyncIterator[Services]:
        """Over the server, which is emptied for each."""

        @asynccontextmanager
        async def opening(directory: Path, limits: Limits) -> AsyncIterator[Running]:
            with Redis.from_url(one_server.url) as client:
                client.flushall()
            store = RedisStore.connect(make_account(one_server.url), limits=PATIENT)
            async with sealing(store, directory, limits) as running:
                yield running

        async with Services(tmp_path_factory, opening) as services:
            yield services
