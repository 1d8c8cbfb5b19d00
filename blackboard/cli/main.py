"""The command `blackboard`: its groups, and the help that ties them together."""

from typing import Annotated, Any

import typer

from blackboard.cli import (
    agents,
    approvals,
    audit,
    checkpoints,
    context,
    doctor,
    encryption,
    history,
    incidents,
    keys,
    locks,
    replay,
    rewind,
    serve,
    token,
    trajectories,
)
from blackboard.cli.backups import command as backups, recover
from blackboard.cli.errors import MEANING, reported
from blackboard.cli.first_steps import demo, new
from blackboard.cli.mcp import command as mcp
from blackboard.cli.memory import command as memory
from blackboard.cli.options import CommandGroup
from blackboard.cli.screen import answer, console, print_examples, ready_streams
from blackboard.cli.workspace import command as workspace

_EXAMPLES = """\
blackboard demo  # a story, from beginning to end
blackboard serve  # start a service; the others talk to it
blackboard set public/valuation '{"usd_bn": 2900}'
blackboard ls
blackboard watch  # in another terminal"""


class Root(CommandGroup):
    """The root group: `--help` ends with first steps and the exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """The first that is done; `--help` and `--version` print here."""
        # Here, and not in `invoke`: help and errors are printed while the line is parsed.
        ready_streams()
        with reported(as_json=False):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command, or print its help."""
        with reported(as_json=False):
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, examples, exit codes."""
        super().format_help(ctx, formatter)
        print_examples(_EXAMPLES)
        out = console()
        out.print(" [bold]Exit codes[/bold]")
        for code, meaning in MEANING.items():
            out.print(f"   [cyan]{code:>3}[/cyan]  {meaning}")
        out.print()


app = typer.Typer(
    cls=Root,
    name="blackboard",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        # Imported here, as in every command: `--help` must load nothing heavy.
        from importlib.metadata import version

        answer(f"blackboard {version('agent-blackboard')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """The durable shared board of a team of AI agents."""


_TOP = (
    demo.app,
    new.app,
    serve.app,
    mcp.app,
    doctor.app,
    keys.app,
    history.app,
    locks.app,
    rewind.app,
    recover.app,
    incidents.app,
    replay.app,
    agents.app,
    approvals.app,
    token.grants_app,
    audit.app,
    trajectories.app,
)
for commands in _TOP:
    app.add_typer(commands)
app.add_typer(rewind.board_app, name="board", rich_help_panel="Boards")
app.add_typer(checkpoints.app, name="checkpoint", rich_help_panel="Checkpoints")
app.add_typer(backups.app, name="backup", rich_help_panel="Service")
app.add_typer(memory.app, name="memory", rich_help_panel="Boards")
app.add_typer(workspace.app, name="workspace", rich_help_panel="Boards")
app.add_typer(context.app, name="context", rich_help_panel="Access")
app.add_typer(encryption.app, name="encryption", rich_help_panel="Access")
app.add_typer(token.app, name="token", rich_help_panel="Access")
