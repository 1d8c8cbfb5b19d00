"""freeze, thaw, redact: what an operator does in an incident."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from blackboard.cli import screen
from blackboard.cli.errors import wrong_usage
from blackboard.cli.options import CommandGroup, Flags, ReadCommand, ServiceCommand

if TYPE_CHECKING:
    from blackboard.client.board import Board
    from blackboard.client.client import Client
    from blackboard.core.checkpoints import Redaction
    from blackboard.core.freeze import Freeze

_PANEL: Final = "Checkpoints"
_BOARD = typer.Argument(metavar="BOARD", help="Which board.", show_default=False)
_NOTE = typer.Option("--note", metavar="TEXT", help="The reason, for the log and the audit.")

app = typer.Typer(cls=CommandGroup)


@app.command(
    cls=ServiceCommand,
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

    The first measure in an incident: reads, watches, checkpoints and restores continue, and no
    lease is lost. It survives restarts and restores. A refusal says who froze the board, why, and
    since when; agents of the runtime wait. Needs the admin right.
    """
    from blackboard.cli import render as shown, session

    async def work(client: "Client") -> "Freeze":
        return await client.freeze(name, note=note)

    flags = Flags.of(context)
    frozen = session.with_client(flags, work)
    if flags.as_json:
        shown.print_json({"board": name, **shown.plain(frozen)})
    else:
        screen.say(f"board {name} is frozen {shown.describe_freeze(frozen)}")


@app.command(
    cls=ServiceCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard thaw main --note "restored to before-plan\"""",
)
def thaw(
    context: typer.Context,
    name: Annotated[str, _BOARD],
    note: Annotated[str, _NOTE] = "",
) -> None:
    """Accept commits on a frozen board again."""
    from blackboard.cli import render as shown, session

    async def work(client: "Client") -> "Freeze | None":
        return await client.thaw(name, note=note)

    flags = Flags.of(context)
    ended = session.with_client(flags, work)
    if flags.as_json:
        document = None if ended is None else shown.plain(ended)
        shown.print_json({"board": name, "ended": document})
    elif ended is None:
        screen.say(f"board {name} was not frozen")
    else:
        screen.say(
            f"board {name} accepts commits again; it was frozen {shown.describe_freeze(ended)}"
        )


@app.command(
    cls=ReadCommand,
    rich_help_panel="History",
    epilog="""\
blackboard redact public/plan/notes --yes --why "an API key was pasted"
blackboard redact private/researcher/contact --yes --json""",
)
def redact(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Which key.", show_default=False)],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The audit keeps it.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove every value that a key ever had, for good.

    From the state, log, archive, blobs and documents, and from every board that shares history with
    this one. The facts that the key changed, when, and by whom, stay, and a marker, which a restore
    puts back. Copies at other keys are not found; earlier exports and backups are not reached. If
    interrupted, it continues in the service; repeating it is safe.
    """
    from blackboard.cli import session

    async def work(client: "Client", board: "Board") -> "Redaction":
        return await client.redact(key, board=board.name, why=why, progress=screen.say)

    flags = Flags.of(context)
    if not yes:
        _ask(key)
    with screen.busy("redacting"):
        found = session.with_client_and_board(flags, work)
    _tell(found, key, as_json=flags.as_json)


def _ask(key: str) -> None:
    """Ask for confirmation. A no ends the command."""
    import sys

    if not sys.stdin.isatty():
        raise wrong_usage("nobody is here to be asked", "Say --yes.")
    screen.say("On this board and all that share its history. It cannot be undone.")
    typer.confirm(f"Remove every value that {key} ever had?", abort=True, err=True)


def _tell(found: "Redaction", key: str, *, as_json: bool) -> None:
    from blackboard.cli import render

    if as_json:
        document = {"key": key, "boards": list(found.boards), "versions": found.versions}
        render.print_json(document | {"guessable": found.guessable, "left": list(found.left)})
        return
    where = ", ".join(found.boards)
    screen.say(f"{key}: {found.versions} values were removed from the history of {where}")
    if found.guessable:
        screen.say(
            f"{found.guessable} revisions are from before salts were introduced: with the archive,"
            " a guess of a short value can still be checked"
        )
    for left in found.left:
        screen.say(f"left to do: {left}")
    screen.say("not reached: earlier exports and backups, and copies at other keys")
