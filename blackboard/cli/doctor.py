"""doctor: is everything as it must be, and if not, what helps?"""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli import screen
from blackboard.cli.errors import CommandError, Exit
from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from blackboard.cli.doctor_checks import Finding
    from blackboard.cli.target import Target
    from blackboard.server.settings import Settings

app = typer.Typer()
_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}


@app.command(
    cls=ReadCommand,
    rich_help_panel="Service",
    epilog="""\
blackboard doctor
blackboard doctor --url wss://board.example.org  # a service on another machine
blackboard doctor --engine redis://localhost:6379
blackboard doctor --json | jq -r '.findings[] | select(.status != "ok")'""",
)
def doctor(
    context: typer.Context,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="URL", help="sqlite, or the URL of a Redis or Valkey."),
    ] = None,
) -> None:
    """Check engine, machine and service; say what helps.

    The engine and the data directory are those that blackboard serve would use here. They are left
    out where the service that is meant is on another machine, unless --engine or --data asks for
    them. Ends with 1 if anything fails.
    """
    from blackboard.cli import render as show
    from blackboard.cli import session
    from blackboard.server import settings as config

    flags = Flags.of(context)
    given = {"engine": engine, "data": session.data_of(flags)}
    settings = config.load({name: value for name, value in given.items() if value is not None})
    asked = engine is not None or flags.data is not None
    findings = _findings(settings, replace(flags, data=None), asked_for_engine=asked)
    if flags.as_json:
        show.print_json({"findings": show.plain(findings)})
    else:
        _print(findings)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(Exit.ERROR)


def _findings(settings: "Settings", flags: Flags, *, asked_for_engine: bool) -> list["Finding"]:
    from blackboard.cli import doctor_checks as checks
    from blackboard.cli import session

    try:
        target = session.target_of(flags)
    except CommandError as error:
        unknown = checks.Finding("service", checks.Status.WARN, error.message, error.fix)
        return [*_of_this_machine(settings), unknown]
    assert target.url is not None
    found = _of_this_machine(settings) if target.is_here or asked_for_engine else []
    found += _of_the_service(target)
    return found if target.is_here else [*found, checks.elsewhere(target.url)]


def _of_this_machine(settings: "Settings") -> list["Finding"]:
    import anyio

    from blackboard.cli import doctor_checks as checks

    found = anyio.run(checks.engine, settings)
    return [*found, *checks.directory(settings.data), checks.open_files()]


def _of_the_service(target: "Target") -> list["Finding"]:
    import anyio

    from blackboard.cli import doctor_checks as checks
    from blackboard.cli import render as show

    assert target.url is not None
    found = list(checks.service(target.url, target.ca))
    found += [checks.transport(target.url), checks.token(target, show.now_ms())]
    if all(finding.status != "fail" for finding in found):
        found.append(anyio.run(checks.access, target))
    return found


def _print(findings: list["Finding"]) -> None:
    from rich.text import Text

    out = screen.console()
    for finding in findings:
        mark = _MARKS[finding.status]
        line = Text.assemble(mark, "  ", (f"{finding.check:<11}", "bold"), finding.text)
        out.print(line, soft_wrap=True)
        if finding.fix:
            out.print(Text(f"                 -> {finding.fix}", "yellow"), soft_wrap=True)
