"""Options that many commands share, declared once, and the command class that adds them.

A command function declares only its own options. Which service, which board, as whom, and `--json`
come from here: `Flags.of(context)` inside the function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from blackboard.cli.errors import reported, wrong_usage
from blackboard.cli.screen import print_examples

_PLACE = "Which board"
_MAY_BE_EMPTY: Final = ("TEXT", "VALUE", "TYPE", "-- COMMAND...")
"""By metavar: what an empty text is a value of. All others name something."""
_EMPTY: Final = f"{__name__}.empty"


def _place(
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", rich_help_panel=_PLACE, help="Where the service is."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TOKEN", rich_help_panel=_PLACE, help="Who you are."),
    ] = None,
    board: Annotated[
        str | None,
        typer.Option("--board", "-b", metavar="NAME", rich_help_panel=_PLACE, help="Which board."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="AGENT",
            rich_help_panel=_PLACE,
            help="Act with the name and rights of an agent.",
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="NAME", rich_help_panel=_PLACE, help="Use a saved service."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DIR", rich_help_panel=_PLACE, help="Open a directory, no service."
        ),
    ] = None,
) -> None: ...


def _trust(
    ca: Annotated[
        str | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            rich_help_panel=_PLACE,
            help="Trust the certificates that one of these signed (PEM), and no other.",
        ),
    ] = None,
) -> None: ...


def _remembered(
    board: Annotated[
        str | None, typer.Option("--board", "-b", metavar="NAME", help="Its board, if none named.")
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option("--ca", metavar="FILE", help="The certificates to trust there (PEM)."),
    ] = None,
) -> None: ...


def _json(
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None: ...


def _write(
    expect: Annotated[
        int | None,
        typer.Option(
            "--expect",
            metavar="REV",
            help="Only if the key is at this revision (0: only if it is absent).",
            min=0,
        ),
    ] = None,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="Why; the log keeps it.")
    ] = None,
) -> None: ...


def _take_back(
    keep_calls: Annotated[
        bool,
        typer.Option(
            "--keep-calls", help="Answer agents what they called since, instead of calling again."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="Why; the log keeps it.")
    ] = None,
) -> None: ...


def _secret(
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DIR", help="The service's data directory."),
    ] = None,
    secret_file: Annotated[
        str | None,
        typer.Option("--secret-file", metavar="FILE", help="The service's secret."),
    ] = None,
    roles_file: Annotated[
        str | None,
        typer.Option("--roles", metavar="FILE", help="A TOML file of roles."),
    ] = None,
) -> None: ...


def options_of(declaration: Callable[..., None]) -> Sequence[Any]:
    """The options that the parameters of a function declare."""
    app = typer.Typer(add_completion=False)
    app.command()(declaration)
    return [param for param in get_command(app).params if param.name != "help"]


@dataclass(frozen=True, slots=True)
class Flags:
    """The shared options as they were given; None = not given."""

    url: str | None = None
    token: str | None = None
    board: str | None = None
    agent: str | None = None
    context: str | None = None
    data: str | None = None
    as_json: bool = False
    expect: int | None = None
    note: str | None = None
    secret_file: str | None = None
    roles_file: str | None = None
    ca: str | None = None
    keep_calls: bool = False
    yes: bool = False
    store: str = "main"
    public: bool = False
    author: str | None = None
    since: str | None = None
    until: str | None = None
    fact: Sequence[str] | None = None

    @staticmethod
    def of(context: typer.Context) -> "Flags":
        """The flags of the command that runs."""
        found = context.obj
        assert isinstance(found, Flags)
        return found


def _untyped(params: list[Any]) -> list[Any]:
    """`params`, with nothing in the column of types for options that take no value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def _flowing(text: str | None) -> str | None:
    """`text` with each paragraph on one line: the terminal's width breaks it, not ours."""
    return text and "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _is_empty(param: Any, given: Any) -> bool:
    """Whether `given` is an empty text where a name is meant."""
    texts = given if isinstance(given, (list, tuple)) else (given,)
    return param.metavar not in _MAY_BE_EMPTY and "" in texts


def _name_of(param: Any) -> str:
    """What the help calls a parameter: `--board`, or `KEY`."""
    longest: str = max(param.opts, key=len)
    return longest if longest.startswith("-") else param.metavar


class CommandGroup(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The group's own parameters."""
        return _untyped(super().get_params(ctx))


class Command(TyperCommand):
    """A command with `--json`, errors as exits.py says, and examples below its help."""

    shared: ClassVar[Sequence[Any]] = options_of(_json)

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's own parameters, then the shared ones; `--help` stays last."""
        own = super().get_params(ctx)
        return _untyped([*own[:-1], *self.shared, own[-1]])

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse, and note what was given as an empty text."""
        # As it was typed: a path would have become the present directory.
        given, *_ = self.make_parser(ctx).parse_args(args=list(args))
        found = [one for one in self.get_params(ctx) if _is_empty(one, given.get(one.name))]
        ctx.meta[_EMPTY] = [_name_of(one) for one in found]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors become messages and an exit code."""
        ctx.obj = self.take(ctx.params)
        with reported(as_json=bool(getattr(ctx.obj, "as_json", False))):
            # Taken for "not given", it would be another board, token or directory: "$BOARD" of a
            # shell in which that is not set.
            for name in ctx.meta[_EMPTY]:
                raise wrong_usage(f"{name} is empty", "Name one, or leave it out.")
            return super().invoke(ctx)

    def take(self, given: dict[str, Any]) -> object:
        """Move the shared options out of `given`."""
        # Removed, because the function of the command does not take them.
        return Flags(**{param.name: given.pop(param.name) for param in self.shared})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, and the examples one below the other, ready to be copied."""
        # Typer would flow them into one paragraph.
        examples, self.epilog = self.epilog, None
        self.help = _flowing(self.help)
        super().format_help(ctx, formatter)
        self.epilog = examples
        if examples:
            print_examples(examples)


class ReadCommand(Command):
    """A command that reads a board."""

    shared: ClassVar[Sequence[Any]] = [
        *options_of(_json),
        *options_of(_place),
        *options_of(_trust),
    ]


class ServiceCommand(Command):
    """A command that works on no single board, or on those that its own parameters name."""

    shared: ClassVar[Sequence[Any]] = [one for one in ReadCommand.shared if one.name != "board"]


class TakeBackCommand(Command):
    """A command that restores a whole board."""

    shared: ClassVar[Sequence[Any]] = [*options_of(_take_back), *ReadCommand.shared]


class RememberCommand(Command):
    """A command that saves a service."""

    shared: ClassVar[Sequence[Any]] = [*options_of(_json), *options_of(_remembered)]


class SecretCommand(Command):
    """A command that needs the secret of a service, and its roles."""

    shared: ClassVar[Sequence[Any]] = [*options_of(_json), *options_of(_secret)]


class WriteCommand(Command):
    """A command that changes one key of a board."""

    shared: ClassVar[Sequence[Any]] = [
        *options_of(_write),
        *options_of(_json),
        *options_of(_place),
        *options_of(_trust),
    ]
