"""A process that increments a counter under a lock: `lease_worker.py URL TOKEN AGENT TTL_MS`.

It reads, thinks, and writes what it read plus one, with nothing but the lock to protect it. It says
what it is told and what it attempts in lines of JSON on standard output, and ends when standard
input does. A parent may stop it (SIGSTOP) between any two instructions.
"""

import asyncio
import contextlib
import json
import sys
from itertools import count

import blackboard
from blackboard.core.commit import HeldFence
from blackboard.errors import (
    BlackboardError,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    Rejected,
    StaleEpoch,
    Unavailable,
)

BOARD = "leases"
LOCK = "public/lock"
COUNTER = "public/counter"
AGAIN_S = 0.1
"""Between two attempts to connect."""
THOUGHTS = 5
"""Reads between the first one and the write, so that a pause often falls in between."""


def say(**line: object) -> None:
    """One line for the parent, out at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def update(board: blackboard.Board, tag: str, fence: HeldFence) -> None:
    """Read, think, write. It does not hear of a loss: nothing but its fence can stop it."""
    found = await board.get(COUNTER, {"count": 0, "by": ""})
    for _ in range(THOUGHTS):
        await board.get(COUNTER)
    value = {"count": found["count"] + 1, "by": tag}
    say(said="asked", value=value, holder=fence.holder, fence=fence.fence)
    try:
        receipt = await board.put(COUNTER, value)
    except Rejected as refusal:
        say(said="refused", why=refusal.code)
        raise
    say(said="done", revision=receipt.revision)


async def increment(board: blackboard.Board, tag: str, ttl_ms: int) -> None:
    """One section. Errors: LeaseLost, and what a commit raises."""
    async with board.lock(LOCK, ttl_ms=ttl_ms) as lock:
        [fence] = lock.fences
        say(said="acquired", holder=fence.holder, fence=fence.fence)
        section = asyncio.create_task(update(board, tag, fence))
        try:
            await asyncio.shield(section)
        finally:
            await asyncio.wait([section])
            if not section.cancelled():
                section.exception()  # it was said; a loss may be what is raised here


async def work(url: str, token: str, agent: str, ttl_ms: int) -> None:
    """Sections until standard input ends. Who finds nobody at `url` tries again until then, too."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    while not ended.done():
        try:
            async with blackboard.connect(url, token=token, agent=agent) as client:
                await sections(client.board(BOARD), agent, ttl_ms, ended)
        except Unavailable as error:
            say(said="failed", why=error.code)
            await asyncio.wait([ended], timeout=AGAIN_S)


async def sections(
    board: blackboard.Board, agent: str, ttl_ms: int, ended: "asyncio.Task[str]"
) -> None:
    """One section after the other. Errors: those that no fault explains."""
    for number in count():
        if ended.done():
            break
        try:
            await increment(board, f"{agent}-{number}", ttl_ms)
        except StaleEpoch:
            await refreshed(board)
        except (LeaseLost, LeaseHeld, Rejected, OutcomeUnknown, Unavailable) as error:
            say(said="failed", why=error.code)
        except BlackboardError as error:
            say(said="broken", why=str(error))
            raise


async def refreshed(board: blackboard.Board) -> None:
    """Accept the board as it is; who cannot reach it finds out again at the next section."""
    with contextlib.suppress(Unavailable):
        await board.refresh()


if __name__ == "__main__":
    _, url, token, agent, ttl_ms = sys.argv
    asyncio.run(work(url, token, agent, int(ttl_ms)))
