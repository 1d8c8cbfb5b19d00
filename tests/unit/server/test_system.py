"""Commits of the service itself."""

from pathlib import Path

import pytest

from blackboard.core.commit import Put
from blackboard.server import commit_queue as system
from blackboard.wire.codec import encode_value
from tests.unit.server.hooked import service_over

KEY = "system/tests/mine"


async def test_a_commit_that_others_overtook_on_its_lane_is_sent_again_and_happens_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine cannot tell it from a late copy; the service, which sent no other, can."""
    monkeypatch.setattr(system, "LANES_MAX", 1)
    async with service_over(tmp_path) as (service, store):
        main = await service.boards.use("main")
        sent: list[str] = []
        others = [Put("system/tests/other", encode_value(1))]

        async def count() -> None:
            sent.append("commit")

        async def overtake() -> None:
            store.hook("before commit", count)
            for _ in range(2):
                await main.commit_as_system(others)
            sent.append("ours")

        store.hook("before commit", overtake)
        done = await main.commit_as_system([Put(KEY, encode_value(7))])
        log = await store.log("main", 0, limit=9)
    written = [entry.revision for entry in log.entries for it in entry.changes if it.key == KEY]
    assert written == [done.revision] == [3]
    assert sent == ["commit", "commit", "ours", "commit"]
