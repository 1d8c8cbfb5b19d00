"""The one place where tests wait for something that sends no event: bounded polling."""

from collections.abc import Awaitable, Callable
from itertools import chain, repeat
from typing import Any

import anyio
import anyio.lowlevel

POLL_S = 0.01
TIMEOUT_S = 60.0
"""How long a test waits for what has to come: it is no subject of any test, only a bound."""
_OVERTAKEN_TURNS = 50
"""Turns of the event loop, more than a call of an open board takes to reach its engine."""


async def wait_until(
    condition: Callable[[], Awaitable[bool]], *, timeout_s: float = TIMEOUT_S
) -> None:
    """Return as soon as `condition` holds. Errors: `TimeoutError` after `timeout_s`."""
    with anyio.fail_after(timeout_s):
        while True:
            if await condition():
                return
            await anyio.sleep(POLL_S)


async def let_pass(seconds: float) -> None:
    """Let time pass that is itself the point: how long a fault lasts, the pace of a load.

    Tests that wait for something use `wait_until`.
    """
    await anyio.sleep(seconds)


def slow_at_first(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`call`, whose first caller is overtaken by the second."""
    turns = chain((_OVERTAKEN_TURNS,), repeat(0))

    async def slow(*arguments: Any, **named: Any) -> Any:
        for _ in range(next(turns)):
            await anyio.lowlevel.checkpoint()
        return await call(*arguments, **named)

    return slow
