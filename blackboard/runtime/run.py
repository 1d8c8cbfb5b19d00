"""Runs an agent in this process: it attaches, takes steps, rests, and continues.

    async with blackboard.connect() as client:
        await run_agent(Researcher("researcher"), client.board())

Invariants
- while it runs, this process alone is the agent; one that was taken over stops with LeaseLost or
  Fenced, and nothing it commits after that takes effect.
- after a restore the agent continues in this process, from the restored state.
- The log wakes an agent at rest; there is no polling.
- an unrequested cancellation is not a request to stop: it is a crash, after which the agent
  continues from its last commit.
- while the board is frozen, a commit waits for the thaw, and the agent continues where it was: that
  is not a crash, and no call is made twice.
- A checkpoint that waits for the agent is answered at once, also in the middle of a step: an
  uncommitted step is not part of the agent's state.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from blackboard.client.board import Board
from blackboard.client.cancellation import cancellations
from blackboard.client.leases.presence import Attachment, IfTaken
from blackboard.client.views import Change
from blackboard.core.commit import RESTORE, HeldFence, Op
from blackboard.core.path import is_meant, namespace_of, parse_pattern
from blackboard.errors import (
    AgentInterrupted,
    Compacted,
    Fenced,
    FutureRevision,
    LeaseLost,
    Resync,
    RolledBack,
    StaleEpoch,
)
from blackboard.limits import (
    AGENT_CRASHES_MAX,
    AGENT_PAUSE_MS,
    AGENT_PAUSE_MS_MAX,
    FROZEN_WAIT_MS_MAX,
    LEASE_TTL_MS,
    PATTERNS_MAX,
)
from blackboard.runtime.agent import Agent
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.journal import Observer, StepPoint, unobserved
from blackboard.runtime.runner import Runner, Stepped
from blackboard.runtime.state import S, Status, journal_prefix
from blackboard.units import Milliseconds, Revision

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rest:
    """An agent at rest: it continues when a change after revision `since` matches `patterns`."""

    agent: str
    patterns: tuple[str, ...]
    since: Revision

    @classmethod
    def after(cls, stepped: Stepped) -> "Rest":
        """The rest that follows a step. An idle agent is also woken by its inbox."""
        inbox = (f"inbox/{stepped.agent}/**",) if stepped.idle else ()
        return cls(stepped.agent, (*stepped.patterns, *inbox), stepped.since)

    @property
    def ends_by_itself(self) -> bool:
        """Whether the rest ends by a timer, whatever others do."""
        own = journal_prefix(self.agent) + "/"
        return any(pattern.startswith(own) for pattern in self.patterns)

    def is_ended_by(self, change: Change) -> bool:
        """Whether a change wakes the agent: not one below a `~` branch that it did not name."""
        return change.kind in ("put", "delete") and any(
            parse_pattern(pattern).matches(change.key) and is_meant(pattern, change.key)
            for pattern in self.patterns
        )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How an agent runs in a process.

    `if_taken`, `ttl_ms`: as of `Board.attach`. It stops after the step in which `stop` is set, and
    after `steps_max` steps; with `leaves` also when there is nothing to do until the board changes;
    a later start continues there. `on_rest` is called when it rests, and with None as soon as it
    continues; it must return at once.
    """

    if_taken: IfTaken = "wait"
    ttl_ms: Milliseconds = LEASE_TTL_MS
    leaves: bool = False
    steps_max: int | None = None
    stop: asyncio.Event | None = None
    on_rest: Callable[["Rest | None"], None] | None = None


def pause_s(
    crashes: int,
    pause_ms: Milliseconds = AGENT_PAUSE_MS,
    pause_ms_max: Milliseconds = AGENT_PAUSE_MS_MAX,
) -> float:
    """Seconds before the restart after this number of consecutive crashes, from 1; shortened at
    random."""
    # 30 doublings are beyond any pause; without a bound the number would grow with the crashes.
    longest_ms = min(pause_ms_max, pause_ms * 2 ** (min(crashes, 30) - 1))
    return float(random.uniform(0.5, 1.0) * longest_ms / 1000)


