"""restore, rewind, branch, history: earlier states of a board.

board: operations on a whole board.
"""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from blackboard.cli import screen
from blackboard.cli.errors import CommandError, Exit, wrong_usage
from blackboard.cli.options import CommandGroup, Flags, ReadCommand, ServiceCommand, TakeBackCommand
from blackboard.limits import REVISION_MAX

if TYPE_CHECKING:
    from blackboard.client.board import Board
    from blackboard.client.client import Client
    from blackboard.client.comparison import RestorePreview
    from blackboard.client.views import Version
    from blackboard.core.checkpoints import Restored, When

_PANEL: Final = "Checkpoints"
_YES = typer.Option("--yes", "-y", help="Do not ask.")
_NOTE = typer.Option("--note", metavar="TEXT", help="Why; the log keeps it.")
HISTORY_LIMIT_DEFAULT = 20

app = typer.Typer()
board_app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Remove a board for good.")


@app.command(
    cls=TakeBackCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard restore before-plan  # shows what changes and who is interrupted, then asks
blackboard restore before-plan --yes --note "the researcher spoiled the valuation\"""",
)
def restore(
    context: typer.Context,
    moment: Annotated[
        str,
        typer.Argument(
            metavar="MOMENT",
            help="A checkpoint, a revision, or a time such as 2026-11-21T09:30.",
            show_default=False,
        ),
    ],
) -> None:
    """Restore the whole team to a moment.

    Public, every agent's private state and inboxes, atomically. Nothing is lost: the abandoned
    revisions stay readable, and can be restored themselves. Running processes are refused until
    they refresh their view of the board.
    """
    from blackboard.cli import values

    _take_back(Flags.of(context), values.parse_moment(moment))


@app.command(
    cls=TakeBackCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard rewind --before 7  # to just before the revision that went wrong
blackboard rewind --to 4 --yes
blackboard rewind --at 2026-11-21T09:30""",
)
def rewind(
    context: typer.Context,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="REV", min=0, max=REVISION_MAX, help="To this revision."),
    ] = None,
    before: Annotated[
        int | None,
        typer.Option(
            "--before", metavar="REV", min=1, max=REVISION_MAX, help="To just before this one."
        ),
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="To the state at that time.")
    ] = None,
) -> None:
    """Restore the team by revision, or by time."""
    from blackboard.cli import values

    given: list[When] = [] if to is None else [to]
    given += [] if before is None else [before - 1]
    given += [] if at is None else [values.time_of(at)]
    if len(given) != 1:
        raise wrong_usage("give one of --to, --before and --at")
    _take_back(Flags.of(context), given[0])


def _take_back(flags: Flags, to: "When") -> None:
    from blackboard.cli import render as past, session

    seen = None if flags.yes else _ask(flags, to)

    async def work(board: "Board") -> "Restored":
        # The answer may have taken minutes. A restore is accepted in any epoch.
        if seen is not None and (await board.head()).epoch.id != seen:
            message = "another epoch began since you were asked: nothing was changed"
            fix = "Repeat the command: it shows what would change now."
            raise CommandError("stale_epoch", Exit.CONFLICT, message, fix)
        return await board.restore(to, note=flags.note or "", keep_calls=flags.keep_calls)

    with screen.busy("restoring"):
        restored = session.with_board(flags, work)
    past.print_restored(restored, as_json=flags.as_json)


def _ask(flags: Flags, to: "When") -> str:
    """Show the changes and the interrupted agents, and ask for confirmation. A no ends the
    command. Returns the epoch in which that was seen."""
    import sys

    from blackboard.cli import render as past, session

    async def look(board: "Board") -> "tuple[str, RestorePreview]":
        epoch = (await board.head()).epoch.id  # before the preview, which is of it or a later one
        return epoch, await board.preview_restore(to, keys_max=past.PREVIEW_KEYS)

    epoch, preview = session.with_board(flags, look)
    past.print_preview(preview, keep_calls=flags.keep_calls)
    if not sys.stdin.isatty():
        raise wrong_usage("nobody is here to be asked", "Say --yes.")
    typer.confirm("Restore the board?", abort=True, err=True)
    return epoch


@board_app.command(
    cls=ServiceCommand,
    epilog="""\
blackboard board remove trial  # asks
blackboard board remove trial --yes""",
)
def remove(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="BOARD", help="Which board.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a board and all of its data, for good.

    Entries, leases, documents, the log, the archive, checkpoints, data keys, and histories that
    were set apart from it in the archive. Branches keep what they share. It cannot be undone:
    export it first. Repeating it is safe, also after a crash in the middle.
    """
    import sys

    from blackboard.cli import render as shown, session

    if not yes:
        if not sys.stdin.isatty():
            raise wrong_usage("this cannot be undone, and nobody is here to be asked", "Say --yes.")
        typer.confirm(f"Remove board {name} for good?", abort=True, err=True)

    async def work(client: "Client") -> None:
        await client.remove_board(name)

    flags = Flags.of(context)
    with screen.busy("removing"):
        session.with_client(flags, work)
    if flags.as_json:
        shown.print_json({"board": name, "removed": True})
    else:
        screen.say(f"board {name} is gone")


@app.command(
    cls=ReadCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard branch cheaper before-plan --note "what if growth is 4 percent"
blackboard branch trial  # as it is now""",
)
def branch(
    context: typer.Context,
    new: Annotated[
        str, typer.Argument(metavar="BOARD", help="The new board's name.", show_default=False)
    ],
    moment: Annotated[
        str, typer.Argument(metavar="MOMENT", help="The moment it begins from. Default: now.")
    ] = "now",
    note: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="Purpose of the branch.")
    ] = "",
) -> None:
    """Make a new board that begins with this one's content.

    The two are independent afterwards; the earlier history of this one is readable through the new
    one.
    """
    from blackboard.cli import render as show, session, values

    async def work(board: "Board") -> int | None:
        made = await board.branch(new, values.parse_moment(moment), note=note)
        return await session.first_revision(made)

    flags = Flags.of(context)
    with screen.busy("branching"):
        revision = session.with_board(flags, work)
    if flags.as_json:
        show.print_json({"board": new, "revision": revision})
    else:
        screen.say(f"board {new} continues from {screen.revision_in_words(revision)}")


@app.command(
    cls=ReadCommand,
    rich_help_panel="History",
    epilog="""\
blackboard history public/valuation
blackboard history public/valuation --limit 3 --json
blackboard history public/valuation --author ann --since 2026-11-21T09:30""",
)
def history(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Whose past.", show_default=False)],
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="At most this many versions.")
    ] = HISTORY_LIMIT_DEFAULT,
    author: Annotated[
        str | None, typer.Option("--author", metavar="AGENT", help="Only versions of this agent.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="MOMENT", help="Only versions after it.")
    ] = None,
) -> None:
    """Print the versions of a key, the newest first.

    Also before restores, and before a branch began.
    """
    from blackboard.cli import render as past, session, values

    moment = None if since is None else values.parse_moment(since)

    async def look(board: "Board") -> "tuple[Version, ...]":
        return await board.history(key, limit=limit, author=author, since=moment)

    flags = Flags.of(context)
    past.print_history(session.with_board(flags, look), as_json=flags.as_json)
