"""audit: who did what that others may want to know of."""

from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli.exits import CommandError, Exit
from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from blackboard.service.audit import AuditRecord
    from blackboard.service.board import Client

app = typer.Typer()


@app.command(
    cls=ReadCommand,
    rich_help_panel="Access",
    epilog="""\
blackboard audit --limit 20
blackboard audit --verify
blackboard audit --json > audit.json""",
)
def audit(
    context: typer.Context,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="Only the newest ones.", min=1)
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check that no record was changed or taken out.")
    ] = False,
) -> None:
    """Show who was refused, and who did what to a whole board."""
    from dataclasses import asdict

    from blackboard.cli import session, show
    from blackboard.service.audit import findings

    flags = Flags.of(context)

    async def ask(client: "Client") -> "list[AuditRecord]":
        return [record async for record in client.audit()]

    records = session.with_client(flags, ask)
    found = findings(records) if verify else ()
    shown = records if limit is None else records[-limit:]
    if flags.as_json:
        show.print_json({"records": [asdict(r) for r in shown], "findings": list(found)})
    else:
        now = show.now_ms()
        for r in shown:
            print(
                f"{show.clock(r.time_ms, now)}  {r.principal}  {r.verb}  {r.board}  {r.what}"
                f"  {r.outcome}"
            )
    if found:
        raise CommandError("corrupt", Exit.ERROR, f"the audit was changed: {found[0]}")
