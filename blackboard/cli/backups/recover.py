"""recover: a board from the archive of a service, or all boards from a backup."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from blackboard.cli import screen
from blackboard.cli.errors import wrong_usage
from blackboard.cli.options import Flags, ServiceCommand
from blackboard.cli.screen import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blackboard.client.client import Client
    from blackboard.core.checkpoints import Recovered
    from blackboard.server.checkpoints.from_backup import BoardRecovered, Wanted

app = typer.Typer()
_NEWEST: Final = "newest"


@app.command(
    cls=ServiceCommand,
    rich_help_panel="Checkpoints",
    epilog="""\
blackboard recover main  # as it was before its engine lost it
blackboard recover main --to before-plan --note "Redis was emptied"
blackboard recover --from /mnt/other-disk/blackboard --data new  # all boards, from a backup
blackboard recover main --from s3://our-bucket/blackboard --to 2026-11-26T09:30""",
)
def recover(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="BOARD", help="Which board; with --from, all if none is named."),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            "--at",
            metavar="MOMENT",
            help="A checkpoint, a revision, or a time. Default: the newest.",
        ),
    ] = _NEWEST,
    backup: Annotated[
        str | None,
        typer.Option("--from", metavar="DIR|URL", help="A backup, in place of the archive."),
    ] = None,
    aside: Annotated[
        bool,
        typer.Option(
            "--aside", help="With --from: keep newer data of the target under another name."
        ),
    ] = False,
    note: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="Why; the audit keeps it.")
    ] = "",
) -> None:
    """Recover boards from the archive, or from a backup.

    A board that its engine lost, or boards into an empty place: everything, with its revisions;
    leases end. Repeating it is safe, also after a crash in the middle. With --from no service may
    run: boards go into the engine and the archive that --data, or the settings of `serve`, name. A
    target with newer data is refused.
    """
    flags = Flags.of(context)
    if backup is None:
        if name is None:
            raise wrong_usage("which board?", "Name it, or a backup with --from.")
        if aside:
            raise wrong_usage("--aside belongs to --from")
        _from_archive(flags, name, to, note)
        return
    _check_no_service(flags)
    from blackboard.cli import values
    from blackboard.core.checkpoints import moment_of
    from blackboard.server.checkpoints.from_backup import Wanted

    moment = None if to == _NEWEST else moment_of(values.parse_moment(to))
    _from_backup(flags, backup, Wanted(() if name is None else (name,), moment, aside, note))


def _check_no_service(flags: Flags) -> None:
    """Errors: CommandError for an option that says which service, or as whom."""
    given = {
        "--url": flags.url,
        "--token": flags.token,
        "--as": flags.agent,
        "--context": flags.context,
        "--ca": flags.ca,
    }
    for option, value in given.items():
        if value is not None:
            raise wrong_usage(
                f"--from uses no service, so {option} would choose nothing",
                "Name the target: --data, or the settings of blackboard serve.",
            )


def _from_archive(flags: Flags, name: str, to: str, note: str) -> None:
    from blackboard.cli import render as shown, session, values

    async def work(client: "Client") -> "Recovered":
        moment = None if to == _NEWEST else values.parse_moment(to)
        return await client.board(name).recover(moment, note=note, progress=_tell_progress)

    with screen.busy("recovering"):
        recovered = session.with_client(flags, work)
    if flags.as_json:
        document = {"board": name, "revision": recovered.revision, "epoch": recovered.epoch}
        shown.print_json(document | {"from_revision": recovered.from_revision})
    else:
        past = f"has the content of revision {recovered.from_revision}"
        screen.say(f"board {name} {past}, and continues at revision {recovered.revision}")


def _tell_progress(entries: int) -> None:
    screen.say(f"{entries} entries are back")


def _from_backup(flags: Flags, backup: str, wanted: "Wanted") -> None:
    import anyio

    from blackboard.backup.place import BackupPlace
    from blackboard.cli import render as shown
    from blackboard.server import settings as config
    from blackboard.server.checkpoints.from_backup import recover_from, size_of

    settings = config.load({} if flags.data is None else {"data": flags.data})

    async def work() -> "Sequence[BoardRecovered]":
        place = BackupPlace.at(backup)
        with screen.progress("recovering", await size_of(place, wanted)) as tell:
            return await recover_from(settings, place, wanted, progress=tell)

    found = anyio.run(work)
    if flags.as_json:
        shown.print_json(shown.plain(found))
        return
    for each in found:
        past = f"has the content of revision {each.from_revision} (the backup goes to"
        past = f"{past} {each.through})"
        screen.say(f"board {each.board} {past}, and continues at revision {each.revision}")
    screen.say(f"{counted(len(found), 'board')} recovered; every digest agrees")
