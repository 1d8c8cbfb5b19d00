"""The watchdog of a block: when it renews, what is a loss, and whose error goes first."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest

from blackboard.client import writer as held
from blackboard.client.leases.lock import Keeper
from blackboard.client.writer import Hold
from blackboard.core.commit import HeldFence
from blackboard.errors import AccessDenied, Fenced, LeaseLost, OutcomeUnknown, Unavailable
from blackboard.limits import DEFAULT, Limits
from tests.lowered import lowered
from tests.simulation.loop import SimulatedLoop, rest

FENCE = HeldFence("public/a", "ada~1", 7)
TTL_MS = 300
SLACK_S = 60.0
"""How late a busy machine may wake us; a loss that never came would hang."""


OFTEN = lowered(renewals_per_ttl=6_000)
"""A lease of ten minutes is renewed every 100 ms: no pause of the machine is a loss."""


def keeper_of(
    renew: Callable[[], Awaitable[object]], ttl_ms: int = TTL_MS, limits: Limits = DEFAULT
) -> Keeper:
    """A keeper of one lease."""
    return Keeper(Hold("here", "main", "ada", (FENCE,)), ttl_ms, renew, limits=limits)


async def run(keeper: Keeper, body: Callable[[], Awaitable[object]]) -> None:
    """A block, as a lock makes one."""
    keeper.start(asyncio.get_running_loop().time())
    error: BaseException | None = None
    try:
        await body()
    except BaseException as raised:
        error = raised
        raise
    finally:
        keeper.stop()
        keeper.judge(error)


async def forever() -> None:
    """Work until cancelled."""
    await asyncio.Event().wait()


class Renewals:
    """Answers to renewals: each is raised if it is an error; then it hangs, or goes on."""

    def __init__(self, *answers: BaseException | None, then_hangs: bool = False) -> None:
        self.times: list[float] = []
        self.answered_s = 0.0
        """When the last one that was answered well was asked for."""
        self.enough = asyncio.Event()
        self._answers = list(answers)
        self._then_hangs = then_hangs

    async def __call__(self) -> None:
        """One renewal."""
        self.times.append(asyncio.get_running_loop().time())
        if self._answers:
            answer = self._answers.pop(0)
            if answer is not None:
                raise answer
            self.answered_s = self.times[-1]
        elif self._then_hangs:
            await forever()
        else:
            self.enough.set()


async def test_it_is_renewed_at_a_third_of_its_time() -> None:
    """Here: at a 6000th."""
    renewals = Renewals(None, None)
    assert DEFAULT.client.renewals_per_ttl == 3
    start = asyncio.get_running_loop().time()
    with anyio.fail_after(60):
        await run(keeper_of(renewals, 600_000, OFTEN), renewals.enough.wait)
    for count, at in enumerate(renewals.times, start=1):
        assert at - start >= count * 0.1 - 0.02
    assert len(renewals.times) == 3


async def test_what_may_pass_is_tried_again() -> None:
    unknown = OutcomeUnknown("ada", 0, "i", 1, "no answer")
    renewals = Renewals(Unavailable("service", "away"), unknown, None)
    with anyio.fail_after(60):
        await run(keeper_of(renewals, 600_000, OFTEN), renewals.enough.wait)
    assert len(renewals.times) == 4


@pytest.mark.parametrize(
    ("error", "holder", "fence"),
    [
        (Fenced("public/b", 3, 9, "bob"), "bob", 3),
        (AccessDenied("ada", "lock", "public/a"), None, 7),
        (ValueError("a bug"), None, 7),
    ],
)
async def test_a_refused_renewal_is_a_loss_at_once(
    error: Exception, holder: str | None, fence: int
) -> None:
    with pytest.raises(LeaseLost) as lost:
        await run(keeper_of(Renewals(error)), forever)
    assert (lost.value.holder, lost.value.fence) == (holder, fence)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("answers", [(), (None, None)])
async def test_a_renewal_that_is_not_answered_in_time_is_a_loss(
    answers: tuple[None, ...],
) -> None:
    """In time means: before the time to live since the last answered one is over."""
    renewals = Renewals(*answers, then_hangs=True)
    start = asyncio.get_running_loop().time()
    with pytest.raises(LeaseLost):
        await run(keeper_of(renewals), forever)
    ended = asyncio.get_running_loop().time()
    answered = renewals.answered_s or start
    assert TTL_MS / 1000 - 0.02 <= ended - answered < TTL_MS / 1000 + SLACK_S


def test_the_time_to_live_counts_from_the_asking() -> None:
    """An answer that was long under way says nothing of how long it holds yet."""
    loop = SimulatedLoop()
    asked: list[float] = []

    async def renew() -> None:
        asked.append(loop.time())
        await (rest(0.15) if len(asked) == 1 else forever())

    async def lose() -> float:
        with pytest.raises(LeaseLost):
            await run(keeper_of(renew), forever)
        return loop.time()

    try:
        assert loop.run_until_complete(lose()) == pytest.approx(asked[0] + TTL_MS / 1000)
    finally:
        loop.close()


async def test_a_lease_that_has_run_out_already_is_lost() -> None:
    keeper = keeper_of(Renewals(then_hangs=True))
    keeper.start(asyncio.get_running_loop().time() - 1)
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await forever()
    keeper.stop()
    with pytest.raises(LeaseLost):
        keeper.judge(cancelled.value)


async def test_the_own_error_of_a_block_goes_first() -> None:
    async def fail() -> None:
        with suppress(asyncio.CancelledError):
            await forever()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        await run(keeper_of(Renewals(Fenced("public/a", 7, 0))), fail)
    assert "lease_lost" in raised.value.__notes__[0]


async def test_a_block_that_swallows_the_cancellation_learns_it_at_its_end() -> None:
    async def swallow() -> None:
        with suppress(asyncio.CancelledError):
            await forever()

    with pytest.raises(LeaseLost):
        await run(keeper_of(Renewals(Fenced("public/a", 7, 0))), swallow)


async def test_a_cancellation_by_somebody_else_goes_before_the_loss() -> None:
    keeper = keeper_of(Renewals(Fenced("public/a", 7, 0)))
    lost = asyncio.Event()
    ended: list[BaseException] = []

    async def body() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            lost.set()
            await forever()

    block = asyncio.create_task(run(keeper, body))
    block.add_done_callback(lambda task: ended.append(task.cancelled()))  # type: ignore[arg-type]
    await lost.wait()
    block.cancel()
    await asyncio.wait([block])
    assert block.cancelled()


async def test_a_loss_after_the_block_cancels_nobody() -> None:
    keeper = keeper_of(Renewals())
    keeper.start(asyncio.get_running_loop().time())
    keeper.stop()
    keeper.lose("found out at the release", Fenced("public/a", 7, 9, "bob"))
    await asyncio.wait([asyncio.ensure_future(forever())], timeout=0)
    with pytest.raises(LeaseLost) as lost:
        keeper.judge(None)
    assert lost.value.holder == "bob"


async def test_nothing_is_renewed_after_the_block() -> None:
    renewals = Renewals()
    await run(keeper_of(renewals, 600_000, OFTEN), renewals.enough.wait)
    assert len(renewals.times) == 1
    watchdogs = [task for task in asyncio.all_tasks() if task.get_name() == "keeper of leases"]
    assert all(task.cancelling() for task in watchdogs)


async def test_fences_are_held_in_the_block_only() -> None:
    found = []

    async def look() -> None:
        found.append(held._holds.get())

    await run(keeper_of(Renewals()), look)
    assert [hold.fences for hold in found[0]] == [(FENCE,)]
    assert held._holds.get() == ()
