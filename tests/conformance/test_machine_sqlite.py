"""The machine over the embedded engine: BLACKBOARD_EXAMPLES=5000 makes it long."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from blackboard.engines.sqlite.store import SqliteStore
from tests.conformance.machines import EXAMPLES, FEW, run_machine
from tests.tiers import few_or_many


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.mark.timeout(0)
@few_or_many(FEW, EXAMPLES)
def test_the_embedded_engine_says_what_the_model_says(
    portal: BlockingPortal, tmp_path: Path, seed: int, rounds: int
) -> None:
    """Every outcome, reading and log page agrees, and every kind of outcome came up."""
    store = portal.call(partial(SqliteStore.at, tmp_path, "memory"))
    try:
        counts = run_machine(portal, store, seed, examples=rounds)
    finally:
        portal.call(store.aclose)
    assert counts.missing() == [], counts.kinds
