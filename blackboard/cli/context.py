"""context add, use, ls, rm: services saved by name."""

from pathlib import Path
from typing import Annotated

import typer

from blackboard.cli import screen, target as places
from blackboard.cli.errors import wrong_usage
from blackboard.cli.options import Command, CommandGroup, Flags, RememberCommand

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Save services by name, and choose one."
)
_NAME = typer.Argument(metavar="NAME", show_default=False)


@app.command(
    cls=RememberCommand,
    epilog="""\
blackboard context add prod --url wss://boards.example.org --token-file ~/prod.token --use
cat prod.token | blackboard context add prod --url wss://boards.example.org --token -""",
)
def add(
    context: typer.Context,
    name: Annotated[str, _NAME],
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Where the service is.")],
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TOKEN", help="Who you are. - reads standard input."),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option("--token-file", metavar="FILE", help="A file that holds the token."),
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Choose it at once.")] = False,
) -> None:
    """Save a service, or change a saved one."""
    if token and token_file:
        raise wrong_usage("give either --token or --token-file")
    if token == "-":
        from blackboard.cli import values

        token = values.text_from_stdin().strip()
        if not token:
            raise wrong_usage("standard input holds no token")
    flags = Flags.of(context)
    remembered = places.ServiceContext(
        url, token, _absolute(token_file), flags.board, ca=_absolute(flags.ca)
    )

    def change(known: places.Contexts) -> places.Contexts:
        added = known.adding(name, remembered)
        return added.using(name) if use else added

    places.change(places.config_directory(), change)
    if flags.as_json:
        _print_json({"context": name, "url": url, "in_use": use})
        return
    screen.answer(f"{name} is {url}" + (", and in use" if use else ""))
    if not use:
        screen.say(f"use it with: blackboard context use {name}")


def _absolute(path: str | None) -> str | None:
    # Later commands run in other directories.
    return None if path is None else str(Path(path).expanduser().resolve())


@app.command(cls=Command, epilog="blackboard context use local")
def use(context: typer.Context, name: Annotated[str, _NAME]) -> None:
    """Choose the service that commands talk to."""
    places.change(places.config_directory(), lambda known: known.using(name))
    if Flags.of(context).as_json:
        _print_json({"context": name, "in_use": True})
        return
    screen.answer(f"{name} is in use")


@app.command(cls=Command, epilog="blackboard context ls")
def ls(context: typer.Context) -> None:
    """List the saved services. Tokens are not shown."""
    from blackboard.cli import render as show

    known = places.load(places.config_directory())
    if Flags.of(context).as_json:
        listed = {name: _without_token(found) for name, found in known.by_name.items()}
        show.print_json({"current": known.chosen, "contexts": listed})
        return
    if not known.by_name:
        screen.say("none yet: blackboard serve writes `local`, blackboard context add any other")
        return
    rows = [
        ("*" if name == known.chosen else "", name, found.url, found.board or "", _token(found))
        for name, found in sorted(known.by_name.items())
    ]
    show.print_table(("", "context", "url", "board", "token"), rows)


def _without_token(found: places.ServiceContext) -> dict[str, object]:
    document: dict[str, object] = {"url": found.url, "board": found.board, "token": _token(found)}
    return document if found.ca is None else {**document, "ca": found.ca}


def _token(found: places.ServiceContext) -> str:
    if found.token_file:
        return f"in {found.token_file}"
    return "remembered" if found.token else "none"


@app.command(cls=Command, epilog="blackboard context rm prod")
def rm(context: typer.Context, name: Annotated[str, _NAME]) -> None:
    """Remove a saved service. The service itself is not affected."""
    places.change(places.config_directory(), lambda known: known.removing(name))
    if Flags.of(context).as_json:
        _print_json({"context": name, "removed": True})
        return
    screen.answer(f"{name} is forgotten")


def _print_json(document: dict[str, object]) -> None:
    from blackboard.cli import render as show

    show.print_json(document)
