"""encryption: a master key, the erasure of an agent, a new master key for all data keys."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli import screen
from blackboard.cli.errors import wrong_usage
from blackboard.cli.options import Command, CommandGroup, Flags, ServiceCommand

if TYPE_CHECKING:
    from blackboard.client.client import Client

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Encrypt private data; erase an agent."
)


@app.command("new-key", cls=Command, epilog="blackboard encryption new-key > master_key")
def new_key(context: typer.Context) -> None:
    """Print a new master key. It is not stored."""
    from blackboard.cli import render as show
    from blackboard.encryption.master_key import new_master_key

    key = new_master_key()
    if Flags.of(context).as_json:
        show.print_json({"master_key": key})
    else:
        screen.answer(key)


@app.command(
    cls=ServiceCommand,
    epilog="""\
blackboard encryption erase researcher --yes
blackboard encryption erase researcher --only-board expansion --yes""",
)
def erase(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="AGENT", show_default=False)],
    only: Annotated[
        str | None,
        typer.Option(
            "--only-board",
            "--board",
            "-b",
            metavar="NAME",
            help="On this board and its branches. Default: on every board.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. It cannot be undone.")] = False,
) -> None:
    """Destroy the data keys of an agent's name, for good.

    Values in private/AGENT and inbox/AGENT become unreadable, whichever account wrote them: in the
    log, the archive, exports and copies. The boards continue. Names narrowed from it, such as
    AGENT.helper, have namespaces of their own: erase each by its own name. Its values in public and
    in the inboxes of others stay.
    """
    if not yes:
        raise wrong_usage("this cannot be undone", "Add --yes to do it.")

    async def run(client: "Client") -> int:
        return await client.erase(name, board=only)

    namespaces = [f"private/{name}", f"inbox/{name}"]
    where = "every board" if only is None else f"board {only}"
    done = f"of {' and '.join(namespaces)} on {where} destroyed"
    _tell(Flags.of(context), run, done, {"namespaces": namespaces, "board": only})


@app.command(cls=ServiceCommand, epilog="blackboard encryption rewrap")
def rewrap(context: typer.Context) -> None:
    """Wrap all data keys with the first master key."""

    async def run(client: "Client") -> int:
        return await client.rewrap()

    _tell(Flags.of(context), run, "wrapped again")


def _tell(
    flags: Flags,
    run: "Callable[[Client], Awaitable[int]]",
    done: str,
    about: "Mapping[str, object] | None" = None,
) -> None:
    from blackboard.cli import render as show, session

    count = session.with_client(flags, run)
    if flags.as_json:
        show.print_json({"keys": count, **(about or {})})
    else:
        screen.say(f"{count} data keys {done}")
