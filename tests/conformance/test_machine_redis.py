"""The machine over Redis and Valkey: BLACKBOARD_EXAMPLES=5000 makes it long."""

from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from blackboard.engines.redis.store import RedisStore
from tests.conformance.machines import EXAMPLES, ROUND, run_machine, run_walks
from tests.lowered import PATIENT
from tests.tiers import few_or_many


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def store(portal: BlockingPortal, redis_url: str) -> Iterator[RedisStore]:
    """The engine over the shared, emptied server."""
    store = RedisStore.connect(redis_url, limits=PATIENT)
    try:
        yield store
    finally:
        portal.call(store.aclose)


@pytest.mark.timeout(0)
def test_redis_says_on_every_walk_what_the_model_says(
    portal: BlockingPortal, store: RedisStore, seed: int
) -> None:
    """Every outcome, reading and log page agrees, and every kind of outcome came up."""
    counts = run_walks(portal, store, seed)
    assert counts.missing() == [], counts.kinds


@pytest.mark.timeout(0)
@few_or_many(ROUND, EXAMPLES)
def test_redis_says_what_the_model_says(
    portal: BlockingPortal, store: RedisStore, seed: int, rounds: int
) -> None:
    """The same, and Hypothesis looks for other walks."""
    run_machine(portal, store, seed, rounds)
