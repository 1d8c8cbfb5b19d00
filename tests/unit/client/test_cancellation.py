"""Work is completed even if its caller is cancelled."""

import asyncio
import contextlib

import anyio
import pytest

from blackboard.client.cancellation import finish, heed_cancellation


class Work:
    """Something that has begun, and ends when it is let."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let = asyncio.Event()
        self.done = False

    async def run(self) -> int:
        """Wait to be let; 7."""
        self.begun.set()
        await self.let.wait()
        self.done = True
        return 7


async def test_the_result_comes_through() -> None:
    work = Work()
    work.let.set()
    assert await finish(work.run()) == 7


async def test_the_error_comes_through() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await finish(fail())


async def test_a_cancelled_caller_goes_on_when_the_work_is_done() -> None:
    work = Work()
    caller = asyncio.create_task(finish(work.run()))
    await work.begun.wait()
    for _ in range(2):
        caller.cancel()
        await asyncio.wait([caller], timeout=0)
        assert not caller.done()
    work.let.set()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert work.done


async def test_a_cancelled_scope_goes_on_when_the_work_is_done() -> None:
    work = Work()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel_then_let() -> None:
                await work.begun.wait()
                scope.cancel()
                work.let.set()

            with anyio.CancelScope(shield=True):
                group.start_soon(cancel_then_let)
                assert await finish(work.run()) == 7
            await anyio.lowlevel.checkpoint()
            pytest.fail("the cancellation was swallowed")
    assert scope.cancelled_caught


async def test_the_cancellation_goes_before_the_error_of_the_work() -> None:
    begun, let = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        begun.set()
        await let.wait()
        raise ValueError("no")

    caller = asyncio.create_task(finish(fail()))
    await begun.wait()
    caller.cancel()
    let.set()
    await asyncio.wait([caller])
    assert caller.cancelled()


async def test_a_cancelled_caller_waits_only_so_long() -> None:
    work = Work()
    caller = asyncio.create_task(finish(work.run(), 50))
    await work.begun.wait()
    caller.cancel()
    with anyio.fail_after(60):
        await asyncio.wait([caller])
    assert caller.cancelled()
    assert not work.done


async def test_a_cancellation_that_was_swallowed_is_heeded() -> None:
    """A loop that is to end by being cancelled ends, whatever its drivers make of it."""
    inside, never = asyncio.Event(), asyncio.Event()

    async def loop() -> None:
        while True:
            inside.set()
            with contextlib.suppress(asyncio.CancelledError):  # as a driver does
                await never.wait()
            heed_cancellation()

    task = asyncio.create_task(loop())
    await inside.wait()
    heed_cancellation()  # that of this task: there is none
    task.cancel()
    with anyio.fail_after(60):
        await asyncio.wait([task])
    assert task.cancelled()
