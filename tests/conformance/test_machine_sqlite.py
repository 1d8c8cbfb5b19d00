"""The machine over the embedded engine: BLACKBOARD_EXAMPLES=5000 makes it long."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from blackboard.engines.sqlite.store import SqliteStore
from tests.conformance.cold import ColdStore, following
from tests.conformance.machines import EXAMPLES, run_machine, run_walks


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def store(portal: BlockingPortal, tmp_path: Path) -> Iterator[SqliteStore]:
    """The engine over an empty directory."""
    store = portal.call(partial(SqliteStore.at, tmp_path, "memory"))
    try:
        yield store
    finally:
        portal.call(store.aclose)


@pytest.fixture
def cold(portal: BlockingPortal, tmp_path: Path) -> Iterator[ColdStore]:
    """The same, which reads everything that it looks up from its files."""
    with following():
        store = portal.call(partial(ColdStore.cold, tmp_path))
        try:
            yield store
        finally:
            portal.call(store.aclose)


@pytest.mark.timeout(0)
def test_the_embedded_engine_says_on_every_walk_what_the_model_says(
    portal: BlockingPortal, store: SqliteStore, seed: int
) -> None:
    """Every outcome, reading and log page agrees, and every kind of outcome came up."""
    counts = run_walks(portal, store, seed)
    assert counts.missing() == [], counts.kinds


@pytest.mark.timeout(0)
def test_an_engine_without_entries_in_memory_says_on_every_walk_what_the_model_says(
    portal: BlockingPortal, cold: ColdStore, seed: int
) -> None:
    """They are evicted before each call, and read again for it."""
    counts = run_walks(portal, cold, seed)
    assert counts.missing() == [], counts.kinds
    assert cold.evicted > 100
    assert cold.loads > 100


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_embedded_engine_says_what_the_model_says(
    portal: BlockingPortal, store: SqliteStore, seed: int
) -> None:
    """The same, and Hypothesis looks for other walks."""
    run_machine(portal, store, seed, EXAMPLES)
