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

from blackboard.client.client import Client
from blackboard.core.access import Principal
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.engines.base import Store
from blackboard.engines.redis.process import RedisProcess
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server.assembly import archive_beside, sealed
from blackboard.server.service import Service
from tests.conformance.board_suite import BoardAgents, BoardSuite
from tests.conformance.rules_board_branch import BranchRules
from tests.conformance.rules_board_read import BoardReadRules
from tests.conformance.rules_board_restore import RestoreRules
from tests.conformance.rules_board_write import BoardWriteRules
from tests.conformance.team import Team
from tests.redis_accounts import make_account
from tests.servers import server_binaries


class _Few(BoardAgents, BoardWriteRules, BoardReadRules, RestoreRules, BranchRules):
    """The rules in which values go through the engine in every way."""


_Rules: Any = BoardSuite if os.environ.get("BLACKBOARD_TEST_SEALED") else _Few


@asynccontextmanager
async def sealing(raw: Store, directory: Path, limits: Limits) -> AsyncIterator[Team]:
    """A service that seals, in front of `raw` and an archive in `directory`."""
    wrapper = LocalWrapper.of(new_master_key())
    store, archive = await sealed(raw, await archive_beside(directory), wrapper)
    async with Service(store, archive=archive, limits=limits) as service:

        async def connect(principal: Principal) -> Client:
            return Client(service.link(principal))

        yield Team(service, connect)


class TestBoardSealed(BoardSuite):
    """Nobody who uses a board notices."""

    @pytest.fixture
    async def team(self, tmp_path: Path, limits: Limits) -> AsyncIterator[Team]:
        """A service over an empty directory."""
        async with sealing(await SqliteStore.at(tmp_path, "memory"), tmp_path, limits) as team:
            yield team


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

    @pytest.fixture
    async def team(
        self, one_server: RedisProcess, tmp_path: Path, limits: Limits
    ) -> AsyncIterator[Team]:
        """A service over the server, which other tests use, too."""
        store = RedisStore.connect(make_account(one_server.url))
        for board in await store.boards():
            await store.drop(board)
        async with sealing(store, tmp_path, limits) as team:
            yield team
