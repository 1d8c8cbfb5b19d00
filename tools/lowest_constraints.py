"""The lowest versions that pyproject.toml admits, as constraints for pip: `NAME==FLOOR`.

Below them, what is as old as they are, because newer ones warn of how it is used.

    python tools/lowest_constraints.py

It needs nothing but Python: it runs before there is an environment.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
EXTRAS = ("embedded", "fast", "memory", "postgresql", "telemetry", "test")
"""Those whose packages no framework chooses. A framework has floors of its own, above ours."""
BELOW = ("click<8.5",)
"""Newer ones work, too, but warn when typer before 0.26 is imported."""
_FLOOR = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?[^;]*>=([0-9][0-9a-z.]*)")


def floors(project: dict[str, Any]) -> Iterator[str]:
    """A constraint for each dependency. Errors: ValueError for one that has no floor."""
    extras = (project["optional-dependencies"][extra] for extra in EXTRAS)
    for requirement in (*project["dependencies"], *(each for extra in extras for each in extra)):
        found = _FLOOR.match(requirement)
        if found is not None:
            yield f"{found[1]}=={found[2]}"
        elif not requirement.startswith("agent-blackboard-client=="):
            raise ValueError(f"{requirement} has no floor")


if __name__ == "__main__":
    declared = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    sys.stdout.write("".join(f"{line}\n" for line in (*floors(declared), *BELOW)))
