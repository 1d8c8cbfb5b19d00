"""agents: the attached agents, what each is doing, and those that crashed.

migrate: checks that new code can read the stored states of agents.
"""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blackboard.cli import screen
from blackboard.cli.errors import Exit, not_found, wrong_usage
from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from blackboard.client.board import Board
    from blackboard.client.leases.presence import Presence
    from blackboard.runtime.migrations import MigrationFinding

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the list. `since_ms`: when it attached, None if it is not attached."""

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
    """List the attached agents, and those that crashed.

    With what each is doing, since when, and what it waits for or crashed with.
    """
    from blackboard.cli import render as show, session

    flags = Flags.of(context)

    async def read(board: "Board") -> "Sequence[Line]":
        from blackboard.runtime.supervisor import SUPERVISION

        found = [entry async for entry in board.scan(f"{SUPERVISION}/*")]
        crashed = {entry.key.rpartition("/")[2]: entry.value for entry in found}
        return lines(await board.agents(), crashed)

    found = session.with_board(flags, read)
    if flags.as_json:
        show.print_json({"agents": show.plain(found)})
        return
    if not found:
        screen.say("no agent is attached")
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
    """Both together, by name. A crash takes precedence, because the presence may be outdated."""
    found = {
        one.agent: Line(
            one.agent, one.state if one.alive is not False else "gone", one.since_ms, one.note
        )
        for one in present
    }
    for name, record in crashed.items():
        if isinstance(record, dict):
            since_ms = found[name].since_ms if name in found else None
            state, error = str(record.get("state", "crashed")), str(record.get("error", ""))
            found[name] = Line(name, state, since_ms, error)
    return [found[name] for name in sorted(found)]


_FIX = "Give it as Python would import it."


@app.command(
    cls=ReadCommand,
    rich_help_panel="Agents",
    epilog="""\
blackboard migrate --check my_agents  # before a deployment; exit code 1 if a state cannot be read
blackboard migrate my_agents  # rewrite the states of resting agents
blackboard migrate --check my_agents --json | jq '.agents[] | select(.verdict == "fails")'""",
)
def migrate(
    context: typer.Context,
    module: Annotated[
        str,
        typer.Argument(metavar="MODULE", help="Where the agents' classes are.", show_default=False),
    ],
    check: Annotated[bool, typer.Option("--check", help="Only check; write nothing.")] = False,
) -> None:
    """Bring stored states of agents to the versions of a module.

    With --check, only report whether that works. The module is imported, also from the current
    directory. A state that fails is not changed.
    """
    from blackboard.cli import render as show, session

    flags = Flags.of(context)
    code = imported(module)

    async def run(board: "Board") -> "Sequence[MigrationFinding]":
        from blackboard.runtime.migrations import kinds_in, migrate

        return await migrate(board, kinds_in(code), write=not check)

    found = session.with_board(flags, run)
    if flags.as_json:
        show.print_json({"agents": show.plain(found)})
    elif found:
        rows = [
            (
                one.agent,
                one.kind,
                str(one.version),
                str(one.to),
                one.verdict,
                screen.safe(one.reason),
            )
            for one in found
        ]
        show.print_table(("agent", "kind", "version", "to", "verdict", "reason"), rows)
    else:
        screen.say("no agent has stored a state")
    if not all(one.good for one in found):
        raise typer.Exit(Exit.ERROR)


def imported(name: str) -> "ModuleType":
    """The module `name`, found from the current directory too.

    Errors: CommandError when there is none, or when `name` continues with an attribute of it.
    """
    module, colon, _ = name.partition(":")
    if not module or module.startswith("."):
        raise not_found(f"there is no module {name!r}", _FIX)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Also a package above it; and not one that the module misses, whose name begins it.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise not_found(f"there is no module {module}", _FIX) from error
    finally:
        sys.path.pop(0)
    if colon:
        raise wrong_usage(f"{name} names more than a module", f"Give the module alone: {module}")
    return found
