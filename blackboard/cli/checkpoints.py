"""checkpoint: named cuts of a whole board: create, list, compare, verify, export, import."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli import screen
from blackboard.cli.errors import CommandError, Exit, wrong_usage
from blackboard.cli.options import CommandGroup, Flags, ReadCommand, ServiceCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blackboard.client.board import Board
    from blackboard.client.client import Client
    from blackboard.client.diff import Diff
    from blackboard.client.export import Exported
    from blackboard.core.checkpoints import Checkpoint, CheckpointInfo, Pruned, Verified

DIFF_LIMIT_DEFAULT = 200
_BOUNDS = {"d": 86_400_000, "MB": 1_000_000}
"""What `--history` counts in, in milliseconds and in bytes."""
_NAME = typer.Argument(metavar="NAME", help="The checkpoint's name.", show_default=False)
_MOMENT = "A revision, a checkpoint, now, or a time such as 2026-11-21T09:30."

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Cuts of the whole board, with every agent."
)


@app.command(
    cls=ReadCommand,
    epilog="""\
blackboard checkpoint create before-plan --note "all three agree"
blackboard checkpoint create  # the time is its name; pruning may remove it
blackboard checkpoint create fresh --barrier 5  # first, attached agents deliver their memory""",
)
def create(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Default: made from the time.")
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Why.")] = "",
    barrier_s: Annotated[
        float | None,
        typer.Option("--barrier", metavar="SECONDS", help="Ask every agent for its state first."),
    ] = None,
    stale_ok: Annotated[
        bool, typer.Option("--stale-ok", help="Take it even if an agent did not answer; says who.")
    ] = False,
) -> None:
    """Name the present moment of the whole team.

    Public, private and inboxes, as one consistent cut. It blocks no agent.
    """
    from blackboard.cli import render as past, session, values

    flags = Flags.of(context)
    if barrier_s is not None and not barrier_s > 0:
        raise wrong_usage("--barrier must be a number of seconds, more than 0")
    barrier_ms = values.milliseconds(barrier_s, "--barrier")

    async def take(board: "Board") -> "Checkpoint":
        return await board.checkpoint(name, note=note, barrier_ms=barrier_ms, stale_ok=stale_ok)

    past.print_taken(session.with_board(flags, take), as_json=flags.as_json)


@app.command(
    "list",
    cls=ReadCommand,
    epilog="""\
blackboard checkpoint list
blackboard checkpoint list --json | jq -r '.[].name'""",
)
def list_all(context: typer.Context) -> None:
    """Print the checkpoints of a board, the oldest first."""
    from blackboard.cli import render as past, render as show, session

    async def look(client: "Client", board: "Board") -> "tuple[Checkpoint, ...]":
        found = await board.checkpoints()
        if not found and not await session.has_begun(board):
            await session.tell_no_commits(client, board)
        return found

    flags = Flags.of(context)
    found = session.with_client_and_board(flags, look)
    if flags.as_json:
        show.print_json(show.plain(found))
    else:
        past.print_checkpoints(found)


@app.command(cls=ReadCommand, epilog="blackboard checkpoint show before-plan")
def show(context: typer.Context, name: Annotated[str, _NAME]) -> None:
    """Print the manifest of a checkpoint.

    Digests of namespaces, agents' steps and declarations, and the signer.
    """
    from blackboard.cli import render as past, render as shown, session

    async def look(board: "Board") -> "CheckpointInfo":
        return await board.show(name)

    flags = Flags.of(context)
    found = session.with_board(flags, look)
    if flags.as_json:
        shown.print_json(shown.plain(found))
    else:
        past.print_manifest(found)


@app.command(
    cls=ReadCommand,
    epilog="""\
blackboard checkpoint diff before-plan  # what changed since
blackboard checkpoint diff before-plan after-plan --pattern 'private/architect/**'
blackboard checkpoint diff now now --other cheaper  # this board and a branch of it""",
)
def diff(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="MOMENT", help=_MOMENT, show_default=False)],
    b: Annotated[str, typer.Argument(metavar="MOMENT", help="Default: now.")] = "now",
    other: Annotated[
        str | None,
        typer.Option("--other", metavar="BOARD", help="The second moment is one of this board."),
    ] = None,
    pattern: Annotated[
        str, typer.Option("--pattern", metavar="PATTERN", help="Only these keys.")
    ] = "**",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="At most this many keys.")
    ] = DIFF_LIMIT_DEFAULT,
) -> None:
    """Print what differs between two moments.

    By key, down to the lines of long texts; also between a board and a branch of it.
    """
    from blackboard.cli import render as past, session, values

    async def compare(board: "Board") -> "Diff":
        first, second = values.parse_moment(a), values.parse_moment(b)
        return await board.diff(first, second, other=other, pattern=pattern, limit=limit)

    flags = Flags.of(context)
    past.print_diff(session.with_board(flags, compare), as_json=flags.as_json)


