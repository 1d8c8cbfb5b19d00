"""The Board of `blackboard.sync`, over a real WebSocket to a real server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blackboard import sync
from blackboard.archive.sql import archive_beside
from blackboard.core.access import Principal
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server.service import Service
from tests.conformance.board_suite import EngineRules, ServiceRules
from tests.conformance.edge import serving
from tests.conformance.shared import Running, Services
from tests.conformance.through_sync import Through, in_thread


@asynccontextmanager
async def in_threads(directory: Path, limits: Limits) -> AsyncIterator[Running]:
    """A service over an empty directory, and a socket before it.

    Each principal has a connection and a token of its own; all share one loop.
    """
    store, archive = await SqliteStore.at(directory), await archive_beside(directory)
    async with (
        Service(store, archive=archive, limits=limits) as service,
        serving(service) as edge,
    ):

        @asynccontextmanager
        async def connect(principal: Principal) -> AsyncIterator[Any]:
            token = edge.token(principal)
            client = await in_thread(partial(sync.connect, edge.url, token=token, limits=limits))
            try:
                yield Through(client)
            finally:
                await in_thread(client.close)

        yield Running(service, connect)


@pytest.fixture(scope="module")
async def services(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Services]:
    """Behind a socket."""
    async with Services(tmp_path_factory, in_threads) as services:
        yield services


class TestBoardSync(EngineRules, ServiceRules):
    """Every call is made in a thread."""


ENDED_FROM_OUTSIDE = (
    "test_a_cancelled_block_returns_its_task",
    "test_a_claim_can_be_cancelled_at_any_moment",
    "test_leases_end_and_their_blocks_are_cancelled",
    "test_who_stops_waiting_is_not_in_anybodys_way",
    "test_a_time_out_around_a_watch_does_not_end_it",
    "test_a_lost_lock_ends_the_block_where_it_waits",
    "test_an_agent_that_is_taken_over_learns_it_while_it_waits",
    "test_losing_a_task_is_reported_at_once",
)
"""Rules of blocks that are cancelled in the middle. A thread cannot be: there the loss of a lease
refuses the next commit, and is raised at the end of the block (tests/unit/sync)."""
THOUGHT_IS_AWAITED = (
    "test_memory_and_state_of_a_cut_belong_together",
    "test_what_is_too_large_to_go_with_a_delivery_goes_after_the_cut",
)
"""A function that delivers runs in a thread, so it is waited for, as one that calls a model is."""
ASYNC_SOURCE = ("test_another_upload_ends_the_first",)
"""Its source belongs to another loop."""
EQUAL_AND_NOT_THE_SAME = ("test_an_agent_does_not_act_for_others",)
"""It asks whether two boards are one object."""
for name in ENDED_FROM_OUTSIDE + THOUGHT_IS_AWAITED + ASYNC_SOURCE + EQUAL_AND_NOT_THE_SAME:
    assert hasattr(TestBoardSync, name), name
    setattr(TestBoardSync, name, None)
