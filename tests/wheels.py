"""Our distributions, built from this checkout."""

import subprocess
import sys
from pathlib import Path

from tests.source_tree import ROOT

PROJECTS = (ROOT, ROOT / "clients/python")


def build(project: Path, target: Path, *kinds: str) -> None:
    """Build distributions of a project into a folder."""
    wanted = [argument for kind in kinds for argument in ("-t", kind)]
    command = [sys.executable, "-m", "hatchling", "build", *wanted, "-d", str(target)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)


def wheels_in(folder: Path) -> Path:
    """That folder, with both wheels in it."""
    for project in PROJECTS:
        build(project, folder, "wheel")
    return folder