@app.command(cls=ReadCommand, epilog="blackboard checkpoint verify before-plan")
def verify(
    context: typer.Context,
    moment: Annotated[str, typer.Argument(metavar="MOMENT", help="Default: now.")] = "now",
) -> None:
    """Check everything that is stored up to a moment.

    The hash chain, digests, blobs and signatures. Exit code 1 and one line per finding if anything
    is not what was written.
    """
    from blackboard.cli import render as shown, session, values

    async def check(board: "Board") -> "Verified":
        return await board.verify(values.parse_moment(moment))

    flags = Flags.of(context)
    with screen.busy("verifying"):
        found = session.with_board(flags, check)
    if flags.as_json:
        shown.print_json({**shown.plain(found), "ok": found.ok})
    else:
        for finding in found.findings:
            screen.answer(screen.safe(finding))
        for namespace in found.erased:
            screen.answer(f"{namespace}: erased, its data key was destroyed")
    if not found.ok:
        count = screen.counted(len(found.findings), "finding")
        more = " and more" if found.more else ""
        message = f"{count}{more} up to revision {found.revision}"
        raise CommandError("corrupt", Exit.ERROR, message, "Restore from an export, or a replica.")
    if not flags.as_json:
        screen.say(f"everything up to revision {found.revision} is as it was written")


@app.command(
    cls=ReadCommand,
    epilog="""\
blackboard checkpoint export before-plan before-plan.bbx
blackboard checkpoint export before-plan before-plan.bbx --overwrite  # replaces that file""",
)
def export(
    context: typer.Context,
    name: Annotated[str, _NAME],
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace FILE if it is a regular file, and no link.")
    ] = False,
) -> None:
    """Write a checkpoint into one file.

    It holds all of it, and can be imported on another engine or machine.
    """
    from blackboard.cli import render as shown, session

    # A link that leads nowhere is in the way, too.
    if not overwrite and os.path.lexists(file):
        raise wrong_usage(f"{file} exists", "Name a new file, or replace it with --overwrite.")

    async def write(board: "Board") -> "Exported":
        return await board.export(name, file, overwrite=overwrite)

    flags = Flags.of(context)
    with screen.busy(f"exporting to {file}"):
        done = session.with_board(flags, write)
    if flags.as_json:
        document = {
            "file": str(file),
            "board": done.board,
            "name": name,
            "revision": done.revision,
            "entries": done.entries,
            "bytes": done.bytes,
        }
        shown.print_json(document)
    else:
        screen.say(f"{name} is in {file}")


@app.command(
    "import", cls=ServiceCommand, epilog="blackboard checkpoint import before-plan.bbx rehearsal"
)
def import_file(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="BOARD", help="The new board's name.")],
) -> None:
    """Make a new board from an exported checkpoint.

    A file that was altered is refused.
    """
    from blackboard.cli import render as shown, session

    async def read(client: "Client") -> int | None:
        return await session.first_revision(await client.import_board(file, new))

    flags = Flags.of(context)
    with screen.busy(f"importing {file}"):
        revision = session.with_client(flags, read)
    if flags.as_json:
        shown.print_json({"board": new, "revision": revision})
    else:
        screen.say(f"board {new} begins at {screen.revision_in_words(revision)}")


@app.command(cls=ReadCommand, epilog="blackboard checkpoint pin before-plan")
def pin(
    context: typer.Context,
    name: Annotated[str, _NAME],
    undo: Annotated[bool, typer.Option("--undo", help="Let it be pruned again.")] = False,
) -> None:
    """Protect a checkpoint from pruning."""
    from blackboard.cli import render as shown, session

    async def change(board: "Board") -> None:
        await (board.unpin(name) if undo else board.pin(name))

    flags = Flags.of(context)
    session.with_board(flags, change)
    if flags.as_json:
        shown.print_json({"checkpoint": name, "pinned": not undo})


@app.command(
    cls=ReadCommand,
    epilog="""\
blackboard checkpoint prune --dry-run
blackboard checkpoint prune --last 5 --days 30
blackboard checkpoint prune --history 90d  # revisions between checkpoints go after that
blackboard checkpoint prune --history 90d --history 500MB --dry-run  # how much would go?""",
)
def prune(
    context: typer.Context,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, help="Keep the newest N.")
    ] = 10,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=0, help="Keep one a day for N days.")
    ] = 7,
    also_named: Annotated[
        bool, typer.Option("--also-named", help="Remove ones that people named, too.")
    ] = False,
    history: Annotated[
        list[str] | None,
        typer.Option("--history", metavar="90d|500MB", help="Keep only so much of the history."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
) -> None:
    """Remove checkpoints and history that are not kept.

    Checkpoints that are pinned or that a branch needs always stay.
    """
    from blackboard.cli import render as past, session
    from blackboard.core.checkpoints import RetentionPolicy

    bounds = _bounds(history or ())
    policy = RetentionPolicy(last, days, not also_named, bounds.get("d"), bounds.get("MB"))

    async def remove(board: "Board") -> "Pruned":
        return await board.prune(policy, dry_run=dry_run)

    flags = Flags.of(context)
    past.print_pruned(session.with_board(flags, remove), as_json=flags.as_json, dry_run=dry_run)


def _bounds(amounts: "Sequence[str]") -> dict[str, int]:
    """How much history may stay, by what it counts in. Errors: a usage error."""
    bounds = dict[str, int]()
    for unit, amount in map(_bound, amounts):
        if unit in bounds:
            given = " and ".join(amounts)
            raise wrong_usage(f"--history takes one amount in days, one in megabytes, not {given}")
        bounds[unit] = amount
    return bounds


def _bound(typed: str) -> tuple[str, int]:
    """What an amount of history counts in, and how much it is. Errors: a usage error."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(d|MB)", typed)
    if found is None:
        raise wrong_usage(f"--history takes days or megabytes, as 90d or 500MB, and not {typed!r}")
    return found[2], round(float(found[1]) * _BOUNDS[found[2]])
