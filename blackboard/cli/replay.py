"""replay: repeats a recorded team step by step, and compares every rewind with the trace.

Each step of a trace is one commit of its agent, followed by a checkpoint. Then the whole team is
rewound, and the content of the board, including all private parts, must match the trace.

A trace is JSON lines, gzipped or not. Each run begins with a header, and each further line is one
step of one agent:

    {"t": "run", "id": "demo/1", "agents": ["ada", "bob"], "expect": {"mistake_step": 3}}
    {"t": "step", "i": 0, "a": "ada", "r": [["pub", "log", 0]], "w": [["pub", "log", "append", 1]]}

`r` names what the step read: namespace (`pub`, or `prv` for the agent's own), key, and null for the
whole value or n for the items after the n-th of a list. `w` names what it wrote: namespace, key,
`put`, `append`, `rmw` (a put that was computed from what `r` names) or `del`, and the value.
"""

import gzip
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from blackboard.cli import screen
from blackboard.cli.errors import CommandError, Exit, not_found, wrong_usage
from blackboard.cli.options import Command, Flags
from blackboard.core.path import check_key, check_name, item_key
from blackboard.errors import BlackboardError
from blackboard.limits import COMMIT_BYTES_MAX
from blackboard.units import Key

if TYPE_CHECKING:
    from blackboard.client.board import Board
    from blackboard.client.client import Client

_LINE_CHARACTERS_MAX: Final = 4 * COMMIT_BYTES_MAX
"""One line: a step is one commit, and escaping makes it up to four times longer."""

Namespace = Literal["pub", "prv"]


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Expect(_Line):
    """An annotation of the run: the step of the decisive error, if any."""

    mistake_step: int | None = None


class RunLine(_Line):
    """The header of a run."""

    t: Literal["run"]
    id: str
    agents: list[str]
    expect: Expect = Expect()


class StepLine(_Line):
    """One step of one agent."""

    t: Literal["step"]
    i: int
    a: str
    r: list[tuple[Namespace, str, int | None]] = Field(default_factory=list)
    w: list[tuple[Namespace, str, Literal["put", "append", "rmw", "del"], Any]] = Field(
        default_factory=list
    )


_PARSER: Final[TypeAdapter[RunLine | StepLine]] = TypeAdapter(
    Annotated[RunLine | StepLine, Field(discriminator="t")]
)


@dataclass(frozen=True, slots=True)
class Write:
    """A write of a step: `kind` is put, append, rmw or del; an append names a prefix."""

    kind: str
    key: Key
    value: Any


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step: what `agent` read (whole values, and lists) and wrote."""

    agent: str
    reads: tuple[Key, ...]
    lists: tuple[Key, ...]
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A recorded run. `mistake` is how many steps lead up to, and include, the decisive error."""

    name: str
    steps: tuple[RecordedStep, ...]
    mistake: int | None = None

    def after(self, count: int) -> dict[Key, Any]:
        """The content of the board after the first `count` steps: the fold of their writes."""
        board: dict[Key, Any] = {}
        items: dict[Key, int] = {}
        for step in self.steps[:count]:
            for write in step.writes:
                _fold(board, items, write)
        return board


def _fold(board: dict[Key, Any], items: dict[Key, int], write: Write) -> None:
    if write.kind == "append":
        index = items.get(write.key, 0)
        board[item_key(write.key, index)] = write.value
        items[write.key] = index + 1
    elif write.kind == "del":
        board.pop(write.key, None)
    else:
        board[write.key] = write.value


def load(path: Path) -> Iterator[RecordedRun]:
    """The runs of a trace, one after the other. Errors: CommandError, naming the line."""
    header: RunLine | None = None
    steps: list[RecordedStep] = []
    for number, line in _lines(path):
        found = _parse(path, number, line)
        if isinstance(found, RunLine):
            if header is not None:
                yield _run(header, steps)
            header, steps = found, []
        elif header is None or found.i != len(steps):
            raise wrong_usage(f"{path}, line {number}: step {found.i} does not follow")
        else:
            steps.append(_step(path, number, found))
    if header is None:
        raise wrong_usage(f"{path} holds no run")
    yield _run(header, steps)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            number = 0
            # Bounded: a file that is no trace may be a single line of any length.
            while line := file.readline(_LINE_CHARACTERS_MAX):
                number += 1
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise not_found(f"there is no file {path}", "Check its name.") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise wrong_usage(f"{path} cannot be read: {error}") from error


