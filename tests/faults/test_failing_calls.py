"""Each kind of file, while one call that writes it fails for lack of room: the error is one of
ours, what was acknowledged is there, and everything can be done afterwards."""

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest

import blackboard
from blackboard.engines.sqlite.journal import use_journal
from blackboard.errors import Unavailable
from tests.faults.preloaded import built
from tests.tiers import few_or_many

SOURCE = Path(__file__).with_name("failing_calls.c")
FILES = (
    "signing_key",
    "owner.json",
    "heads.json",
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
    return built(SOURCE, tmp_path_factory.mktemp("library"))


@few_or_many(3, 5)
@pytest.mark.parametrize("part", FILES)
async def test_a_call_for_which_there_is_no_room(
    library: Path, tmp_path: Path, part: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are rounds, spread over all calls on that file."""
    monkeypatch.setenv("LD_PRELOAD", str(library))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.failing_calls_child"),
        *(str(tmp_path), part, str(rounds)),
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
