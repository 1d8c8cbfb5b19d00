"""The machine over Redis and Valkey: BLACKBOARD_EXAMPLES=5000 makes it long."""

from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from blackboard.engines.redis.store import RedisStore
from tests.conformance.machines import EXAMPLES, FEW, run_machine
from tests.tiers import few_or_many


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.mark.timeout(0)
@few_or_many(FEW, EXAMPLES)
def test_redis_says_what_the_model_says(
    portal: BlockingPortal, redis_url: str, seed: int, rounds: int
) -> None:
    """Every outcome, reading and log page agrees, and every kind of outcome came up."""
    store = RedisStore.connect(redis_url)
    try:
        counts = run_machine(portal, store, seed, examples=rounds)
    finally:
        portal.call(store.aclose)
    assert counts.missing() == [], counts.kinds
