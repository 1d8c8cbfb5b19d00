"""A team: several agents on one board, and the sub-agents that they start.

    ended = await run_team(board, [Researcher("ada"), Architect("bob")], kinds=[Helper])

Within a step, `await spawn(ctx, Helper("ada.1"))` starts a sub-agent when the step commits. The
members of the team are entries of the board, `public/~roster/<agent>`, with kind, parent and how
they ended, so a restore covers them: agents that were spawned after the cut are stopped, and those
that ended since continue.

Invariants
- The roster decides which agents run: those that are in it and have a known kind.
- No name from the board is ever imported: `kind` selects one of the given classes.
- The initial state of a sub-agent is written with its first commit, and only if it is new.
- no agent is lost: a task of the team that ends by an unrequested cancellation is started again.
- No agent ends the others: one that cannot be made or supervised is given up, and the roster says
  so.
- an outage of the service ends no team, whatever the team was asking it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Literal, Protocol

import anyio
from anyio.abc import TaskGroup
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blackboard.client.board import Board
from blackboard.client.cancellation import cancellations
from blackboard.client.views import Entry
from blackboard.core.access import check_agent_name
from blackboard.core.commit import ABSENT, KeyAt, Put
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    BoardFrozen,
    Compacted,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    Resync,
    RolledBack,
    StaleEpoch,
    Unavailable,
    line_of,
)
from blackboard.limits import FROZEN_WAIT_MS_MAX
from blackboard.runtime.agent import Agent
from blackboard.runtime.context import Context
from blackboard.runtime.run import Rest
from blackboard.runtime.stall import Lookout, OnDead
from blackboard.runtime.state import Status, StoredState, state_key
from blackboard.runtime.supervisor import (
    AgentExit,
    RestartPolicy,
    Supervisor,
    ended_by_close,
    stop_on_signals,
)
from blackboard.units import Key, Revision
from blackboard.wire.codec import encode_value

ROSTER = "public/~roster"
_AWAY_PAUSE_S = 1.0
_AGAIN = (BoardFrozen, Unavailable, OutcomeUnknown, StaleEpoch)
"""Errors of a board that is away or was restored: what the team was doing is begun again."""
log = logging.getLogger(__name__)


class TeamMember(BaseModel):
    """An entry of the roster. `state` is the initial state of a sub-agent, None for that of its
    class.

    `parent` is None for agents that were started directly; `outcome` is None while the agent runs.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    parent: str | None = None
    state: dict[str, Any] | None = Field(default=None)
    how: str | None = None
    outcome: str | None = None


class Lived(Protocol):
    """A supervised agent, in this process or in a separate one.

    `rest` is what it waits for while it rests; `on_rest` is called when that changes.
    """

    rest: Rest | None
    on_rest: Callable[[], None]

    def stop(self) -> None:
        """Ask it to stop."""

    async def run(self) -> AgentExit:
        """Run the agent to its end."""


MakeSupervisor = Callable[[Agent[Any]], Lived]


def roster_key(agent: str) -> Key:
    """The key of `agent` in the roster."""
    return f"{ROSTER}/{agent}"


async def spawn(ctx: Context[Any], agent: Agent[Any], state: BaseModel | None = None) -> Key:
    """Start `agent`, with `state`, when the step of `ctx` commits; returns its roster key.

    Its parent is the agent that takes the step. `await ctx.wait(...)` on its messages, or on what
    it writes, to work together; `TeamMember` at the returned key says how it ended. Errors:
    InvalidState when `state` does not fit it; LimitExceeded when the roster is full
    (TEAM_AGENTS_MAX). The step is refused if the name is taken.
    """
    # Not tracked: agents that spawn at the same time do not conflict, and `_agree`
    # refuses what is too many.
    size = await ctx.count(f"{ROSTER}/*")
    agents_max = ctx.limits.agents.team_agents_max
    if size >= agents_max:
        raise LimitExceeded("TEAM_AGENTS_MAX", size + 1, agents_max, agent.name)
    first = None if state is None else agent.schema.dump(agent.name, state)
    key = roster_key(agent.name)
    ctx.expect(KeyAt(key, ABSENT))
    ctx.put(key, TeamMember(kind=agent.kind, parent=ctx.agent, state=first).model_dump())
    return key


