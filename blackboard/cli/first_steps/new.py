"""new: writes a small project of two agents, which runs and is tested at once.

Invariants
- The project is there whole or not at all, also after Ctrl-C and without room on the disk.
- Nothing that was there before is changed or removed.
"""

import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from blackboard.cli import screen
from blackboard.cli.errors import CommandError, Exit, not_found, wrong_usage
from blackboard.cli.options import Command, Flags
from blackboard.limits import SEGMENT_BYTES_MAX

TEMPLATE: Final = "my-team"
"""The name that the files in `project/` have, where a project has its own."""
FILES: Final = {
    "team.py": "team.py",
    "test_team.py": "test_team.py",
    "Makefile": "Makefile",
    "README.md": "README.md",
    "gitignore": ".gitignore",
}
"""The files in `project/`, and what they are called in a project."""
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{SEGMENT_BYTES_MAX - 1}}}")
_NAMES: Final = (
    f"Letters, digits, and . _ - after the first one, {SEGMENT_BYTES_MAX} at most: the board is"
    " called the same. Folders before it are separated by /."
)

app = typer.Typer()


@app.command(
    cls=Command,
    rich_help_panel="First steps",
    epilog="""\
blackboard new my-team  # then: cd my-team; make; make test
blackboard new teams/offsite --json""",
)
def new(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A new or empty directory, and the board.", show_default=False
        ),
    ],
) -> None:
    """Write a small project: two agents, a test, a Makefile.

    It runs at once, on a directory of its own: no service, no model, no network.
    """
    try:
        target = Path(path).absolute()
        check(path, target)
        write_project(target)
    except OSError as error:
        why = error.strerror or str(error)
        message = f"{path} cannot be written: {why}"
        raise CommandError("not_written", Exit.ERROR, message, "Nothing was left.") from error
    if Flags.of(context).as_json:
        from blackboard.cli import render

        files = sorted(entry.name for entry in target.iterdir())
        render.print_json({"directory": str(target), "files": files})
    else:
        _print_next(path, target)


def check(path: str, target: Path) -> None:
    """Refuse what cannot become a project. Errors: CommandError."""
    if not path or not _NAME.fullmatch(target.name):
        raise wrong_usage(f"{path!r} cannot be the name of a project", _NAMES)
    if os.path.lexists(target) and not target.is_dir():
        raise wrong_usage(f"{path} exists, and is no directory", "Choose another name.")
    if target.is_dir() and any(target.iterdir()):
        raise wrong_usage(
            f"{path} exists, and is not empty", "Choose another name; nothing was changed."
        )
    if not target.parent.is_dir():
        raise not_found(
            f"there is no directory {target.parent}", f"mkdir -p {shlex.quote(str(target.parent))}"
        )


def write_project(target: Path) -> None:
    """Write the project into `target`, which is absent or empty, under an absolute path.

    Errors: OSError; `target` is as it was then, and after KeyboardInterrupt as well.
    """
    is_there = target.is_dir()
    # In the same file system as the project, so that renaming is enough.
    home = target if is_there else target.parent
    stage = home / f".new-project.{secrets.token_hex(4)}"
    try:
        stage.mkdir()
        for name, text in _texts(target.name):
            (stage / name).write_text(text, encoding="utf-8")
        if is_there:  # the shell of the user may be in it, so it stays that directory
            _move_all(stage, target)
        else:
            stage.rename(target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _texts(name: str) -> Iterator[tuple[str, str]]:
    """Each file of a project: its name and its text."""
    folder = resources.files("blackboard.cli.first_steps") / "project"
    for source, target in FILES.items():
        yield target, (folder / source).read_text(encoding="utf-8").replace(TEMPLATE, name)
    yield "requirements.txt", f"agent-blackboard~={version('agent-blackboard')}\n"
    yield "local.mk", f"PYTHON ?= {for_make(sys.executable or 'python3')}\n"


def for_make(path: str) -> str:
    """`path` as the value of a variable in a Makefile."""
    return path.replace("$", "$$").replace("#", "\\#")


def _move_all(stage: Path, target: Path) -> None:
    """Move what is in `stage` to `target`; if that is interrupted, none of it stays there."""
    moved: list[Path] = []
    try:
        for file in sorted(stage.iterdir()):
            # Before the rename: Ctrl-C may come right after it.
            moved.append(target / file.name)
            file.rename(moved[-1])
    except BaseException:
        for path in moved:
            path.unlink(missing_ok=True)
        raise


def _print_next(path: str, target: Path) -> None:
    out = screen.console()
    out.print(Text.assemble("\n ", (target.name, "bold"), " is there: two agents and a test.\n"))
    for command, remark in _next_steps(path, target):
        line = Text.assemble("   ", (f"{command:<24}", "cyan"), (f"# {remark}", "dim"))
        out.print(line, soft_wrap=True)
    out.print()


def _next_steps(path: str, target: Path) -> Iterator[tuple[str, str]]:
    if target != Path.cwd():
        yield f"cd {shlex.quote(path)}", "team.py is the file to change"
    with_make = shutil.which("make") is not None
    yield "make" if with_make else "python team.py", "both agents make a plan"
    yield "make test" if with_make else "python -m unittest", "and keep what they promise"
