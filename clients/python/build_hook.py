"""Puts the files of the client, which lie at the top of the checkout, into its distributions.

They are those that pyproject.toml at the top keeps out of the wheel of `agent-blackboard`: one list
for both, so that no file is in two distributions or in none. An sdist has them beside this file.
"""

import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ClientFiles(BuildHookInterface[Any]):
    """The hook that hatchling runs before it builds an sdist or a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files. An editable wheel has none: it points at the checkout."""
        if version != "editable":
            here = Path(self.root)
            top = here if (here / "blackboard").is_dir() else here.parents[1]
            named = ["blackboard"] if top == here else client_files(top)
            build_data["force_include"] |= {str(top / name): name for name in named}


def client_files(top: Path) -> list[str]:
    """The files and folders of the client in a checkout, as paths from its top."""
    project = tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))
    excluded = project["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    return [name.strip("/") for name in excluded if name.startswith("/blackboard/")]