def _parse(path: Path, number: int, line: str) -> RunLine | StepLine:
    try:
        return _PARSER.validate_json(line)
    except ValidationError as error:
        what = error.errors()[0]
        where = ".".join(map(str, what["loc"]))
        raise wrong_usage(f"{path}, line {number}: {where}: {what['msg']}") from error


def _run(header: RunLine, steps: list[RecordedStep]) -> RecordedRun:
    mistake = header.expect.mistake_step
    known = mistake is not None and 0 <= mistake < len(steps)
    return RecordedRun(
        header.id, tuple(steps), mistake + 1 if known and mistake is not None else None
    )


def _step(path: Path, number: int, line: StepLine) -> RecordedStep:
    try:
        check_name(line.a, "agent")
        reads = [(_key(line.a, space, key), arg) for space, key, arg in line.r]
        writes = [
            Write(kind, _key(line.a, space, key), value) for space, key, kind, value in line.w
        ]
    except BlackboardError as error:
        raise wrong_usage(f"{path}, line {number}: {error}") from error
    return RecordedStep(
        agent=line.a,
        reads=tuple(key for key, arg in reads if arg is None),
        lists=tuple(key for key, arg in reads if arg is not None),
        writes=tuple(writes),
    )


def _key(agent: str, space: Namespace, key: str) -> Key:
    return check_key(f"public/{key}" if space == "pub" else f"private/{agent}/{key}")


def differences(expected: Mapping[Key, Any], found: Mapping[Key, Any]) -> list[Key]:
    """Keys at which two states differ."""
    missing = object()
    keys = expected.keys() | found.keys()
    return sorted(k for k in keys if expected.get(k, missing) != found.get(k, missing))


EVERY: Final = "every"
SHOWN_MAX: Final = 20
"""Differences that are printed one by one."""

app = typer.Typer()


@dataclass(slots=True)
class Report:
    """The result: what was compared, and where the board differs from the trace."""

    runs: int = 0
    steps: int = 0
    checkpoints_compared: int = 0
    rewinds_compared: int = 0
    wrong: list[str] = field(default_factory=list)


@app.command(
    cls=Command,
    rich_help_panel="Checkpoints",
    epilog="""\
blackboard replay team.jsonl  # rewinds to the step that spoiled each run, or to its middle
blackboard replay team.jsonl.gz --rewind every  # to every step of every run, from the last one
blackboard replay team.jsonl --rewind 7 --keep ./replayed  # look at it afterwards""",
)
def replay(
    context: typer.Context,
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="JSON lines, or gzipped ones.")],
    rewind: Annotated[
        str | None,
        typer.Option("--rewind", metavar="STEP", help="Rewind to this step, or to every one."),
    ] = None,
    runs: Annotated[
        int | None, typer.Option("--runs", metavar="N", help="Only the first N runs.", min=1)
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep the boards in this new directory."),
    ] = None,
) -> None:
    """Replay recorded teams, rewind them, and compare.

    Each step is followed by a checkpoint. Each run gets a board of its own, run-1, run-2 ... Exit
    code 1 if any state is not equal.
    """
    from blackboard.cli import render as show

    if rewind not in (None, EVERY) and not re.fullmatch("[0-9]{1,9}", str(rewind)):
        raise wrong_usage("--rewind takes the number of a step, or every")
    if keep is not None and keep.exists():
        raise wrong_usage(f"{keep} exists", "Name a new directory.")
    flags = Flags.of(context)
    report = _replayed(trace, runs, rewind, keep)
    if flags.as_json:
        show.print_json(
            {
                "runs": report.runs,
                "steps": report.steps,
                "checkpoints_compared": report.checkpoints_compared,
                "rewinds_compared": report.rewinds_compared,
                "wrong": report.wrong,
            }
        )
    else:
        _tell(report)
    if report.wrong:
        count = screen.counted(len(report.wrong), "state")
        raise CommandError("not_equal", Exit.ERROR, f"{count} not as the trace says")


Goals = Callable[["RecordedRun"], Sequence[int]]
"""To which steps a run is rewound, in this order."""


