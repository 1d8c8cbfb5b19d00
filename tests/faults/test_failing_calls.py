"""Each kind of file, while one call that writes it fails for lack of room: the error is one of
ours, what was acknowledged is there, and everything can be done afterwards."""

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import blackboard
from blackboard.engines.sqlite.file import use_journal
from blackboard.errors import Unavailable

SOURCE = Path(__file__).with_name("failing_calls.c")
FILES = (
    "signing_key",
    "owner.json",
    "archive.db",
    "blobs/",
    "one.zip",
    "boards/main.db",
    "boards/imported.db",
    "boards/branched.db.seed",
    "boards/branched.db.removed",
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is laid before the C library."""
    built = tmp_path_factory.mktemp("library") / "failing_calls.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(built), str(SOURCE), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no library can be laid before the C library here: {error}")
    return built


@pytest.mark.slow
@pytest.mark.parametrize("part", FILES)
async def test_a_call_for_which_there_is_no_room(
    library: Path, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spread over all calls on that file."""
    monkeypatch.setenv("LD_PRELOAD", str(library))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.failing_calls_child", str(tmp_path), part),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await child.communicate()
    assert output.decode() == ""


def test_a_file_that_keeps_its_journal_mode_is_refused(tmp_path: Path) -> None:
    """As on a full disk, where SQLite raises nothing. A database in memory keeps its mode, too."""
    database = sqlite3.connect(":memory:")
    with pytest.raises(Unavailable, match="its journal mode stays 'memory'"):
        use_journal(database, tmp_path / "main.db")
    database.close()


async def test_a_copy_without_a_journal_is_opened(tmp_path: Path) -> None:
    """As VACUUM INTO makes one."""
    async with blackboard.open(tmp_path) as client:
        await client.board("main").put("public/a", 1)
    file, copy = tmp_path / "boards" / "main.db", tmp_path / "copy.db"
    database = sqlite3.connect(file)
    database.execute("VACUUM INTO ?", (str(copy),))
    database.close()
    copy.replace(file)
    async with blackboard.open(tmp_path) as client:
        assert await client.board("main").get("public/a") == 1
        await client.board("main").put("public/a", 2)
    async with blackboard.open(tmp_path) as client:
        assert await client.board("main").get("public/a") == 2
