"""When a process takes no more: a loop that stays late, and commits that pile up."""

import time

import pytest

from blackboard.errors import Overloaded
from blackboard.limits import DEFAULT
from blackboard.server.commit_queue import Load
from tests.lowered import lowered
from tests.waiting import wait_until

LOAD = DEFAULT.load


def test_only_a_loop_that_stays_late_counts() -> None:
    """One long pause is none; three looks in a row are; one good look ends it."""
    found = Load()
    for lag_ms, late in ((9e9, False), (0, False), (9e9, False), (9e9, False), (9e9, True)):
        found.note(lag_ms)
        assert found.is_late is late
    told = found.lateness()
    assert isinstance(told, Overloaded)
    assert told.retry_after_ms == LOAD.overload_retry_ms
    found.note(0)
    assert found.lateness() is None


@pytest.mark.parametrize(
    ("lag_ms", "late"),
    [(LOAD.loop_lag_ms_max, False), (LOAD.loop_lag_ms_max + 1, True)],
)
def test_the_edge_of_lateness(lag_ms: int, late: bool) -> None:
    found = Load()
    for _ in range(3):
        found.note(lag_ms)
    assert found.is_late is late


def test_the_edge_of_the_backlog() -> None:
    found = Load()
    found.backlog_bytes = DEFAULT.commits.backlog_bytes_max - 1
    found.check_backlog()
    found.backlog_bytes += 1
    with pytest.raises(Overloaded):
        found.check_backlog()


async def test_a_busy_loop_is_measured() -> None:
    """By a timer that comes late; `stop` ends it."""
    found = Load(lowered(loop_look_ms=30, loop_lag_ms_max=20))
    found.start()

    async def becomes_late() -> bool:
        busy_until = time.monotonic() + 0.1  # what blocks a loop is not a sleep
        while time.monotonic() < busy_until:
            pass
        return found.is_late

    async def recovers() -> bool:
        return not found.is_late

    await wait_until(becomes_late)
    assert found.lag_ms > 20
    await wait_until(recovers)
    found.stop()
    assert found._timer is None
