"""Recorded runs of teams: what a trace says, and what a board must hold after each of its steps.

A trace is JSON lines, gzipped or not. Each run begins with a header, and each further line is one
step of one agent:

    {"t": "run", "id": "demo/1", "agents": ["ada", "bob"], "expect": {"mistake_step": 3}}
    {"t": "step", "i": 0, "a": "ada", "r": [["pub", "log", 0]], "w": [["pub", "log", "append", 1]]}

`r` names what the step read: namespace (`pub`, or `prv` for the agent's own), key, and null for the
whole value or n for the items after the n-th of a list. `w` names what it wrote: namespace, key,
`put`, `append`, `rmw` (a put that was computed from what `r` names) or `del`, and the value.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from blackboard.cli.errors import not_found, wrong_usage
from blackboard.core.path import check_key, check_name, item_key
from blackboard.errors import BlackboardError
from blackboard.types import COMMIT_BYTES_MAX, Key

_LINE_CHARACTERS_MAX: Final = 4 * COMMIT_BYTES_MAX
"""One line: a step is one commit, and escaping makes it up to four times longer."""

Namespace = Literal["pub", "prv"]


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Expect(_Line):
    """What people found out about the run: the step that spoiled it, if any."""

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
class Step:
    """One step: what `agent` read (whole values, and lists) and wrote."""

    agent: str
    reads: tuple[Key, ...]
    lists: tuple[Key, ...]
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run. `mistake` is how many steps lead up to, and include, the decisive error."""

    name: str
    steps: tuple[Step, ...]
    mistake: int | None = None

    def after(self, count: int) -> dict[Key, Any]:
        """What the board holds after the first `count` steps: the plain fold of their writes."""
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


def load(path: Path) -> Iterator[Run]:
    """The runs of a trace, one after the other. Errors: CommandError, naming the line."""
    header: RunLine | None = None
    steps: list[Step] = []
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


def _run(header: RunLine, steps: list[Step]) -> Run:
    mistake = header.expect.mistake_step
    known = mistake is not None and 0 <= mistake < len(steps)
    return Run(header.id, tuple(steps), mistake + 1 if known and mistake is not None else None)


def _step(path: Path, number: int, line: StepLine) -> Step:
    try:
        check_name(line.a, "agent")
        reads = [(_key(line.a, space, key), arg) for space, key, arg in line.r]
        writes = [
            Write(kind, _key(line.a, space, key), value) for space, key, kind, value in line.w
        ]
    except BlackboardError as error:
        raise wrong_usage(f"{path}, line {number}: {error}") from error
    return Step(
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