async def run_team(
    board: Board,
    agents: Sequence[Agent[Any]],
    *,
    kinds: Iterable[type[Agent[Any]]] = (),
    make_supervisor: MakeSupervisor | None = None,
    stop: asyncio.Event | Literal["on_signals"] | None = None,
    on_dead: OnDead = "report",
) -> Mapping[str, AgentExit]:
    """Run `agents`, and those of `kinds` that they spawn, until all have ended, or `stop` is set.

    Then each agent finishes its step, or abandons it after its `grace_ms`, and its identity is
    released. With "on_signals", SIGTERM and SIGINT ask for that instead of ending the process; only
    in the main thread, where Python delivers signals, and not on Windows (ImportError).

    `board` must be an operator's, or one on which you may act as every agent of the team.
    `make_supervisor` decides where each agent runs: by default `Supervisor`, a task of this
    process; see `runtime/processes.py` for processes. Unfinished work of an earlier process
    continues. `on_dead`: when an agent was given up and all remaining ones wait, "report" says so,
    in the log and at `public/~team/stalled`, and keeps waiting; "stop" also stops them, unless a
    request for approval is open. Returns how each ended. Errors: InvalidRequest for two agents with
    one name, or another `on_dead` or `stop`; LimitExceeded for more than TEAM_AGENTS_MAX;
    Unavailable or OutcomeUnknown at once when the client of `board` is closed: current steps are
    abandoned, and identities end with their leases. Cancellation: all current steps are abandoned,
    and all identities released.
    """
    make = make_supervisor or (lambda agent: Supervisor(agent, board, RestartPolicy()))
    if on_dead not in ("report", "stop"):
        raise InvalidRequest(field="on_dead", reason=f"{on_dead!r} is not report or stop")
    if isinstance(stop, str) and stop != "on_signals":
        raise InvalidRequest(field="stop", reason=f"{stop!r} is not on_signals")
    team = _Team(board, agents, kinds, make)
    with stop_on_signals() if isinstance(stop, str) else nullcontext(stop) as event:
        return await team.run(event or asyncio.Event(), on_dead)


