"""The claims of one agent: leases that a tool call takes and a later one gives back.

A claim is a `Board.lock` that a task of this process holds and renews. It ends when it is released,
when its time is over, or with the process: then others can claim the key after LEASE_TTL_MS.

Invariants
- every change that the agent makes carries the fences of all its claims, so that nothing is changed
  by an agent that is not the holder any more.
- a claim that ended without a release makes the next change fail, once: the model may still rely
  on it.
- a call that is cancelled before its claim was granted leaves neither a lease nor a place in its
  queue, unless another call waits for the same claim.
- what happens to a call happens to no other one: it waits for as long as it said itself.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from blackboard import Board
from blackboard.errors import BlackboardError, Unavailable
from blackboard.integrations.mcp.answers import ToolFailure, refused
from blackboard.ops import HeldFence
from blackboard.types import Lock

CLAIMS_MAX: Final = 32
"""Claims of one agent at a time: each is a task here, and a fence in each of its commits."""


class HeldClaim:
    """A claim, from before it is granted until it ended."""

    def __init__(self, lock: Lock, seconds: float) -> None:
        self.lock = lock
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reason = ""
        """Why it ended, if nobody released it."""
        self.calls = 0
        """How many asked for it and were not cancelled before it was granted."""
        self._seconds = seconds
        self._until_s = 0.0
        self._released = asyncio.Event()

    @property
    def is_granted(self) -> bool:
        """Whether it was granted; it may have ended since."""
        done = self.granted.done() and not self.granted.cancelled()
        return done and self.granted.exception() is None

    @property
    def is_ending(self) -> bool:
        """Whether its lease is being given back: nothing prolongs it any more."""
        return bool(self.reason) or self._released.is_set()

    @property
    def left_s(self) -> int:
        """Whole seconds until it ends by itself."""
        return max(0, round(self._until_s - asyncio.get_running_loop().time()))

    def extend(self, seconds: float) -> None:
        """End in `seconds` from now, and not before."""
        self._until_s = max(self._until_s, asyncio.get_running_loop().time() + seconds)

    def release(self) -> None:
        """End now."""
        self._released.set()

    async def hold(self) -> None:
        """Take the lease, and keep it until the end. Errors: as of `Board.lock`, in `granted`."""
        try:
            async with self.lock:
                self.extend(self._seconds)
                if not self.granted.done():
                    self.granted.set_result(None)
                await self._until_the_end()
        except BlackboardError as error:
            if not self.granted.done():
                self.granted.set_exception(error)
            self.reason = self.reason or f"it was lost: {error}"
        except asyncio.CancelledError:
            self.granted.cancel()
            raise

    async def _until_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        # A loop, because the claim may be prolonged while this sleeps.
        while not self._released.is_set():
            if loop.time() >= self._until_s:
                self.reason = f"its {self._seconds:.0f} seconds were over"
                return
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._until_s):
                    await self._released.wait()


class Claims:
    """The claims of one agent on one board; close it."""

    def __init__(self, board: Board, *, ended: Iterable[str] = ()) -> None:
        self._board = board
        self._held: dict[str, HeldClaim] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended = dict.fromkeys(ended, "the service is at another address now")
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    def keys(self) -> Sequence[str]:
        """What is claimed."""
        return [key for key, held in self._held.items() if held.is_granted]

    def __contains__(self, key: object) -> bool:
        return key in self._held

    async def claim(self, key: str, seconds: float, wait_s: float) -> HeldClaim:
        """Claim `key`, or prolong the claim of it. Errors: as of `Board.lock`; ToolFailure."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        # A loop: when the claim that this waits for has ended, another call may hold the next one.
        while (known := self._held.get(key)) is not None:
            if await self._is_current(key, known):
                known.extend(seconds)
                return known
        if self._closed:
            raise Unavailable("claims", "this session ended")
        # Taken again: that the last claim of it ended is no news any more.
        self._ended.pop(key, None)
        if len(self._held) >= CLAIMS_MAX:
            names = ", ".join(sorted(self._held)[:5])
            what = f"you hold {len(self._held)} claims, which is the most"
            raise refused("too_many_claims", what, f"Release some first: {names} ...")
        left_s = max(0.0, until_s - loop.time())
        held = HeldClaim(self._board.lock(key, timeout_ms=round(left_s * 1000)), seconds)
        self._held[key] = held
        # A task of its own, because a lock is a block of one task, and each tool call is another.
        task = asyncio.create_task(held.hold(), name=f"claim of {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._forget(key, held))
        await self._is_granted(key, held)
        held.granted.result()
        return held

    async def _is_granted(self, key: str, held: HeldClaim) -> bool:
        """Wait until it is granted, or ended without. A cancellation ends it when no other call
        waits for it."""
        task = self._tasks[key]
        held.calls += 1
        try:
            # Not the future itself: a call that is cancelled would cancel it for the others.
            await asyncio.wait([held.granted])
        except BaseException:
            held.calls -= 1
            if not held.calls:
                task.cancel()
                await asyncio.wait([task])
            raise
        if not held.is_granted:
            await asyncio.wait([task])  # then it is forgotten
        return held.is_granted

    async def _is_current(self, key: str, held: HeldClaim) -> bool:
        """Whether the board has a claim for this holder, and keeps it; if not, it is ended here,
        too. One that is not granted yet is waited for."""
        if not await self._is_granted(key, held):
            return False
        holders = [lease.holder for lease in await self._board.leases(key)]
        # The board has it until its release is committed.
        if held.lock.holder in holders and not held.is_ending:
            return True
        if self._held.get(key) is held:
            await self.release(key)
        return False

    async def release(self, key: str) -> bool:
        """End the claim of `key`; False if there was none."""
        held, task = self._held.get(key), self._tasks.get(key)
        if held is not None and task is not None:
            held.release()
            await asyncio.wait([task])
        return self._ended.pop(key, None) is None and held is not None

    def fences(self) -> Sequence[HeldFence]:
        """What a change carries. Errors: ToolFailure, once, when a claim ended."""
        if self._ended:
            ended, self._ended = self._ended, {}
            raise _ended(ended)
        granted = [held for held in self._held.values() if held.is_granted]
        return [fence for held in granted for fence in held.lock.fences]

    async def lose(self, key: str, reason: str) -> ToolFailure:
        """The failure to raise when the board says that the claim of `key` is gone."""
        await self.release(key)
        return _ended({key: reason})

    async def aclose(self) -> None:
        """Release all, and leave no queue and no task."""
        self._closed = True
        tasks = list(self._tasks.values())
        for held in self._held.values():
            held.release()
        for key, task in list(self._tasks.items()):
            # It waits in the queue of its lock, and would see its release only once it was granted.
            if not self._held[key].granted.done():
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, key: str, held: HeldClaim) -> None:
        self._held.pop(key, None)
        task = self._tasks.pop(key, None)
        if task is not None and not task.cancelled() and (error := task.exception()):
            held.reason = f"it was lost: {error}"
        if held.is_granted and held.reason:
            self._ended[key] = held.reason


def _ended(ended: dict[str, str]) -> ToolFailure:
    said = "; ".join(f"{key}: {reason}" for key, reason in ended.items())
    failure = refused(
        "claim_lost",
        f"nothing was changed, because a claim of yours ended ({said})",
        "Others may have changed what it protects. Claim it again and read it, then decide again;"
        " or repeat this call, to change it without the claim.",
    )
    failure.answer["keys"] = list(ended)
    return failure
