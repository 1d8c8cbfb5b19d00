"""doctor: is everything as it must be, and if not, what helps?"""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli import screen
from blackboard.cli.exits import CommandError, Exit
from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from blackboard.cli.checks import Finding
    from blackboard.net.config import Settings

app = typer.Typer()
_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}


@app.command(
    cls=ReadCommand,
    rich_help_panel="Service",
    epilog="""\
blackboard doctor
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

    The engine and the data directory are those that blackboard serve would use. Ends with 1 if
    anything fails.
    """
    from blackboard.cli import session, show
    from blackboard.net import config

    flags = Flags.of(context)
    given = {"engine": engine, "data": session.data_of(flags)}
    settings = config.load({name: value for name, value in given.items() if value is not None})
    findings = _findings(settings, replace(flags, data=None))
    if flags.as_json:
        show.print_json({"findings": show.plain(findings)})
    else:
        _print(findings)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(Exit.ERROR)


def _findings(settings: "Settings", flags: Flags) -> list["Finding"]:
    import anyio

    from blackboard.cli import checks, session, show

    found = anyio.run(checks.engine, settings)
    found += checks.directory(settings.data)
    found.append(checks.open_files())
    try:
        target = session.target_of(flags)
    except CommandError as error:
        return [*found, checks.Finding("service", checks.Status.WARN, error.message, error.fix)]
    assert target.url is not None
    reached = list(checks.service(target.url, target.ca))
    found += [*reached, checks.transport(target.url), checks.token(target, show.now_ms())]
    if all(finding.status != "fail" for finding in [*reached, found[-1]]):
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
