"""The points of a step: an observer gets all of them, in order."""

import pytest

from blackboard.runtime.context import Context
from blackboard.runtime.journal import StepPoint, unobserved
from blackboard.runtime.runner import Runner
from blackboard.runtime.trial import MemoryBoardPort
from tests.conformance.acting import Actor, Notes

STEP = [StepPoint.HYDRATED, StepPoint.STEP_BEGUN]
CALL = [StepPoint.CALL_BEGUN, StepPoint.CALL_RETURNED, StepPoint.RECORDING, StepPoint.RECORDED]
COMMIT = [StepPoint.COMMITTING, StepPoint.COMMITTED]
WAIT = [StepPoint.SUSPENDING, StepPoint.SUSPENDED]


@pytest.mark.parametrize(
    ("calls", "waits", "expected"),
    [
        (False, False, STEP + COMMIT),
        (True, False, STEP + CALL + COMMIT),
        (True, True, STEP + CALL + WAIT),
    ],
)
async def test_an_observer_learns_where_a_step_is(
    expected: list[StepPoint], *, calls: bool, waits: bool
) -> None:
    """Also of one that ends by waiting."""
    told: list[tuple[StepPoint, str]] = []

    async def step(ctx: Context[Notes]) -> None:
        ctx.state.count += 1
        if calls:
            await ctx.tool(len, "four")
        if waits:
            await ctx.wait("public/a")

    def observe(point: StepPoint, about: str) -> None:
        told.append((point, about))

    await Runner(Actor("ada", step), MemoryBoardPort("ada"), observe=observe).step()
    assert [point for point, _ in told] == expected
    abouts = dict(told)
    assert (abouts[StepPoint.HYDRATED], abouts[StepPoint.STEP_BEGUN]) == ("ada", "1")
    assert abouts.get(StepPoint.RECORDED, "len") == "len"
    unobserved(*told[0])


def test_all_points_are_known_here() -> None:
    """One that is added is to be tested."""
    assert set(StepPoint) == {*STEP, *CALL, *COMMIT, *WAIT}
