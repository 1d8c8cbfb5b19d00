"""mcp: serves a board to coding agents, over standard input and output or over HTTP."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

import typer

from blackboard.cli import screen
from blackboard.cli.errors import CommandError, Exit, wrong_usage
from blackboard.cli.options import Command, Flags, ReadCommand

HTTP_PORT: Final = 7419
_OWN: Final = ("agent", "as_json")
_NETWORK: Final = "HTTP"

app = typer.Typer()


class McpCommand(Command):
    """The command that a client starts: it has no output, and a name of its own for the agent."""

    shared: ClassVar[Sequence[Any]] = [one for one in ReadCommand.shared if one.name not in _OWN]


@app.command(
    cls=McpCommand,
    rich_help_panel="Service",
    epilog="""\
blackboard mcp  # what a client starts; on this machine all share one board
blackboard mcp --board myproject --agent reviewer
blackboard mcp --data ./board  # a board of this directory's own
BLACKBOARD_TOKEN=$(blackboard token create reviewer) blackboard mcp  # as the agent of a token
blackboard mcp --http --port 7419  # one server for many agents, each with its token""",
)
def mcp(
    context: typer.Context,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            "--as",
            metavar="NAME",
            envvar="BLACKBOARD_AGENT",
            show_envvar=False,
            help="Whose name and rights it has. Default: that of the token; on a local directory"
            " the next free one of agent-1, agent-2 ...",
        ),
    ] = None,
    over_http: Annotated[
        bool,
        typer.Option(
            "--http", rich_help_panel=_NETWORK, help="Over HTTP, instead of standard input."
        ),
    ] = False,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", rich_help_panel=_NETWORK)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", rich_help_panel=_NETWORK, help="0 = any."),
    ] = HTTP_PORT,
) -> None:
    """Serve a board to coding agents, over MCP.

    A client of the Model Context Protocol starts this command and talks to its standard input and
    output. Processes on the same data directory share its boards: the first one serves them, and
    when it ends another takes over. If a service is named (--url, --context, BLACKBOARD_URL), it
    connects to that.
    """
    _check_extra()
    from blackboard.cli.mcp import serving

    flags: Flags = context.obj
    if over_http:
        if agent is not None:
            raise wrong_usage("--agent does not go with --http: each request has its own token")
        raise typer.Exit(serving.run(lambda: serving.over_http(flags, host, port)))
    _greet_people()
    raise typer.Exit(serving.run(lambda: serving.over_stdio(flags, agent)))


def _check_extra() -> None:
    try:
        import blackboard.integrations.mcp  # noqa: F401
    except ImportError as error:
        raise CommandError("usage", Exit.USAGE, str(error)) from error


def _greet_people() -> None:
    if sys.stdin.isatty():
        screen.say(
            "this speaks MCP on standard input and output; it is for a client to start, such as:\n"
            '  {"mcpServers": {"blackboard": {"command": "blackboard", "args": ["mcp"]}}}\n'
            "Ctrl-C ends it"
        )