async def run_agent(
    agent: Agent[S], board: Board, stay: RunOptions | None = None, *, observe: Observer = unobserved
) -> Stepped:
    """Run `agent` on `board` until it is done, or `stay` ends it; returns its last step.

    Errors: LeaseLost or Fenced when another process took it over; LeaseHeld when another one has it
    and `if_taken` is "refuse", or after a restore; those of `Runner.step`. Commits stay, and the
    next run continues from them. AgentInterrupted after AGENT_CRASHES_MAX unrequested cancellations
    without a commit in between; after each earlier one it continued, after a pause. Cancellation:
    the current step is abandoned; its calls are in the journal.
    """
    in_a_row = 0

    def observed(point: StepPoint, about: str) -> None:
        nonlocal in_a_row
        if point in (StepPoint.COMMITTED, StepPoint.SUSPENDED):
            in_a_row = 0
        observe(point, about)

    while True:
        try:
            return await run_until_crash(agent, board, stay or RunOptions(), observe=observed)
        except AgentInterrupted as error:
            in_a_row += 1
            if in_a_row >= AGENT_CRASHES_MAX:
                raise
            log.warning("%s continues: %s", agent, error, exc_info=error)
        await asyncio.sleep(pause_s(in_a_row))


async def run_until_crash(
    agent: Agent[S], board: Board, stay: RunOptions, *, observe: Observer = unobserved
) -> Stepped:
    """As `run_agent`; an unrequested cancellation is AgentInterrupted at once."""
    asked = cancellations()
    try:
        return await _run(agent, board, stay, observe)
    except asyncio.CancelledError as error:
        if cancellations() > asked:
            raise
        raise AgentInterrupted(agent.name, "its task was cancelled without a request") from error


async def _run(agent: Agent[S], board: Board, stay: RunOptions, observe: Observer) -> Stepped:
    """Attach and run, again in each epoch that a restore begins."""
    home = board.as_agent(agent.name).waiting_for_thaw(FROZEN_WAIT_MS_MAX)
    if_taken = stay.if_taken
    while True:
        # Before attaching, so that no restore can come between the two unnoticed.
        epoch = (await home.head()).epoch.number
        # An agent begins from the present board, whatever this process saw before.
        await home.refresh()
        attached = home.attach(if_taken=if_taken, ttl_ms=stay.ttl_ms, deliver=_nothing_held)
        held: tuple[HeldFence, ...] = ()
        try:
            async with attached as me:
                held = me.fences
                port = _AgentBoardPort(me.board, epoch)
                return await _live(Runner(agent, port, observe=observe), port, me, stay)
        except (LeaseLost, Fenced, StaleEpoch, _EpochMoved) as error:
            now = (await home.head()).epoch
            # In the same epoch no restore took the identity: another process is the agent.
            if now.number == epoch:
                raise
            # A restore takes every agent's leases: it was asked for, and is no cause for alarm.
            level = logging.DEBUG if now.cause == RESTORE else logging.WARNING
            log.log(level, "%s continues in epoch %d (%s): %s", agent, now.number, now.cause, error)
            # A restore ends the leases of all agents. If another process has this one by now, it is
            # the agent. After an epoch of the engine it may still be ours, until it runs out.
            if_taken = "wait" if await _is_left(home, held) else "refuse"


async def _is_left(home: Board, held: Sequence[HeldFence]) -> bool:
    """Whether a lease is still there that this process had and could not release."""
    for one in held:
        for lease in await home.leases(one.key):
            if (lease.holder, lease.fence) == (one.holder, one.fence):
                return True
    return False


class _EpochMoved(Exception):
    """The board has another epoch than when the agent attached."""


