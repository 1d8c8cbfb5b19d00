"""Closing a service always completes, even if callers are interrupted or parts fail."""

import asyncio
from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint

import blackboard
from blackboard.archive.sql import SqlArchive
from blackboard.errors import InvalidRequest, Unavailable


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 10, 20, 40, 80])
async def test_closing_survives_a_cancellation(tmp_path: Path, turns: int) -> None:
    """At whatever point it comes: afterwards the directory is free and no task is left."""
    before = asyncio.all_tasks()
    client = await blackboard.open(tmp_path)
    await client.board("b").put("public/a", 1)
    closing = asyncio.create_task(client.aclose())
    for _ in range(turns):
        await checkpoint()
    closing.cancel()
    await asyncio.wait([closing])
    await client.aclose()
    assert asyncio.all_tasks() - before <= {closing}
    async with blackboard.open(tmp_path) as again:
        assert await again.board("b").get("public/a") == 1


async def test_many_may_close_at_once(tmp_path: Path) -> None:
    """Each call returns when everything is closed."""
    client = await blackboard.open(tmp_path)
    await client.board("b").put("public/a", 1)
    await asyncio.gather(*(client.aclose() for _ in range(3)))
    async with blackboard.open(tmp_path) as again:
        assert await again.board("b").get("public/a") == 1


async def test_a_failing_archive_does_not_keep_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await blackboard.open(tmp_path)
    await client.board("b").put("public/a", 1)
    close = SqlArchive.aclose

    async def fail(archive: SqlArchive) -> None:
        await close(archive)
        raise Unavailable(what="archive", reason="its disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(SqlArchive, "aclose", fail)
        with pytest.raises(Unavailable, match="disk is gone"):
            await client.aclose()
    async with blackboard.open(tmp_path) as again:
        assert await again.board("b").get("public/a") == 1


@pytest.mark.parametrize("agent", ["", "two words", "~system"])
async def test_a_name_that_is_refused_leaves_the_directory_free(tmp_path: Path, agent: str) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(InvalidRequest):
        await blackboard.open(tmp_path, agent=agent)
    assert asyncio.all_tasks() == before
    async with blackboard.open(tmp_path) as client:
        assert client.link.agent == "operator"
