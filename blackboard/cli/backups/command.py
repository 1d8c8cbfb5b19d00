"""backup: copies of the history of all boards, in a directory or an object store."""

import os
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from blackboard.cli import screen
from blackboard.cli.errors import not_found, wrong_usage
from blackboard.cli.options import Command, CommandGroup, Flags
from blackboard.cli.screen import counted

if TYPE_CHECKING:
    from blackboard.backup.read import BackedUp
    from blackboard.backup.retain import Removal
    from blackboard.backup.ship import Shipped

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Back up all boards; check and thin out backups."
)
_PLACE: Final = typer.Argument(
    metavar="DIR|URL", help="A directory, or a URL such as s3://bucket/path.", show_default=False
)
_DAY_MS: Final = 24 * 3600 * 1000


@app.command(
    cls=Command,
    epilog="""\
blackboard backup take /mnt/other-disk/blackboard
BLACKBOARD_ENGINE=redis://localhost:6379 blackboard backup take s3://our-bucket/blackboard""",
)
def take(
    context: typer.Context,
    place: Annotated[str, _PLACE],
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DIR", help="The data directory of the embedded engine."),
    ] = None,
) -> None:
    """Add to a backup what boards have that it does not.

    The settings of `serve` say where boards are. An embedded data directory has one owner: while a
    service has it, `blackboard serve --backup` is the way.
    """
    import anyio

    from blackboard.cli import render as shown
    from blackboard.cli.session import holds_boards
    from blackboard.server import settings as config
    from blackboard.server.backups.once import take_once

    settings = config.load({} if data is None else {"data": data})
    # Of a mistyped name, or a disk that is not mounted, a backup of nothing would succeed.
    has_archive = os.path.exists(settings.data / "archive.db")  # noqa: PTH110
    if settings.engine == "sqlite" and not (holds_boards(settings.data) or has_archive):
        raise not_found(f"{settings.data} is no data directory", "Check its name: --data.")
    with screen.busy("backing up"):
        shipped: Shipped = anyio.run(take_once, settings, place)
    if Flags.of(context).as_json:
        shown.print_json(
            {"boards": shipped.boards, "entries": shipped.entries, "bytes": shipped.bytes}
        )
    else:
        what = f"{counted(shipped.boards, 'board')} changed"
        screen.say(f"{what}: {shipped.entries} log entries, {shipped.bytes} bytes")


@app.command("list", cls=Command, epilog="blackboard backup list /mnt/other-disk/blackboard")
def list_(context: typer.Context, place: Annotated[str, _PLACE]) -> None:
    """Print which boards a backup has, and how far."""
    import anyio

    from blackboard.backup.place import BackupPlace
    from blackboard.backup.read import backed_up, summary

    async def look() -> "list[BackedUp]":
        return [summary(manifest) async for manifest in backed_up(BackupPlace.at(place))]

    _print_boards(Flags.of(context), anyio.run(look))


@app.command(
    cls=Command,
    epilog="""\
blackboard backup verify /mnt/other-disk/blackboard
blackboard backup verify s3://our-bucket/blackboard --json""",
)
def verify(context: typer.Context, place: Annotated[str, _PLACE]) -> None:
    """Read a whole backup and compare it with its digests.

    Ends with 1 and names the file if anything is missing or was changed.
    """
    import anyio

    from blackboard.backup.place import BackupPlace
    from blackboard.backup.read import backed_up, verify as check

    async def look() -> "list[BackedUp]":
        where = BackupPlace.at(place)
        done: list[BackedUp] = []
        total = sum([manifest.file_bytes async for manifest in backed_up(where)])
        with screen.progress("verifying", total) as tell:
            async for found in check(where):
                done.append(found)
                tell(sum(each.bytes for each in done))
        return done

    _print_boards(Flags.of(context), anyio.run(look))


@app.command(
    cls=Command,
    epilog="""\
blackboard backup prune /mnt/other-disk/blackboard --keep-days 30 --dry-run
blackboard backup prune /mnt/other-disk/blackboard --keep-days 30 --keep-revisions 1000""",
)
def prune(
    context: typer.Context,
    place: Annotated[str, _PLACE],
    keep_days: Annotated[
        float | None,
        typer.Option("--keep-days", metavar="N", min=0, help="Moments of the last N days stay."),
    ] = None,
    keep_revisions: Annotated[
        int | None,
        typer.Option(
            "--keep-revisions", metavar="N", min=0, help="The last N revisions of boards stay."
        ),
    ] = None,
    keep_bytes: Annotated[
        int | None,
        typer.Option(
            "--keep-bytes", metavar="N", min=0, help="At most N bytes of log of each board."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
) -> None:
    """Remove the oldest history from a backup.

    The newest state of every board stays. What goes is replaced by the content to which it leads.
    Both --keep-days and --keep-revisions are kept; --keep-bytes then cuts further.
    """
    import anyio

    from blackboard.backup.place import BackupPlace
    from blackboard.backup.retain import Policy, prune as drop
    from blackboard.cli import render as shown, values

    if keep_days is None and keep_revisions is None and keep_bytes is None:
        raise wrong_usage("nothing says what to keep", "Add --keep-days, for example.")
    age_ms = values.milliseconds(keep_days, "--keep-days", unit_ms=_DAY_MS)
    policy = Policy(age_ms, keep_revisions, keep_bytes)

    async def work() -> "Removal":
        now_ms = time.time_ns() // 1_000_000
        return await drop(BackupPlace.at(place), policy, now_ms, dry_run=dry_run)

    with screen.busy("pruning"):
        gone = anyio.run(work)
    if Flags.of(context).as_json:
        rows = [{"board": d.board, "files": d.files, "bytes": d.bytes} for d in gone.boards]
        others = {"files": gone.others, "bytes": gone.other_bytes}
        done = {"dry_run": dry_run, "boards": rows, "others": others, "bytes": gone.bytes}
        shown.print_json(done)
        return
    done_to = "would be removed" if dry_run else "removed"
    for each in gone.boards:
        went = f"history up to revision {each.below}, {each.bytes} bytes"
        screen.say(f"{each.board}: {went}")
    what = f"{counted(len(gone.boards), 'board')} and {counted(gone.others, 'other file')}"
    screen.say(f"{gone.bytes} bytes of {what} {done_to}")


def _print_boards(flags: Flags, found: "list[BackedUp]") -> None:
    from blackboard.cli import render as shown

    rows: list[dict[str, Any]] = [
        {
            "board": each.board,
            "first": each.first,
            "last": each.last,
            "time_ms": each.time_ms,
            "files": each.segments,
            "bytes": each.bytes,
            "removed": each.removed,
        }
        for each in found
    ]
    if flags.as_json:
        shown.print_json(rows)
        return
    for row in rows:
        gone = ", removed since" if row["removed"] else ""
        span = f"revisions {row['first']} to {row['last']}"
        size = f"{counted(row['files'], 'file')}, {row['bytes']} bytes"
        screen.answer(f"{row['board']}: {span}, {size}{gone}")
