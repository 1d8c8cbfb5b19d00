"""The repository as text, for the tests that keep its shape."""

import ast
import subprocess
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGED = ("agents", "demos")  # they lie at the top and are imported as blackboard.<folder>


@dataclass(frozen=True)
class Source:
    """One file: its path from the top of the repository, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed module."""
        return ast.parse(self.text, self.path)

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function and method, however deep."""
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        return [node for node in ast.walk(self.tree) if isinstance(node, kinds)]

    @property
    def module(self) -> str:
        """The dotted name that the module is imported by."""
        parts = self.path.removesuffix(".py").removesuffix("/__init__").split("/")
        return ".".join(["blackboard", *parts] if parts[0] in PACKAGED else parts)


def sources(*folders: str, suffix: str = ".py") -> list[Source]:
    """The files below those folders, by path; folders that do not exist yet have none."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob(f"*{suffix}"))]
    return [_read(path) for path in paths]


def published_texts() -> list[Source]:
    """Every text file that git tracks, or would track if it were added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [_read(path) for path in paths if path.is_file() and _is_text(path)]


def _is_text(path: Path) -> bool:
    return b"\0" not in path.read_bytes()


@cache
def _read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8", errors="replace")
    return Source(path.relative_to(ROOT).as_posix(), text)
