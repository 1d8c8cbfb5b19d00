"""The machine notices every fault that is seeded into commit.lua."""

from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import Phase
from hypothesis.errors import Flaky

from blackboard.errors import BlackboardError
from blackboard.store.redis import RedisStore
from blackboard.store.redis_driver import connect
from blackboard.store.redis_process import RedisProcess
from tests.conformance.machines import Counts, run_round
from tests.conformance.mutants import MUTANTS, Mutant

ROUNDS_MAX = 40
"""Rounds of the machine within which a mutant must be found out; one to three are usual."""


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def server_url(portal: BlockingPortal) -> Iterator[str]:
    """A server for this module: the mutants are of the script, not of the server."""
    with portal.wrap_async_context_manager(RedisProcess()) as server:
        yield server.url


def is_found_out(portal: BlockingPortal, store: RedisStore, seed: int) -> bool:
    """Whether the machine notices within ROUNDS_MAX rounds that `store` is faulty."""
    counts = Counts()
    for number in range(ROUNDS_MAX):
        try:
            run_round(portal, store, counts, seed + number, phases=(Phase.generate,))
        except (AssertionError, BlackboardError, Flaky):
            return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_found_out(
    portal: BlockingPortal, server_url: str, seed: int, mutant: Mutant
) -> None:
    """A fault in the script makes the engine differ from the model."""
    driver, location = connect(server_url)
    store = RedisStore(driver, location, commit=mutant.script())
    try:
        assert is_found_out(portal, store, seed), mutant
    finally:
        portal.call(store.aclose)


def test_names_of_mutants_differ() -> None:
    """So that a failure names one of them."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
