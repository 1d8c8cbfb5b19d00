"""audit: refusals, reads of private data, and actions on whole boards."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from blackboard.cli.errors import CommandError, Exit, wrong_usage
from blackboard.cli.options import Flags, ServiceCommand

if TYPE_CHECKING:
    from blackboard.client.audit_record import AuditRecord
    from blackboard.client.client import Client

_COLUMNS: Final = ("time", "principal", "verb", "board", "what", "outcome", "count")

app = typer.Typer()


@app.command(
    cls=ServiceCommand,
    rich_help_panel="Access",
    epilog="""\
blackboard audit --limit 20
blackboard audit --verify
blackboard audit --json > audit.json
blackboard audit --verify --against audit.json""",
)
def audit(
    context: typer.Context,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="Only the newest ones.", min=1)
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check that no record was changed or removed.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FILE",
            help="Check that all records of an earlier --json are there.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Show refusals, and actions on whole boards.

    The outcome is ok for an action, private for a read of another agent's private data, and else
    the code of the refusal. The count is the number of similar requests that a line stands for.
    """
    from dataclasses import asdict

    from blackboard.cli import render as show, screen, session
    from blackboard.server.security.audit import findings, missing, unproved

    before = [] if against is None else _read(against)
    flags = Flags.of(context)

    async def ask(client: "Client") -> "list[AuditRecord]":
        return [record async for record in client.audit()]

    records = session.with_client(flags, ask)
    found = [*findings(records)] if verify else []
    # With all records, whatever --limit shows: one that is not shown is not missing.
    found += missing(records, before, show.now_ms())
    shown = records if limit is None else records[-limit:]
    if flags.as_json:
        show.print_json({"records": [asdict(r) for r in shown], "findings": list(found)})
    else:
        print_records(shown)
        if verify and not found:
            screen.say(f"{screen.counted(len(records), 'record')}, each as it was written")
            if count := unproved(records):
                unsigned = f"{count} of them have no signature that this service can check"
                screen.say(
                    f"{unsigned}: anyone who can write to the engine could have written those"
                )
    if found:
        raise CommandError("corrupt", Exit.ERROR, f"the audit was changed: {found[0]}")


def print_records(records: "Sequence[AuditRecord]") -> None:
    """A table; the subject of a request is shortened to the room that the other columns leave."""
    from blackboard.cli import render as show
    from blackboard.cli.screen import safe

    now = show.now_ms()
    rows = [
        (
            show.clock(r.time_ms, now),
            *map(safe, (r.principal, r.verb, r.board, r.what, r.outcome)),
            str(r.count),
        )
        for r in records
    ]
    show.print_table(_COLUMNS, show.fitted(_COLUMNS, rows, _COLUMNS.index("what")))


def _read(path: Path) -> "list[AuditRecord]":
    """The records of an earlier `--json`. Errors: CommandError."""
    import json

    import msgspec

    from blackboard.client.audit_record import AuditRecord

    try:
        found = [AuditRecord(**record) for record in json.loads(path.read_bytes())["records"]]
        # For its error: a field of another type would fail later, where it is compared.
        return msgspec.convert(msgspec.to_builtins(found), list[AuditRecord])
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
        msgspec.MsgspecError,
    ) as error:
        raise wrong_usage(f"{path} is no output of blackboard audit --json: {error}") from error