class _Team:
    def __init__(
        self,
        board: Board,
        agents: Sequence[Agent[Any]],
        kinds: Iterable[type[Agent[Any]]],
        make_supervisor: MakeSupervisor,
    ) -> None:
        self._board = board
        self._roots = {agent.name: agent for agent in agents}
        if len(self._roots) != len(agents):
            raise InvalidRequest(field="agents", reason="two of them have the same name")
        self._agents_max = board.limits.agents.team_agents_max
        if len(agents) > self._agents_max:
            raise LimitExceeded("TEAM_AGENTS_MAX", len(agents), self._agents_max, "agents")
        classes: list[type[Agent[Any]]] = [type(agent) for agent in agents]
        self._kinds = {kind.kind: kind for kind in (*classes, *kinds)}
        self._make_supervisor = make_supervisor
        self._living: dict[str, _Seat] = {}
        self.ended: dict[str, AgentExit] = {}
        self._changed = asyncio.Event()
        self._stopping = False
        self._lookout = Lookout(board)

    async def run(self, stop: asyncio.Event, on_dead: OnDead) -> Mapping[str, AgentExit]:
        """Until all have ended."""
        for agent in self._roots.values():
            await self._enrol(agent)
        with ended_by_close(self._board):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_always, lambda: self._follow(tasks))
                tasks.start_soon(_always, lambda: self._stop_when_set(stop))
                tasks.start_soon(_always, lambda: self._look_out(on_dead))
                await self._all_ended()
                tasks.cancel_scope.cancel()
        return dict(self.ended)

    async def _enrol(self, agent: Agent[Any]) -> None:
        """Add a directly started agent to the roster, unless it is there already: then it
        continues."""
        member = TeamMember(kind=agent.kind).model_dump()
        board = self._board.waiting_for_thaw(FROZEN_WAIT_MS_MAX)
        with suppress(Conflict):
            await board.put(roster_key(agent.name), member, expected=ABSENT)

    # --- the roster -------------------------------------------------------------------------------

    async def _follow(self, tasks: TaskGroup) -> None:
        """Run the agents of the roster, now and whenever it changes."""
        is_behind = False
        while True:
            try:
                # Inside of the `try`: this asks the board, which may be away.
                if is_behind:
                    await self._board.refresh()
                    is_behind = False
                async with self._board.watch(f"{ROSTER}/*", snapshot=True) as watch:
                    found = {key: entry.value for key, entry in watch.state.items()}
                    await self._agree(found, tasks)
                    async for revised in watch:
                        for change in revised.changes:
                            # Changes of leases say nothing about the entry at their key.
                            if change.kind == "put":
                                found[change.key] = change.value
                            elif change.kind == "delete":
                                found.pop(change.key, None)
                        await self._agree(found, tasks)
            except (Compacted, Resync, RolledBack, StaleEpoch):
                is_behind = True
            except BlackboardError as error:
                await self._wait_after(error)

    async def _wait_after(self, error: BlackboardError) -> None:
        """Wait before the board is read again. Errors: `error`, when it was closed."""
        if self._board.is_closed:
            raise error
        log.warning("the team cannot read its board: %s", error)
        await anyio.sleep(_AWAY_PAUSE_S)

    async def _agree(self, found: Mapping[Key, Any], tasks: TaskGroup) -> None:
        """Start and stop agents according to the roster. Directly started agents run even if they
        are not in it."""
        wanted = {name: TeamMember(kind=agent.kind) for name, agent in self._roots.items()}
        for key, value in found.items():
            member = _member(value)
            if member is not None:
                wanted[key.rpartition("/")[2]] = member
        for name in self._living.keys() - wanted.keys():
            log.info("agent %s is no longer in the roster", name)
            # Waited for, as a member of that name may be added again, and must not run twice.
            await self._living.pop(name).leave()
            self.ended.pop(name, None)
        for name, member in wanted.items():
            if name in self._living or not self._is_known(name, member):
                continue
            if len(self._living) >= self._agents_max:
                await self._refuse(name, member)
                continue
            try:
                agent = self._agent(name, member)
            except Exception as error:  # noqa: BLE001 - it is the agent's own code
                await self._give_up(name, member, error)
                continue
            self.ended.pop(name, None)
            seat = self._living[name] = _Seat(agent, member)
            if self._stopping:  # one that was spawned by a last step, for example
                seat.stop()
            tasks.start_soon(seat.hold, self._tend, self._board)
        self._changed.set()

    async def _refuse(self, name: str, member: TeamMember) -> None:
        """Several were spawned at once, and the team is full: record the refusal in the roster."""
        size = len(self._living) + 1
        refusal = LimitExceeded("TEAM_AGENTS_MAX", size, self._agents_max, name)
        self.ended[name] = AgentExit(name, "refused", str(refusal))
        # Once: the record comes back through the watch of the roster, which leads here again.
        if member.how is None:
            log.warning("agent %s is not started: %s", name, refusal)
            await self._tell(self.ended[name])

    async def _give_up(self, name: str, member: TeamMember, error: Exception) -> None:
        """It cannot be made or supervised, which ends no other agent: record that in the roster."""
        ended = AgentExit(name, "crash_loop", crashes=1, error=line_of(error))
        if name not in self.ended:
            log.error("agent %s is given up: %s", name, ended.error, exc_info=error)
        # Before it counts as ended: with the last end the team ends.
        if member.how is None:
            await self._tell(self.ended.get(name, ended))
        if name not in self.ended:
            self._has_ended(ended)
            self._lookout.stir()

    def _is_known(self, name: str, member: TeamMember) -> bool:
        """Whether this team runs that member of the roster."""
        if name in self._roots:
            return True
        if member.kind not in self._kinds:
            log.debug("agent %s has kind %s, which is unknown here", name, member.kind)
            return False
        try:
            check_agent_name(name)
        except InvalidRequest:
            log.debug("%s in the roster is no name of an agent", name)
            return False
        return True

    def _agent(self, name: str, member: TeamMember) -> Agent[Any]:
        """The agent. Errors: whatever its class raises."""
        if name in self._roots:
            return self._roots[name]
        agent: Agent[Any] = self._kinds[member.kind](name)
        return agent

    async def _all_ended(self) -> None:
        """Return when all agents in the roster have ended, according to the present board."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._living or self._living.keys() - self.ended.keys():
                continue
            if self._stopping:  # also while the board is away
                return
            try:
                # The watch may be behind, but a member that was spawned last is on
                # the board already.
                roster = [entry async for entry in self._board.scan(f"{ROSTER}/*")]
            except Unavailable as error:
                await self._wait_after(error)
                self._changed.set()
                continue
            names = {entry.key.rpartition("/")[2] for entry in roster if self._is_ours(entry)}
            if names <= self.ended.keys():
                return

    def _is_ours(self, entry: Entry) -> bool:
        member = _member(entry.value)
        return member is not None and self._is_known(entry.key.rpartition("/")[2], member)

    async def _stop_when_set(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stop_all()

    def _stop_all(self) -> None:
        self._stopping = True
        for seat in self._living.values():
            seat.stop()
        self._changed.set()

    async def _look_out(self, on_dead: OnDead) -> None:
        """Report when none of the remaining agents can continue, or stop them then."""
        while not self._stopping:
            await self._lookout.wait()
            stalled = await self._lookout.look(self.ended, self._rests())
            if stalled is None or on_dead == "report":
                continue
            try:
                asks = await self._lookout.asks_somebody(stalled.waits)
            except Unavailable as error:
                await self._wait_after(error)
                self._lookout.stir()
                continue
            # Compared again: an agent may have continued while the requests were read.
            if not asks and self._rests() == stalled.waits:
                log.warning("the team is stopped: none of the remaining agents can continue")
                self._stop_all()

    def _rests(self) -> dict[str, Rest | None]:
        """Agents that have not ended, with what each waits for; None: it is working."""
        living = {name: seat for name, seat in self._living.items() if name not in self.ended}
        return {name: seat.life.rest if seat.life else None for name, seat in living.items()}

    # --- one agent --------------------------------------------------------------------------------

    async def _tend(self, seat: "_Seat") -> None:
        """Run one agent to the end of the team. Errors: those of a board that is away."""
        try:
            await self._run_it(seat)
        except _AGAIN:
            raise
        except Exception as error:
            if self._board.is_closed:
                raise
            await self._give_up(seat.agent.name, seat.member, error)

    async def _run_it(self, seat: "_Seat") -> None:
        """Run one agent, again whenever a restore (or a person) changes its state."""
        home = self._board.as_agent(seat.agent.name)
        if not seat.stopped:
            for board in (self._board, home):
                await board.refresh()
            await self._give_first_state(home, seat)
        while not seat.stopped:
            if seat.ended is None:  # else its end could not be recorded
                seat.life = self._make_supervisor(seat.agent)
                seat.life.on_rest = self._lookout.stir
                seat.ended = await seat.life.run()
            await self._note(seat.ended)
            if seat.ended.how == "stopped":
                return
            await self._until_it_has_more_to_do(home, seat.ended)
            seat.ended = None
            self.ended.pop(seat.agent.name, None)
        self._has_ended(seat.ended or AgentExit(seat.agent.name, "stopped"))

    async def _give_first_state(self, home: Board, seat: "_Seat") -> None:
        if seat.member.state is None:
            return
        schema = seat.agent.schema
        stored = StoredState(kind=schema.kind, version=schema.version, state=seat.member.state)
        key = state_key(seat.agent.name)
        with suppress(Conflict):
            put = Put(key, encode_value(stored.plain()))
            await home.commit([put], conditions=[KeyAt(key, ABSENT)], note="born")

    async def _note(self, ended: AgentExit) -> None:
        """Record how it ended; in the roster, unless it was merely stopped."""
        if ended.how != "stopped":
            await self._board.refresh()
            await self._tell(ended)
        self._has_ended(ended)

    def _has_ended(self, ended: AgentExit) -> None:
        self.ended[ended.agent] = ended
        self._changed.set()
        self._lookout.stir()

    async def _tell(self, ended: AgentExit) -> None:
        key = roster_key(ended.agent)
        update = {"how": ended.how, "outcome": ended.outcome}
        entry = await self._board.entry(key)
        if entry is not None and isinstance(entry.value, dict):
            updated = entry.value | update
            try:
                await self._board.put(key, updated, expected=entry.mod_revision)
            except Conflict:
                # Changed since it was read, by a restore for example, which may undo the end.
                pass
            except (AccessDenied, LimitExceeded) as refused:  # a quota is used up: no end of others
                log.warning("how agent %s ended is not recorded: %s", ended.agent, refused)

    async def _until_it_has_more_to_do(self, home: Board, ended: AgentExit) -> None:
        key = state_key(ended.agent)
        # No later change of the state was seen. Somebody who reads of the crash may mend the state
        # before it is looked at here.
        known: Revision | None = ended.crashed_at or None
        is_behind = False
        while True:
            try:
                if is_behind:
                    await home.refresh()
                    is_behind = False
                entry = await home.entry(key)
                done = _status(entry.value) == Status.DONE if entry else False
                if ended.how == "done" and not done:
                    return
                since = entry.mod_revision if entry else (await home.head()).revision
                if ended.how == "crash_loop" and entry and since > (known or since):
                    return
                known = known or since
                async with home.watch(key, after=since) as watch:
                    await anext(watch)
                if ended.how == "crash_loop":
                    return
            except (Compacted, Resync, RolledBack, StaleEpoch):
                is_behind = True
            except Unavailable as error:  # it stays given up
                await self._wait_after(error)


class _Seat:
    """An agent in this process: its task, and its present supervisor."""

    def __init__(self, agent: Agent[Any], member: TeamMember) -> None:
        self.agent = agent
        self.member = member
        self.life: Lived | None = None
        self.ended: AgentExit | None = None
        """How its last run ended, until it has more to do."""
        self.stopped = False
        self._scope = anyio.CancelScope()
        self._left = asyncio.Event()

    def stop(self) -> None:
        """Ask its agent to stop."""
        self.stopped = True
        if self.life is not None:
            self.life.stop()

    async def hold(self, tend: Callable[["_Seat"], Awaitable[None]], board: Board) -> None:
        """Run `tend`, and again after the board could not be reached, unless it was closed."""
        try:
            with self._scope:
                while True:
                    asked = cancellations()
                    try:
                        return await tend(self)
                    except asyncio.CancelledError:
                        if cancellations() > asked:
                            raise
                        log.warning("agent %s is supervised again", self.agent.name, exc_info=True)
                    except _AGAIN as error:
                        if board.is_closed:
                            raise
                        log.warning("agent %s is not supervised: %s", self.agent.name, error)
                    await anyio.sleep(_AWAY_PAUSE_S)
        finally:
            self._left.set()

    async def leave(self) -> None:
        """Cancel it at once; its current step is abandoned."""
        self._scope.cancel()
        await self._left.wait()


async def _always(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`, and again if an unrequested cancellation ends it."""
    asked = cancellations()
    while True:
        try:
            return await work()
        except asyncio.CancelledError:
            if cancellations() > asked:
                raise
            log.warning("a task of the team is started again", exc_info=True)
        await anyio.sleep(_AWAY_PAUSE_S)


def _member(value: Any) -> TeamMember | None:
    """A line of the roster; None if it is malformed, because others may write there, too."""
    try:
        return TeamMember.model_validate(value)
    except ValidationError:
        return None


def _status(value: Any) -> str:
    return str(value.get("status", "")) if isinstance(value, dict) else ""
