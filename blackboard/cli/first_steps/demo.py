"""demo: plays a story of `blackboard.demos`, from a wheel or a checkout.

A story is run as `python -m` would run it, by name: nothing here imports one.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import typer
from rich.text import Text

from blackboard.cli import screen
from blackboard.cli.errors import CommandError, Exit, wrong_usage
from blackboard.cli.options import Command

FIRST: Final = "valuation"
STORIES: Final[Mapping[str, str]] = {
    FIRST: "two agents, a stale plan refused, the whole team taken back, one memo by both",
    "crash_resume": "killed right after a payment: the next process goes on, nothing is paid twice",
    "journal_saves": "the same crashes with the journal and without it: what each costs",
    "approval": "an agent waits for a person without a process, and the price changes meanwhile",
    "time_travel": "a mistake at step 15 shows at step 20: back to 14, with another prompt",
    "two_coders": "two coding agents, a failing test: board and files go back together",
    "langgraph_team": "two LangGraph agents and their store, taken back at once",
    "migration": "the state of version 1 of an agent, read by version 3",
}
"""The stories of `blackboard.demos`, and what happens in each."""

app = typer.Typer()


class DemoCommand(Command):
    """A command that speaks to people only."""

    shared: ClassVar[Sequence[Any]] = []

    def take(self, given: dict[str, Any]) -> object:
        """Nothing is shared."""
        return None


@app.command(
    cls=DemoCommand,
    rich_help_panel="First steps",
    epilog="""\
blackboard demo  # 20 seconds, on this machine alone
blackboard demo --keep  # with pauses and its page; the team works on until Ctrl-C
blackboard demo --list
blackboard demo crash_resume""",
)
def demo(
    story: Annotated[
        str, typer.Argument(metavar="STORY", help="Which one; --list shows them.")
    ] = FIRST,
    keep: Annotated[
        bool, typer.Option("--keep", help="Play slowly, and keep the team and its page alive.")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Print the stories.")] = False,
) -> None:
    """Play a story: real agents on a board of their own.

    Each story checks what it promises, and ends with 0 only if that was seen to happen. It uses a
    temporary directory and a free port of this machine; your boards and settings are not touched.
    """
    if story not in STORIES:
        raise wrong_usage(f"there is no story {story}", f"There are: {', '.join(STORIES)}.")
    if keep and story != FIRST:
        raise wrong_usage(f"--keep is for the story {FIRST}")
    if list_all:
        _print_stories()
    elif not __debug__:  # what they check, they check with `assert`
        raise wrong_usage("a story checks nothing when Python optimizes", "Unset PYTHONOPTIMIZE.")
    else:
        _play(story, ["--keep"] if keep else [])


def _play(story: str, arguments: list[str]) -> None:
    import runpy

    sys.argv = [story, *arguments]
    try:
        runpy.run_module(f"blackboard.demos.{story}", run_name="__main__", alter_sys=True)
    except ImportError as error:
        raise wrong_usage(f"{story} needs an extra: {error}") from error
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        message = "there is no directory for temporary files that can be written"
        raise CommandError("not_written", Exit.ERROR, message, "Name one: TMPDIR.") from error


def _print_stories() -> None:
    out = screen.console()
    for name, what in STORIES.items():
        out.print(Text.assemble((f"{name:<16}", "cyan"), what), soft_wrap=True)
