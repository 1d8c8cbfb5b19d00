"""What comes back of a backup that was pruned."""

from pathlib import Path

import blackboard
from blackboard.backup.place import BackupPlace
from blackboard.backup.retain import Policy, prune
from blackboard.core.checkpoints import Instant
from blackboard.server.backups.once import take_once
from blackboard.server.checkpoints.from_backup import Wanted, recover_from
from blackboard.server.settings import load

BOARD = "main"


async def test_a_time_between_the_base_and_the_next_commit_can_be_recovered(
    tmp_path: Path,
) -> None:
    backup, data, back = (tmp_path / name for name in ("backup", "data", "back"))
    for value in ("before", "at", "after"):
        async with blackboard.open(data) as client:
            await client.board(BOARD).put("public/a", value)
        await take_once(load({"data": data}), str(backup))
    async with blackboard.open(data) as client:
        [_, then, _] = list(await client.board(BOARD).history("public/a"))
    place = BackupPlace.at(str(backup))
    pruned = await prune(place, Policy(revisions=1), now_ms=0)
    assert [(each.board, each.below) for each in pruned.boards if each.board == BOARD] == [
        (BOARD, then.revision)
    ]
    await recover_from(load({"data": back}), place, Wanted(at=Instant(then.time_ms)))
    async with blackboard.open(back) as client:
        assert await client.board(BOARD).get("public/a") == "at"
