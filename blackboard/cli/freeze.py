"""freeze, thaw: nobody changes a board while an incident is looked into."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from blackboard.cli import screen
from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from blackboard.client.client import Client
    from blackboard.core.freeze import Freeze

_PANEL: Final = "Checkpoints"
_BOARD = typer.Argument(metavar="BOARD", help="Which board.", show_default=False)
_NOTE = typer.Option("--note", metavar="TEXT", help="Why; the log and the audit keep it.")

app = typer.Typer()


@app.command(
    cls=ReadCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard freeze main --note "the researcher writes nonsense"
blackboard freeze main --json""",
)
def freeze(
    context: typer.Context,
    name: Annotated[str, _BOARD],
    note: Annotated[str, _NOTE] = "",
) -> None:
    """Refuse every commit on a board until it is thawed.

    The first act in an incident: reading, watching, checkpoints and restores go on, and nobody
    loses a lease. It outlives restarts and restores. Whoever is refused is told who froze the
    board, why, and since when; agents of the runtime wait. Needs the admin right.
    """
    from blackboard.cli import render as shown
    from blackboard.cli import session

    async def work(client: "Client") -> "Freeze":
        return await client.freeze(name, note=note)

    flags = Flags.of(context)
    frozen = session.with_client(flags, work)
    if flags.as_json:
        shown.print_json({"board": name, **shown.plain(frozen)})
    else:
        screen.say(f"board {name} is frozen {shown.told_freeze(frozen)}")


@app.command(
    cls=ReadCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard thaw main --note "restored to before-plan\"""",
)
def thaw(
    context: typer.Context,
    name: Annotated[str, _BOARD],
    note: Annotated[str, _NOTE] = "",
) -> None:
    """Take commits on a frozen board again."""
    from blackboard.cli import render as shown
    from blackboard.cli import session

    async def work(client: "Client") -> "Freeze | None":
        return await client.thaw(name, note=note)

    flags = Flags.of(context)
    ended = session.with_client(flags, work)
    if flags.as_json:
        told = None if ended is None else shown.plain(ended)
        shown.print_json({"board": name, "ended": told})
    elif ended is None:
        screen.say(f"board {name} was not frozen")
    else:
        screen.say(f"board {name} takes commits again; it was frozen {shown.told_freeze(ended)}")
