"""A disk that cannot read one file: the error is temporary and names the file, nothing wrong is
answered, and everything is there when the disk reads again."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.faults.preloaded import built
from tests.tiers import few_or_many

SOURCE = Path(__file__).with_name("failing_files.c")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is laid before the C library."""
    return built(SOURCE, tmp_path_factory.mktemp("library"))


@few_or_many(6, 12)
@pytest.mark.parametrize("part", ["boards/main.db", "archive.db", "blobs/", "signing_key"])
async def test_a_file_that_cannot_be_read(
    library: Path, tmp_path: Path, part: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In use, and at the start. Each of the first `rounds` reads of a page is the only one that
    fails, in turn."""
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAILING_FILES", str(tmp_path / "flag"))
    child = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.faults.failing_reads_child",
            str(tmp_path),
            part,
            str(rounds),
        ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await child.communicate()
    assert output.decode() == ""
