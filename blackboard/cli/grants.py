"""grants: what the service lets you do."""

from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from blackboard.client.board import Client
    from blackboard.core.access import Principal

app = typer.Typer()


@app.command(
    cls=ReadCommand,
    rich_help_panel="Access",
    epilog="""\
blackboard grants  # what your token allows, as its service sees it
blackboard grants public/plan/budget  # what you may do there
blackboard grants private/bob/notes --as bob""",
)
def grants(
    context: typer.Context,
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="Only what is allowed on this key.")
    ] = None,
) -> None:
    """Show what you may do, by pattern or on one key."""
    from blackboard.cli import render as show
    from blackboard.cli import session
    from blackboard.core.access import Right, allows
    from blackboard.core.path import check_key

    flags = Flags.of(context)

    async def ask(client: "Client") -> "Principal":
        return await client.whoami()

    found = session.with_client(flags, ask)
    rows = [[g.pattern, sorted(g.rights)] for g in found.grants]
    if key is not None:
        rows = [[key, [r.value for r in Right if allows(found.grants, r, check_key(key))]]]
    if flags.as_json:
        show.print_json({"principal": found.name, "boards": sorted(found.boards), "grants": rows})
        return
    print(f"{found.name}, on {', '.join(sorted(found.boards)) or 'every board'}")
    for pattern, rights in rows:
        print(f"  {pattern}  {', '.join(rights) or 'nothing'}")