def _goals(rewind: str | None) -> Goals:
    def goals(run: "RecordedRun") -> Sequence[int]:
        last = len(run.steps)
        if rewind == EVERY:
            return range(last, 0, -1)
        if rewind is not None:
            return [int(rewind)] if 1 <= int(rewind) <= last else []
        # Before the step of the decisive error, where a team would be rewound to.
        return [max(1, run.mistake - 1 if run.mistake else last // 2)] if last else []

    return goals


def _check_steps(runs: "Sequence[RecordedRun]", rewind: str | None, trace: Path) -> None:
    """Errors: CommandError when there is nothing to rewind, which would be "all equal"."""
    longest = max(len(run.steps) for run in runs)
    if longest == 0:
        raise wrong_usage(f"{trace} holds no step")
    if rewind not in (None, EVERY) and not 1 <= int(str(rewind)) <= longest:
        raise wrong_usage(f"no run has a step {rewind}", f"The longest has steps 1 to {longest}.")


def _replayed(trace: Path, runs: int | None, rewind: str | None, keep: Path | None) -> Report:
    import anyio
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    found = [run for number, run in enumerate(load(trace)) if runs is None or number < runs]
    _check_steps(found, rewind, trace)
    report, goals = Report(), _goals(rewind)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=screen.notes()) as progress:
        bar = progress.add_task("replaying", total=sum(len(run.steps) for run in found))

        async def work() -> None:
            async with AsyncExitStack() as stack:
                client = await _opened(stack, keep)
                for number, run in enumerate(found, 1):
                    board = client.board(f"run-{number}")
                    await _replay(board, run, goals(run), report, lambda: progress.advance(bar))

        anyio.run(work)
    return report


async def _opened(stack: AsyncExitStack, keep: Path | None) -> "Client":
    import blackboard

    if keep is None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="blackboard-"))
        # Nothing of it is kept, so no commit waits for the disk.
        return await stack.enter_async_context(blackboard.open(folder, level="memory"))
    return await stack.enter_async_context(blackboard.open(keep))


async def _replay(
    board: "Board",
    run: "RecordedRun",
    goals: Sequence[int],
    report: Report,
    advance: Callable[[], None],
) -> None:
    report.runs += 1
    revisions = []
    for number, step in enumerate(run.steps, 1):
        await _act(board, step)
        revisions.append((await board.checkpoint(f"step-{number}")).revision)
        report.steps += 1
        advance()
    for number, revision in enumerate(revisions, 1):
        await _compare(board, run, number, report, at=revision)
        report.checkpoints_compared += 1
    for number in goals:
        await board.restore(f"step-{number}")
        await board.refresh()
        await _compare(board, run, number, report)
        report.rewinds_compared += 1


async def _act(board: "Board", recorded: "RecordedStep") -> None:
    """One step of the agent, as one commit that depends on what it read."""
    async with board.step(recorded.agent) as step:
        for key in recorded.reads:
            await step.get(key)
        for prefix in recorded.lists:
            await step.list(f"{prefix}/**")
        for write in recorded.writes:
            if write.kind == "append":
                step.append(write.key, write.value)
            elif write.kind == "del":
                step.delete(write.key)
            else:
                step.put(write.key, write.value)


async def _compare(
    board: "Board", run: "RecordedRun", number: int, report: Report, at: int | None = None
) -> None:
    """Compare the whole board, at a revision or now, with the trace after `number` steps."""

    wrong = differences(run.after(number), await _state(board, at))
    if wrong:
        how = "the checkpoint of" if at else "after the rewind to"
        keys = ", ".join(wrong[:3]) + (" ..." if len(wrong) > 3 else "")
        report.wrong.append(f"{run.name}, {how} step {number}: {keys}")


async def _state(board: "Board", at: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pattern in ("public/**", "private/*/**"):
        after = None
        while True:
            page = await board.list(pattern, after=after, at=at)
            found |= {entry.key: entry.value for entry in page.entries}
            after = page.next_key
            if after is None:
                break
    return found


def _tell(report: Report) -> None:
    out = screen.console()
    for line in report.wrong[:SHOWN_MAX]:
        out.print(f"[red]not equal[/]  {screen.safe(line)}")
    verdict = "[bold red]NOT all equal[/]" if report.wrong else "[bold green]all equal[/]"
    out.print(f"{summary(report)}: {verdict}")


def summary(report: Report) -> str:
    """How much was compared, in words."""
    counted = screen.counted
    return (
        f"{counted(report.runs, 'run')}, {counted(report.steps, 'step')}; compared"
        f" {counted(report.checkpoints_compared, 'checkpoint')}"
        f" and {counted(report.rewinds_compared, 'rewind')}"
    )
