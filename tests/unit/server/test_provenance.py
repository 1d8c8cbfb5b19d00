"""Walks through reasons are bounded in depth and in number."""

from pathlib import Path

import pytest

from blackboard.core.commit import Put
from blackboard.wire.codec import encode_value
from tests.lowered import lowered
from tests.unit.server.hooked import client_of, service_over

ONE = encode_value(1)


@pytest.mark.parametrize(("depth_max", "commits_max"), [(3, 100), (100, 3)])
async def test_a_walk_ends_at_its_bounds(tmp_path: Path, depth_max: int, commits_max: int) -> None:
    chosen = lowered(why_depth_max=depth_max, why_commits_max=commits_max)
    async with service_over(tmp_path, chosen) as (service, _):
        board = client_of(service).board("main")
        grounds: list[tuple[str, int]] = []
        for _ in range(10):
            receipt = await board.commit([Put("public/a", ONE)], based_on=grounds)
            grounds = [("public/a", receipt.revision)]
        causes = await board.why("public/a")
    assert [cause.revision for cause in causes] == [10, 9, 8, 7][: min(depth_max + 1, commits_max)]


async def test_a_commit_that_many_were_based_on_is_shown_once(tmp_path: Path) -> None:
    async with service_over(tmp_path) as (service, _):
        board = client_of(service).board("main")
        root = ("public/root", (await board.put("public/root", 1)).revision)
        middle = []
        for name in "abc":
            receipt = await board.commit([Put(f"public/{name}", ONE)], based_on=[root, root])
            middle.append((f"public/{name}", receipt.revision))
        await board.commit([Put("public/top", ONE)], based_on=middle)
        causes = await board.why("public/top")
    assert [(cause.key, cause.depth) for cause in causes] == [
        ("public/top", 0),
        ("public/a", 1),
        ("public/b", 1),
        ("public/c", 1),
        ("public/root", 2),
    ]
