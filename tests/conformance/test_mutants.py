"""The machine notices every fault that is seeded into commit.lua.

It does so without luck: each mutant meets the same walks, one after the other, in every run. That
a mutant is found is therefore a property of the walks, and changes only when somebody changes what
is drawn (tests/conformance/drawing.py). The walk that was the first to find it is tried first.
"""

import sys
from collections.abc import Iterator
from itertools import chain

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from blackboard.engines.redis.driver import connect
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import BlackboardError
from tests.conformance.machines import Counts, walk
from tests.conformance.mutants import MUTANTS, Mutant
from tests.lowered import PATIENT
from tests.redis_process import RedisProcess, RedisSettings

WALKS_MAX = 1_200
"""Walks in which a mutant must be found out: most take ten, the rarest some hundred."""
WALKS_SOUND = 200
"""Walks in which the script as it is must not be found faulty, beside those that find mutants."""
SETTINGS = RedisSettings(fsync="no", options={"appendonly": "no"})


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def server_url(portal: BlockingPortal) -> Iterator[str]:
    """A server for this module: the mutants are of the script, not of the server."""
    with portal.wrap_async_context_manager(RedisProcess(settings=SETTINGS)) as server:
        yield server.url


def walk_that_finds(portal: BlockingPortal, store: RedisStore, known: int) -> int | None:
    """The number of a walk that notices that `store` is faulty; None if none does."""
    counts = Counts()
    for number in chain([known], range(WALKS_MAX)):
        try:
            walk(portal, store, counts, number)
        except (AssertionError, BlackboardError):
            return number
    return None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_found_out(portal: BlockingPortal, server_url: str, mutant: Mutant) -> None:
    """A fault in the script makes the engine differ from the model."""
    driver, location = connect(server_url)
    store = RedisStore(driver, location, commit=mutant.script())
    try:
        found = walk_that_finds(portal, store, mutant.walk)
        assert found is not None, mutant
        sys.stdout.write(f"found by walk {found}, known as {mutant.walk}\n")
    finally:
        portal.call(store.aclose)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_walks_find_nothing_wrong(portal: BlockingPortal, server_url: str) -> None:
    """A machine that cries at everything would find every mutant, too."""
    store = RedisStore.connect(server_url, limits=PATIENT)
    counts = Counts()
    try:
        for number in {*range(WALKS_SOUND), *(mutant.walk for mutant in MUTANTS)}:
            walk(portal, store, counts, number)
    finally:
        portal.call(store.aclose)
    assert counts.missing() == [], counts.kinds


def test_names_of_mutants_differ() -> None:
    """So that a failure names one of them."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
