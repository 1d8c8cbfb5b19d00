"""Backups, while a process that takes one is killed at a file call, or the call fails: the backup
is the old or the new one, it can be recovered, and the next one goes on from it.

BLACKBOARD_KILLS=100 with --timeout=0 tries each call: ten minutes.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.faults.preloaded import built
from tests.tiers import few_or_many

SOURCE = Path(__file__).with_name("failing_calls.c")


@few_or_many(1, 2)
@pytest.mark.parametrize("how", ["once", "following"])
async def test_a_backup_that_ends_at_any_file_call(
    tmp_path: Path, how: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9, a sync that fails, and no room; a service that follows goes on by itself."""
    monkeypatch.setenv("LD_PRELOAD", str(built(SOURCE, tmp_path)))
    count = int(os.environ.get("BLACKBOARD_KILLS", rounds))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.backup_child", str(tmp_path), how, str(count)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await child.communicate()
    assert output.decode() == ""