class _AgentBoardPort(LiveBoardPort):
    """The port of an attached agent. A restore ends the attachment."""

    def __init__(self, board: Board, epoch: int) -> None:
        super().__init__(board)
        self._epoch = epoch

    async def renew(self, error: StaleEpoch) -> None:
        """Adopting the epoch is not enough, because the identity is gone."""
        raise error

    async def check(self) -> None:
        """Errors: _EpochMoved. Called before a step after a rest, so that this process makes no
        call as an agent whose identity it may have lost."""
        if (await self.board.head()).epoch.number != self._epoch:
            raise _EpochMoved(f"attached in epoch {self._epoch}")


async def _live(
    runner: Runner[S], port: _AgentBoardPort, me: "Attachment[Board]", stay: RunOptions
) -> Stepped:
    """Take steps and rest, while attached."""
    reported, taken = "", 0
    while True:
        stepped = await runner.step()
        taken += stepped.receipt is not None and not stepped.rests
        activity = "idle" if stepped.idle else stepped.status.value
        # A report is a commit: there is none while the activity stays the same.
        if activity != reported:
            await me.report(activity, ", ".join(stepped.patterns[:1]) if stepped.rests else "")
            reported = activity
        if _is_over(stepped, stay, taken):
            return stepped
        if stepped.rests:
            tell = stay.on_rest or _nobody
            rest = Rest.after(stepped)
            tell(rest)
            try:
                runner.woken_by = await _end_of(rest, me.board, stay.stop)
            finally:
                tell(None)
            if stay.stop is not None and stay.stop.is_set():
                return stepped  # no step is under way, and none is begun for a stop
            await port.check()
            runner.forget()


def _nobody(_: Rest | None) -> None:
    """The default of `on_rest`."""


async def _nothing_held() -> Sequence[Op]:
    """The delivery of an agent for a checkpoint: empty, because everything is on the board
    already."""
    return ()


def _is_over(stepped: Stepped, stay: RunOptions, taken: int) -> bool:
    return (
        stepped.status is Status.DONE
        or (stepped.rests and stay.leaves)
        or (stay.steps_max is not None and taken >= stay.steps_max)
        or (stay.stop is not None and stay.stop.is_set())
    )


async def _end_of(rest: Rest, board: Board, stop: asyncio.Event | None) -> str:
    """Return when `rest` is over, or when `stop` is set: what `over` returns, or ""."""
    ended = asyncio.ensure_future(over(rest, board))
    waits: list[asyncio.Future[Any]] = [ended]
    if stop is not None:
        waits.append(asyncio.ensure_future(_set(stop)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() else ""
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _set(stop: asyncio.Event) -> None:
    await stop.wait()


async def over(rest: Rest, board: Board) -> str:
    """Return when there may be something to do for the resting agent: the note of the commit that
    woke it ("" if that is not known).

    Errors: Unavailable and the like, from the watch.
    """
    patterns = list(rest.patterns)
    watched = patterns if len(patterns) <= PATTERNS_MAX else _wider(patterns)
    try:
        # From before the step's reads, so that what was committed while it ran ends the rest.
        async with board.watch(*watched, after=rest.since) as watch:
            async for revised in watch:
                if revised.epoch is not None or any(map(rest.is_ended_by, revised.changes)):
                    return revised.note
    except (Compacted, FutureRevision, Resync, RolledBack):
        pass  # the state is read again, which includes missed changes
    return ""


def _wider(patterns: list[str]) -> list[str]:
    """Fewer patterns that cover all of `patterns`: whole namespaces, or those of all agents."""
    wider = {_below(pattern, namespace_of(pattern)) for pattern in patterns}
    if len(wider) > PATTERNS_MAX:
        # A watch shows only what the agent may read, however wide its patterns are.
        wider = {_below(pattern, pattern.partition("/")[0]) for pattern in patterns}
    return sorted(wider) if len(wider) <= PATTERNS_MAX else ["**"]


def _below(pattern: str, path: str) -> str:
    """A pattern that matches all below `path`, where `pattern` begins; `pattern` itself where that
    is wider already, or has one segment and matches no key."""
    return pattern if "**" in path or "/" not in pattern else f"{path}/**"
