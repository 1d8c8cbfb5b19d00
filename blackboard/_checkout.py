"""Find agents/ and demos/ when Blackboard runs from a checkout instead of from a wheel.

In the wheel they are copied to `blackboard/agents` and `blackboard/demos`; in a checkout they lie
at the top, and the packages of those names extend their `__path__` by what `checkout_path` returns.
"""

import tomllib
from pathlib import Path

_DISTRIBUTION = "agent-blackboard"


def checkout_path(folder: str, root: Path | None = None) -> list[str]:
    """Return `[<root>/<folder>]` if `root` is a checkout of Blackboard, else `[]`.

    `root` is by default the folder that holds the package `blackboard`. The distribution's name is
    compared because site-packages may hold both a stray pyproject.toml and a foreign `agents/`.
    """
    root = Path(__file__).resolve().parents[1] if root is None else root
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return []
    return [str(root / folder)] if project.get("name") == _DISTRIBUTION else []
