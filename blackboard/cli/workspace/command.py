"""workspace: a directory of files as a part of the board: snapshot, restore, branch, compare."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli import screen
from blackboard.cli.options import CommandGroup, Flags, ReadCommand

if TYPE_CHECKING:
    from blackboard.client.board import Board
    from blackboard.client.workspace.workspace import (
        FileChange,
        Snapshot,
        Workspace,
        WorkspaceFile,
    )

_DIRECTORY = typer.Argument(metavar="DIR", help="The directory.", show_default=False)
_KEY = typer.Option("--key", metavar="KEY", help="Where. Default: private/<agent>/workspace.")
_AT = typer.Option(
    "--at", metavar="MOMENT", help="A revision, a checkpoint, or a time such as 2026-11-21T09:30."
)
_SIGNS = {"file": "-", "directory": "d", "link": "l"}

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Directories of files, as part of the board."
)


def _of(board: "Board", directory: Path, key: str | None) -> "Workspace":
    return board.workspace(directory, key)


def _said(flags: Flags, taken: "Snapshot") -> None:
    from blackboard.cli import render as show

    if flags.as_json:
        show.print_json(show.plain(taken))
    else:
        screen.answer(
            f"{taken.files} files ({taken.size_bytes} bytes) as of revision {taken.revision}"
        )


@app.command(
    cls=ReadCommand,
    epilog="""\
blackboard workspace snapshot src --note "tests pass"
blackboard workspace snapshot site --key public/site  # for all to read""",
)
def snapshot(
    context: typer.Context,
    directory: Annotated[Path, _DIRECTORY],
    key: Annotated[str | None, _KEY] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Why.")] = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also if the one on the board is not of here.")
    ] = False,
) -> None:
    """Put what changed in a directory onto the board.

    It is one commit. Leaves out what .gitignore and .blackboardignore say.
    """
    from blackboard.cli import session

    flags = Flags.of(context)

    async def take(board: "Board") -> "Snapshot":
        with screen.counting(f"reading {directory}", "files") as reached:
            files = _of(board, directory, key)
            return await files.snapshot(note=note, overwrite=overwrite, progress=reached)

    _said(flags, session.with_board(flags, take, create=True))


@app.command(
    cls=ReadCommand,
    epilog="""\
blackboard workspace restore src  # as the board has it now, such as after a restore of it
blackboard workspace restore src --at before-plan --discard
blackboard workspace restore second -b other-board  # a new directory, from a branch""",
)
def restore(
    context: typer.Context,
    directory: Annotated[Path, _DIRECTORY],
    key: Annotated[str | None, _KEY] = None,
    at: Annotated[str | None, _AT] = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="Lose changes that no snapshot has.")
    ] = False,
) -> None:
    """Make a directory exactly what a snapshot says, at once.

    Refuses, and names the files, if changes would be lost.
    """
    from blackboard.cli import session, values

    flags = Flags.of(context)
    moment = None if at is None else values.parse_moment(at)

    async def write(board: "Board") -> "Snapshot":
        with screen.counting(f"writing {directory}", "files") as reached:
            files = _of(board, directory, key)
            return await files.restore(moment, discard=discard, progress=reached)

    _said(flags, session.with_board(flags, write))


@app.command(
    cls=ReadCommand,
    epilog="""\
blackboard workspace diff src  # what changed since the last snapshot
blackboard workspace diff src before-plan now""",
)
def diff(
    context: typer.Context,
    directory: Annotated[Path, _DIRECTORY],
    a: Annotated[str | None, typer.Argument(metavar="A", help="Default: the snapshot.")] = None,
    b: Annotated[str | None, typer.Argument(metavar="B", help="Default: the directory.")] = None,
    key: Annotated[str | None, _KEY] = None,
) -> None:
    """Print which files differ between two moments.

    + is new, - is gone, ~ has another content, x other permissions.
    """
    from blackboard.cli import render as show, session, values

    flags = Flags.of(context)
    first, second = (None if one is None else values.parse_moment(one) for one in (a, b))

    async def look(board: "Board") -> "tuple[FileChange, ...]":
        return await _of(board, directory, key).diff(first, second)

    changes = session.with_board(flags, look)
    if flags.as_json:
        show.print_json([show.plain(one) for one in changes])
    else:
        for one in changes:
            screen.answer(screen.safe(str(one)))


@app.command(
    "ls",
    cls=ReadCommand,
    epilog="""\
blackboard workspace ls src
blackboard workspace ls src --at before-plan""",
)
def list_all(
    context: typer.Context,
    directory: Annotated[Path, _DIRECTORY],
    key: Annotated[str | None, _KEY] = None,
    at: Annotated[str | None, _AT] = None,
) -> None:
    """Print what a snapshot has: permissions, bytes, path."""
    from blackboard.cli import render as show, session, values

    flags = Flags.of(context)
    moment = None if at is None else values.parse_moment(at)

    async def look(board: "Board") -> "tuple[WorkspaceFile, ...]":
        return await _of(board, directory, key).list(moment)

    found = session.with_board(flags, look)
    if flags.as_json:
        show.print_json([show.plain(one) for one in found])
        return
    for one in found:
        target = f" -> {one.target}" if one.target else ""
        line = f"{_SIGNS[one.kind]}{one.permissions:03o} {one.size_bytes:>10} {one.path}{target}"
        screen.answer(screen.safe(line))
