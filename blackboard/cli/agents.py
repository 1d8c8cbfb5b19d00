"""agents: who is there, what each is at, and who crashed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from blackboard.cli import screen
from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blackboard.client.board import Board
    from blackboard.client.leases.presence import Presence

_CRASHES_MAX = 1_024
"""Lines of crashes that are shown: a team has no more agents."""

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class Line:
    """An agent as it is shown. `since_ms`: since when it is there, None if it is not."""

    agent: str
    state: str
    since_ms: int | None
    note: str


@app.command(
    cls=ReadCommand,
    rich_help_panel="Agents",
    epilog="""\
blackboard agents
blackboard agents --json | jq -r '.agents[] | select(.state == "crash_loop").agent'""",
)
def agents(context: typer.Context) -> None:
    """List the agents that are there, and those that crashed.

    What each is at, since when it is there, and what it waits for or crashed with.
    """
    from blackboard.cli import render as show
    from blackboard.cli import session

    flags = Flags.of(context)

    async def read(board: "Board") -> "Sequence[Line]":
        from blackboard.runtime.supervisor import SUPERVISION

        page = await board.list(f"{SUPERVISION}/*", limit=_CRASHES_MAX)
        crashed = {entry.key.rpartition("/")[2]: entry.value for entry in page.entries}
        return lines(await board.agents(), crashed)

    found = session.with_board(flags, read)
    if flags.as_json:
        show.print_json({"agents": show.plain(found)})
        return
    if not found:
        screen.say("no agent is there")
        return
    now = show.now_ms()
    rows = [
        (
            line.agent,
            screen.safe(line.state),
            show.clock(line.since_ms, now) if line.since_ms is not None else "",
            screen.safe(line.note),
        )
        for line in found
    ]
    show.print_table(("agent", "state", "since", "note"), rows)


def lines(present: "Sequence[Presence]", crashed: "Mapping[str, Any]") -> "Sequence[Line]":
    """Both together, by name. Of an agent that crashed, that is told; anybody may write there."""
    found = {
        one.agent: Line(
            one.agent, one.state if one.alive is not False else "gone", one.since_ms, one.note
        )
        for one in present
    }
    for name, told in crashed.items():
        if isinstance(told, dict):
            since_ms = found[name].since_ms if name in found else None
            state, error = str(told.get("state", "crashed")), str(told.get("error", ""))
            found[name] = Line(name, state, since_ms, error)
    return [found[name] for name in sorted(found)]
