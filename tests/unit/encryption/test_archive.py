"""An archive of sealed values, as people use it: looking back, restoring, branching, erasing."""

import asyncio
from pathlib import Path

import pytest

import blackboard
from blackboard.archive.sql import archive_beside
from blackboard.core.checkpoints import Point
from blackboard.core.commit import Put
from blackboard.encryption.archive import SealedArchive
from blackboard.encryption.data_keys import DataKeys
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.encryption.places import Places
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.wire.codec import encode_value
from tests.canary import files_with
from tests.conformance.story import Story
from tests.waiting import TIMEOUT_S

ONE = encode_value(1)
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


async def test_boards_that_branched_off_each_other_have_a_past(tmp_path: Path) -> None:
    """A board was lost, and another one of its name began as a branch of its own branch."""
    raw, store = await archive_beside(tmp_path), await SqliteStore.at(tmp_path, "memory")
    keys = DataKeys(store, LocalWrapper.of(new_master_key()))
    archive = SealedArchive(raw, keys, Places(store, keys, public=False))
    story = Story()
    story.tell(Put("public/a", ONE))
    story.tell(Put("public/b", ONE))
    await story.archive_into(raw, "one")
    await archive.branch("two", Point("one", 1))
    await archive.branch("one", Point("two", 1))
    async with asyncio.timeout(TIMEOUT_S):
        found = await archive.log("one", 0, until=1, limit=9)
    assert list(found) == story.log[:1]
    await archive.aclose()
    await store.aclose()
