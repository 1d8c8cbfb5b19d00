"""export trajectories, retrace: the steps of agents as JSON Lines, and their replay."""

import contextlib
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from blackboard.cli import screen
from blackboard.cli.errors import Exit, not_found, wrong_usage
from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from types import ModuleType

    from blackboard.client.board import Board
    from blackboard.runtime.agent import Agent
    from blackboard.runtime.trajectories import Replayed, Trajectory

_PANEL = "Agents"
_AGENT = typer.Argument(metavar="AGENT", help="Only this one.")
_MICRO = 1_000_000

app = typer.Typer()
export = typer.Typer(no_args_is_help=True, help="Export data of a board.")
app.add_typer(export, name="export", rich_help_panel=_PANEL)


@export.command(
    cls=ReadCommand,
    epilog="""\
blackboard export trajectories > runs.jsonl
blackboard export trajectories --outcome approved --cost-max 0.5  # what is worth learning from
blackboard export trajectories architect | jq '.steps[].calls[].name'""",
)
def trajectories(
    context: typer.Context,
    name: Annotated[str | None, _AGENT] = None,
    outcome: Annotated[
        str | None,
        typer.Option("--outcome", metavar="TEXT", help="Only those whose outcome has this in it."),
    ] = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="STATUS", help="Only those: done, running, waiting, ..."),
    ] = None,
    cost_max: Annotated[
        float | None,
        typer.Option("--cost-max", metavar="USD", help="Only those that cost no more."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write them there.")
    ] = None,
) -> None:
    """Write the trajectories of agents as JSON Lines.

    Steps, inputs, calls, costs and outcome.

    Taken from the log, as far as it reaches back and as far as you may read private namespaces.
    """
    from blackboard.cli import session

    flags = Flags.of(context)
    if cost_max is not None and not cost_max >= 0:
        raise wrong_usage("--cost-max is at least 0")

    def is_wanted(found: "Trajectory") -> bool:
        return (
            (outcome is None or outcome in found.outcome)
            and (status is None or status == found.status)
            and (cost_max is None or found.costs.cost_microusd <= cost_max * _MICRO)
        )

    async def write(board: "Board") -> int:
        from blackboard.runtime.trajectories import trajectories

        count = 0
        with _opened(output) as out:
            async for found in trajectories(board, agent=name):
                if is_wanted(found):
                    out.write(screen.safe(found.model_dump_json()) + "\n")
                    count += 1
        return count

    count = session.with_board(flags, write)
    screen.say(f"{count} trajectories" if count != 1 else "1 trajectory")


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    """Where to write. A file is replaced when all is written, and else is as it was."""
    if output is None:
        yield sys.stdout
        return
    try:
        with _staged(output.resolve()) as file:
            yield file
    except OSError as error:
        raise not_found(f"{output} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _staged(output: Path) -> Iterator[TextIO]:
    from blackboard.integrity.private_files import open_anew, open_new

    if output.exists() and not output.is_file():  # a device or a pipe stays what it is
        with open_anew(output) as file:
            yield file
        return
    stage = output.with_name(f".export.{secrets.token_hex(4)}")
    try:
        with open_new(stage) as file:
            yield file
        if output.exists():
            # The new file is for its owner alone, and the old one may have been for others.
            stage.chmod(stat.S_IMODE(output.stat().st_mode))
        stage.replace(output)
    finally:
        stage.unlink(missing_ok=True)


@app.command(
    cls=ReadCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard retrace my_agents  # exit code 1 if a step has a different result
blackboard retrace my_agents architect
blackboard retrace my_agents --file runs.jsonl --json""",
)
def retrace(
    context: typer.Context,
    module: Annotated[
        str,
        typer.Argument(metavar="MODULE", help="Where the agents' classes are.", show_default=False),
    ],
    name: Annotated[str | None, _AGENT] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Take exported trajectories, and no board."),
    ] = None,
) -> None:
    """Repeat recorded steps with the present code.

    Calls are answered from the record: no tool or model is called, and nothing is written. Reports
    the first step with a different result. Having none to repeat is an error.
    """
    from blackboard.cli import render as show, session
    from blackboard.cli.agents import imported

    flags = Flags.of(context)
    code = imported(module)

    async def run(board: "Board") -> "list[Replayed]":
        from blackboard.runtime.trajectories import trajectories

        return await _retraced([t async for t in trajectories(board, agent=name)], code)

    if file is None:
        found = session.with_board(flags, run)
    else:
        import anyio

        found = anyio.run(_retraced, [t for t in _read(file) if name in (None, t.agent)], code)
    if not found:  # which would be "all the same"
        whose = "" if name is None else f" of agent {name}"
        raise not_found(
            f"there are no steps{whose} to repeat",
            "See which there are: blackboard export trajectories",
        )
    if flags.as_json:
        show.print_json({"agents": [_plain(one) for one in found]})
    for one in () if flags.as_json else found:
        screen.answer(screen.safe(_described(one)))
    if any(one.difference for one in found):
        raise typer.Exit(Exit.ERROR)


async def _retraced(found: "list[Trajectory]", code: "ModuleType") -> "list[Replayed]":
    from blackboard.runtime.migrations import kinds_in

    kinds = kinds_in(code)
    known = [trajectory for trajectory in found if trajectory.kind in kinds]
    for trajectory in found:
        if trajectory.kind not in kinds:
            screen.say(f"{trajectory.agent} is a {trajectory.kind}, which the module has not")
    return [await _repeated(kinds[each.kind], each) for each in known]


async def _repeated(kind: "type[Agent[Any]]", found: "Trajectory") -> "Replayed":
    from blackboard.errors import line_of
    from blackboard.runtime.trajectories import Replayed, StepDifference, replay

    try:
        agent = kind(found.agent)
    except Exception as error:  # noqa: BLE001 - the agent's own code may raise what it likes
        why = f"its class does not make it of its name: {line_of(error)}"
        first = found.steps[0].step if found.steps else 0
        difference = StepDifference(step=first, what="error", recorded=None, replayed=why)
        return Replayed(found.agent, 0, difference)
    return await replay(agent, found)


def _read(file: Path) -> "list[Trajectory]":
    from pydantic import ValidationError

    from blackboard.runtime.trajectories import Trajectory

    try:
        # Not by splitlines: in JSON, other ends of lines may stand within a text.
        lines = file.read_text(encoding="utf-8").split("\n")
        return [Trajectory.model_validate_json(line) for line in lines if line.strip()]
    except OSError as error:
        raise not_found(f"{file} cannot be read: {error.strerror}") from error
    except (ValidationError, UnicodeDecodeError) as error:
        fix = "Make it with: blackboard export trajectories"
        raise wrong_usage(f"{file} has no trajectories", fix) from error


def _plain(one: "Replayed") -> dict[str, object]:
    difference = one.difference.model_dump(mode="json") if one.difference else None
    return {"agent": one.agent, "steps": one.steps, "difference": difference}


def _described(one: "Replayed") -> str:
    same = f"{one.agent}: {screen.counted(one.steps, 'step')}, the same"
    if one.difference is None:
        return same
    other = one.difference
    return (
        f"{same}; step {other.step} differs in {other.what}:"
        f" recorded {other.recorded!r}, now {other.replayed!r}"
    )
