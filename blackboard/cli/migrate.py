"""migrate: whether new code can take in what agents have stored."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli import screen
from blackboard.cli.errors import Exit, not_found, wrong_usage
from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from blackboard.client.board import Board
    from blackboard.runtime.migrations import Finding

_FIX = "Give it as Python would import it."

app = typer.Typer()


@app.command(
    cls=ReadCommand,
    rich_help_panel="Agents",
    epilog="""\
blackboard migrate --check my_agents  # before a deploy; exit code 1 if a state cannot be taken in
blackboard migrate my_agents  # write the states of agents at rest anew
blackboard migrate --check my_agents --json | jq '.agents[] | select(.verdict == "fails")'""",
)
def migrate(
    context: typer.Context,
    module: Annotated[
        str,
        typer.Argument(metavar="MODULE", help="Where the agents' classes are.", show_default=False),
    ],
    check: Annotated[bool, typer.Option("--check", help="Only tell; write nothing.")] = False,
) -> None:
    """Bring stored states of agents to the versions of a module.

    With --check only tell whether that works. The module is imported, from the current directory
    too. A state that fails is left as it is.
    """
    from blackboard.cli import render as show
    from blackboard.cli import session

    flags = Flags.of(context)
    code = imported(module)

    async def run(board: "Board") -> "Sequence[Finding]":
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

    Errors: CommandError when there is none, or when `name` goes on to what is in it.
    """
    module, colon, _ = name.partition(":")
    if not module or module.startswith("."):
        raise not_found(f"there is no module {name!r}", _FIX)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise not_found(f"there is no module {module}", _FIX) from error
    finally:
        sys.path.pop(0)
    if colon:
        raise wrong_usage(f"{name} names more than a module", f"Give the module alone: {module}")
    return found
