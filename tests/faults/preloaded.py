"""C libraries that a test lays before the one of the system, to make calls fail."""

import subprocess
from pathlib import Path

import pytest


def built(source: Path, folder: Path) -> Path:
    """The library of `source`, for LD_PRELOAD. Skips the test where none can be built."""
    library = folder / f"{source.stem}.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no library can be laid before the C library here: {error}")
    return library
