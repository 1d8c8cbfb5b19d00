"""Detects a stalled team: an agent is gone, and all remaining ones wait.

Agents are not stopped unless requested (`run_team(on_dead="stop")`): the awaited entry may still
come from a person, another team, or a repaired agent. It is reported in one line of the log and one
entry, `public/~team/stalled`, until an agent continues.

Invariants
- a team counts as stalled only if each remaining agent rests, has no timer that will wake it, and
  nothing that would wake it has happened since it began to rest.
- While an approval is pending, no agent is stopped, because a person may still answer.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from blackboard.client.board import Board
from blackboard.errors import BlackboardError, Compacted
from blackboard.runtime.approvals import pending
from blackboard.runtime.run import Rest
from blackboard.runtime.supervisor import AgentExit
from blackboard.units import Key, Revision

OnDead = Literal["report", "stop"]
STALLED: Key = "public/~team/stalled"
"""The entry with the agents that are gone (`gone`) and what the others wait for (`waits`)."""
_AWAY_PAUSE_S = 1.0
_SHOWN_PATTERNS_MAX = 8
"""Patterns listed per agent: the record is for people, who read the first few."""
_UNKNOWN = object()
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stalled:
    """The agents that are gone, and what each of the others waits for."""

    gone: Mapping[str, AgentExit]
    waits: Mapping[str, Rest]

    def plain(self) -> dict[str, Any]:
        """The stored form."""
        gone = {name: {"how": one.how, "error": one.error} for name, one in self.gone.items()}
        waits = {name: list(one.patterns[:_SHOWN_PATTERNS_MAX]) for name, one in self.waits.items()}
        return {"gone": gone, "waits": waits}

    def __str__(self) -> str:
        gone = ", ".join(f"{name} ({one.error or one.how})" for name, one in self.gone.items())
        waits = "; ".join(
            f"{name} waits for {', '.join(one.patterns[:_SHOWN_PATTERNS_MAX])}"
            for name, one in self.waits.items()
        )
        return f"gone: {gone}. Left: {waits}"


class Lookout:
    """Detects when the team on `board` is stalled, and reports it.

    Call `stir` when an agent has ended, begins to rest, or continues.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._stirred = asyncio.Event()
        self._reported: Any = _UNKNOWN
        self._quiet: dict[str, tuple[Rest, Revision]] = {}
        """The revision up to which no change ends a rest."""

    def stir(self) -> None:
        """Request another check."""
        self._stirred.set()

    async def wait(self) -> None:
        """Return when a check was requested."""
        await self._stirred.wait()
        self._stirred.clear()

    async def look(
        self, ended: Mapping[str, AgentExit], living: Mapping[str, Rest | None]
    ) -> Stalled | None:
        """Whether the team is stalled. A stall is reported, and the report is withdrawn when it
        ends.

        `living` has all agents that have not ended, each with its rest. While the board cannot be
        read, the answer is False, and the check is repeated later.
        """
        gone = {name: one for name, one in ended.items() if one.how in ("crash_loop", "refused")}
        waits = {name: rest for name, rest in living.items() if rest is not None}
        try:
            found = None
            if gone and waits and len(waits) == len(living) and await self._all_sleep(waits):
                found = Stalled(gone, waits)
            await self._tell(found)
        except BlackboardError as error:
            log.warning("cannot check whether the team is stalled: %s", error)
            await anyio.sleep(_AWAY_PAUSE_S)
            # Asked for here, as nothing else may happen in a team in which all wait.
            self.stir()
            return None
        return found

    async def asks_somebody(self, living: Mapping[str, Rest | None]) -> bool:
        """Whether one of `living` waits for a person: a request of it has no answer yet."""
        return any(
            asked.answer is None and asked.agent in living for asked in await pending(self._board)
        )

    async def _all_sleep(self, waits: Mapping[str, Rest]) -> bool:
        if any(rest.ends_by_itself for rest in waits.values()):
            return False
        return all([await self._sleeps(rest) for rest in waits.values()])

    async def _sleeps(self, rest: Rest) -> bool:
        """Whether no change has ended `rest`; the agent may not have received one yet."""
        board = self._board.as_agent(rest.agent)
        known, after = self._quiet.get(rest.agent, (rest, rest.since))
        after = after if known is rest else rest.since
        # On a busy board, each page may find something, without end.
        until = (await board.head()).revision
        try:
            while after < until and (page := await board.log(after=after)):
                for revised in page:
                    changes = revised.changes
                    if revised.epoch is not None or any(map(rest.is_ended_by, changes)):
                        return False
                after = page[-1].revision
        except Compacted:
            # The watch of the agent fails in the same way, and lets it take a step.
            return False
        self._quiet[rest.agent] = rest, after
        return True

    async def _tell(self, found: Stalled | None) -> None:
        if self._reported is _UNKNOWN:  # an earlier run of the team may have reported it
            self._reported = await self._board.get(STALLED)
        report = None if found is None else found.plain()
        if report == self._reported:
            return
        await self._board.refresh()
        if found is None:
            await self._board.delete(STALLED)
        else:
            log.warning("the team cannot go on by itself: %s", found)
            await self._board.put(STALLED, report, note="the team cannot go on by itself")
        self._reported = report
