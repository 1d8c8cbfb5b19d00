"""Each kind of file, while one call that writes it fails for lack of room: the error is one of
ours, what was acknowledged is there, and everything can be done afterwards."""

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import blackboard

SOURCE = Path(__file__).with_name("failing_calls.c")
TIMES = 8
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


async def found(
    library: Path, data: Path, part: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> str:
    """What should not have happened."""
    monkeypatch.setenv("LD_PRELOAD", str(library))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.failing_calls_child", str(data), part, str(times)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await child.communicate()
    return output.decode()


@pytest.mark.slow
@pytest.mark.parametrize("part", FILES)
async def test_a_call_for_which_there_is_no_room(
    library: Path, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spread over all calls on that file."""
    assert await found(library, tmp_path, part, TIMES, monkeypatch) == ""


@pytest.mark.slow
async def test_a_seed_for_which_there_is_no_room(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each call: also where SQLite reports no error, and keeps its journal mode."""
    assert await found(library, tmp_path, "boards/branched.db.seed", 64, monkeypatch) == ""


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
