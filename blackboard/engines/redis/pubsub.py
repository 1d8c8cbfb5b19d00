"""Messages that are not stored, over Redis: sharded pub/sub on a channel in the board's slot.

A connection that is subscribed can do nothing else, so each board with listeners has one. It is
pinged regularly: without an answer, the listener gets an error, and subscribes again.

Source: https://redis.io/docs/latest/develop/interact/pubsub/#sharded-pubsub
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgpack

from blackboard.engines.redis.driver import Driver, Listening, NotNowError
from blackboard.units import Key

log = logging.getLogger(__name__)
# `hear` gives up after one timeout: a late ping must not end a sound connection.
_PINGS_PER_TIMEOUT: Final = 3


def write_message(key: Key, data: bytes) -> bytes:
    """A message of the channel."""
    packed: bytes = msgpack.packb([key, data])
    return packed


def read_message(message: bytes) -> tuple[Key, bytes] | None:
    """Decode what `write_message` wrote; None for anything else."""
    try:
        key, data = msgpack.unpackb(message)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    return (key, data) if isinstance(key, str) and isinstance(data, bytes) else None


@asynccontextmanager
async def received(driver: Driver, channel: str) -> AsyncIterator[AsyncIterator[tuple[Key, bytes]]]:
    """The messages of a channel, once the subscription is confirmed. Errors: as of
    `Driver.listening`."""
    async with driver.listening(channel) as connection:
        await connection.tell("SSUBSCRIBE", channel)
        await connection.hear()  # the confirmation
        period_s = driver.limits.engine_timeout_ms / 1000 / _PINGS_PER_TIMEOUT
        living = asyncio.create_task(
            _ask_for_signs(connection, period_s), name=f"signs of life of {channel}"
        )
        try:
            yield _messages(connection)
        finally:
            # Ended first: it writes to the connection, which is closed next.
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)


async def _ask_for_signs(connection: Listening, period_s: float) -> None:
    with contextlib.suppress(NotNowError):  # the listener gets the same error
        while True:
            await asyncio.sleep(period_s)
            await connection.tell("PING")


async def _messages(connection: Listening) -> AsyncIterator[tuple[Key, bytes]]:
    while True:
        reply: Any = await connection.hear()
        if reply[0] == b"sunsubscribe":
            raise NotNowError("the slot of the board moved")
        if reply[0] == b"smessage":
            found = read_message(reply[2])
            if found is None:
                log.warning("%s: a malformed message", reply[1])
            else:
                yield found
