"""The life of an agent in this process: it is attached, takes steps, rests, and goes on.

    async with blackboard.connect() as client:
        await run_agent(Researcher("researcher"), client.board())

Invariants
- while it runs, this process alone is the agent; one that was taken over stops with LeaseLost or
  Fenced, and nothing it commits after that takes effect.
- after a restore the agent goes on in place, from the state that came back.
- an agent at rest is woken by the log: nothing is polled.
- a checkpoint that waits for the agent is answered at once, also in the middle of a step: what a
  step has not committed is nothing that anybody could miss.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from blackboard.client.board import Board
from blackboard.client.leases.presence import Attachment, IfTaken
from blackboard.client.views import Change
from blackboard.core.commit import Op
from blackboard.core.path import is_meant, namespace_of
from blackboard.errors import (
    Compacted,
    Fenced,
    FutureRevision,
    LeaseLost,
    Resync,
    RolledBack,
    StaleEpoch,
)
from blackboard.runtime.agent import Agent
from blackboard.runtime.board_port import BoardDesk
from blackboard.runtime.journal import Observer, unobserved
from blackboard.runtime.runner import Runner, Stepped
from blackboard.runtime.state import S, Status
from blackboard.types import LEASE_TTL_MS, PATTERNS_MAX, Milliseconds

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stay:
    """How an agent lives in a process.

    `if_taken`, `ttl_ms`: as of `Board.attach`. It stops after the step in which `stop` is set, and
    after `steps_max` steps; with `leaves` also when there is nothing to do until something happens
    on the board: whoever starts it again then goes on there.
    """

    if_taken: IfTaken = "wait"
    ttl_ms: Milliseconds = LEASE_TTL_MS
    leaves: bool = False
    steps_max: int | None = None
    stop: asyncio.Event | None = None


async def run_agent(
    agent: Agent[S], board: Board, stay: Stay | None = None, *, observe: Observer = unobserved
) -> Stepped:
    """Run `agent` on `board` until it is done, or as `stay` says; returns its last step.

    Errors: LeaseLost or Fenced when another process took it over; LeaseHeld when another one has
    it and `if_taken` is "refuse", or after a restore; those of `Runner.step`. What was committed
    stands, and is where the next run begins.
    Cancellation: the step under way is abandoned; what it called is in the journal.
    """
    stay = stay or Stay()
    home = board.as_agent(agent.name)
    if_taken = stay.if_taken
    while True:
        epoch = (await home.head()).epoch.number
        # An agent begins from the board as it is: what this process saw before does not bind it.
        await home.refresh()
        attached = home.attach(if_taken=if_taken, ttl_ms=stay.ttl_ms, deliver=_nothing_held)
        try:
            async with attached as me:
                desk = _Desk(me.board, epoch)
                return await _live(Runner(agent, desk, observe=observe), desk, me, stay)
        except (LeaseLost, Fenced, StaleEpoch, _Moved) as error:
            now = (await home.head()).epoch
            if now.number == epoch:
                raise
            log.warning("%s goes on in epoch %d (%s): %s", agent, now.number, now.cause, error)
            if_taken = "refuse"


class _Moved(Exception):
    """The board is in another epoch than the one in which the agent was attached."""


class _Desk(BoardDesk):
    """The desk of an agent that is attached. After a restore it is attached no more."""

    def __init__(self, board: Board, epoch: int) -> None:
        super().__init__(board)
        self._epoch = epoch

    async def renew(self, error: StaleEpoch) -> None:
        """To accept the board as it is now is not enough: the identity is gone."""
        raise error

    async def check(self) -> None:
        """Errors: _Moved. Asked before a step that follows a rest, so that nothing is called in
        the name of an agent that this process may no longer be."""
        if (await self.board.head()).epoch.number != self._epoch:
            raise _Moved(f"attached in epoch {self._epoch}")


async def _live(runner: Runner[S], desk: _Desk, me: "Attachment[Board]", stay: Stay) -> Stepped:
    """Steps and rests, while attached."""
    shown, taken = "", 0
    while True:
        stepped = await runner.step()
        taken += stepped.receipt is not None and not stepped.rests
        told = "idle" if stepped.idle else stepped.status.value
        if told != shown:
            await me.report(told, ", ".join(stepped.patterns[:1]) if stepped.rests else "")
            shown = told
        if _is_over(stepped, stay, taken):
            return stepped
        if stepped.rests:
            await _rest(me.board, stepped, stay.stop)
            await desk.check()
            runner.forget()


async def _nothing_held() -> Sequence[Op]:
    """What a checkpoint gets from an agent: all that it knows is on the board already."""
    return ()


def _is_over(stepped: Stepped, stay: Stay, taken: int) -> bool:
    return (
        stepped.status is Status.DONE
        or (stepped.rests and stay.leaves)
        or (stay.steps_max is not None and taken >= stay.steps_max)
        or (stay.stop is not None and stay.stop.is_set())
    )


async def _rest(board: Board, stepped: Stepped, stop: asyncio.Event | None) -> None:
    """Return when something that the step read, or waits for, changed; or when `stop` is set."""
    waits = [asyncio.ensure_future(changed(board, stepped))]
    if stop is not None:
        waits.append(asyncio.ensure_future(_set(stop)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if waits[0].done():
            waits[0].result()
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _set(stop: asyncio.Event) -> None:
    await stop.wait()


async def changed(board: Board, stepped: Stepped) -> None:
    """Return when there may be something to do for an agent that rests after `stepped`.

    An idle one is also woken by its inbox. Errors: Unavailable and the like, from the watch.
    """
    patterns = list(stepped.patterns)
    if stepped.idle:
        patterns.append(f"inbox/{stepped.agent}/**")
    watched = patterns if len(patterns) <= PATTERNS_MAX else _wider(patterns)
    try:
        async with board.watch(*watched, after=stepped.since) as watch:
            async for revised in watch:
                news = map(partial(_is_news, patterns), revised.changes)
                if revised.epoch is not None or any(news):
                    return
    except (Compacted, FutureRevision, Resync, RolledBack):
        return  # what was missed shows in the state, which is read anew


def _wider(patterns: list[str]) -> list[str]:
    """Fewer patterns that cover all of `patterns`: whole namespaces."""
    return sorted({f"{namespace_of(pattern)}/**" for pattern in patterns})[:PATTERNS_MAX]


def _is_news(patterns: list[str], change: Change) -> bool:
    """Whether a change is about more than books that nobody asked for (`~agents` and such)."""
    if change.kind not in ("put", "delete"):
        return False
    return any(is_meant(pattern, change.key) for pattern in patterns)
