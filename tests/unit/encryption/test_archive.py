"""An archive of sealed values, as people use it: looking back, restoring, branching, erasing."""

from pathlib import Path

import pytest

import blackboard
from blackboard.encryption.master_key import new_master_key
from tests.canary import files_with

SECRET = "private/ada/secret"


async def test_the_past_reads_as_it_was_and_comes_back(tmp_path: Path) -> None:
    """A look, a history, a comparison, a restore, a branch: plain; and digests that hold."""
    key = new_master_key()
    async with blackboard.open(tmp_path, master_key=key) as client:
        board = client.board("main")
        first = await board.put(SECRET, "canary-1")
        await board.checkpoint("one")
        await board.put(SECRET, "canary-2")
        await board.increment("private/ada/count", 3)
        assert await board.get(SECRET, at=first.revision) == "canary-1"
        assert [v.value for v in await board.history(SECRET)] == ["canary-2", "canary-1"]
        assert not (await board.verify("one")).findings
        await board.branch("two", "one")
        assert await client.board("two").get(SECRET) == "canary-1"
        await board.restore("one")
        assert await board.get(SECRET) == "canary-1"
        assert await board.get("private/ada/count") is None
    assert not files_with(tmp_path, b"canary-")


@pytest.mark.parametrize("other", [None, new_master_key()], ids=["none", "another"])
async def test_without_its_key_nothing_is_opened(tmp_path: Path, other: str | None) -> None:
    """Neither without one nor with another: it is said at once."""
    async with blackboard.open(tmp_path, master_key=new_master_key()) as client:
        await client.board("main").put(SECRET, "canary")
    with pytest.raises((blackboard.errors.EngineRefused, blackboard.errors.Corrupt)):
        async with blackboard.open(tmp_path, master_key=other):
            pass
