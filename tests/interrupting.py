"""Cancels a call at each of the places where it waits, one after the other."""

import asyncio
import types
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Interrupted:
    """How a call ended that was cancelled at one of its waits: with `error`, if any. `was_reached`
    says whether it waited that often at all."""

    was_reached: bool
    error: BaseException | None


async def interrupted(call: Coroutine[Any, Any, Any], at: int) -> Interrupted:
    """Run `call` in a task, and cancel that when the call waits for the time `at`, from 0 on."""
    reached: list[int] = []
    task = asyncio.create_task(_run(call, at, reached))
    await asyncio.wait([task])
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    return Interrupted(bool(reached), error)


async def _run(call: Coroutine[Any, Any, Any], at: int, reached: list[int]) -> Any:
    return await _counted(call, at, reached)


@types.coroutine
def _counted(
    call: Coroutine[Any, Any, Any], at: int, reached: list[int]
) -> Generator[Any, Any, Any]:
    waits, error = 0, None
    while True:
        try:
            waited_for = call.send(None) if error is None else call.throw(error)
        except StopIteration as end:
            return end.value
        if waits == at:
            reached.append(at)
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
        waits += 1
        try:
            yield waited_for
            error = None
        except BaseException as thrown:  # noqa: BLE001 - the call decides what becomes of it
            error = thrown
