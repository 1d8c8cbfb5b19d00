"""One fault that can be seeded: which text is changed, and which tests must notice."""

from dataclasses import dataclass
from pathlib import Path

UNIT = "tests/unit"
BOARD = "tests/conformance/test_board_embedded.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`path` with `old` (which must occur exactly once) replaced by `new`; `tests` for pytest."""

    name: str
    path: str
    old: str
    new: str
    tests: str

    def misfit(self, root: Path) -> str | None:
        """Why it cannot be seeded into the code below `root`; None if it can."""
        file = root / self.path
        if not file.is_file():
            return f"{self.name}: there is no {self.path}"
        count = file.read_text().count(self.old)
        return None if count == 1 else f"{self.name}: {count} places to change in {self.path}"

    def apply(self, root: Path) -> None:
        """Change the file below `root`. Errors: AssertionError, see `misfit`."""
        if (reason := self.misfit(root)) is not None:
            raise AssertionError(reason)
        file = root / self.path
        file.write_text(file.read_text().replace(self.old, self.new))
