"""What comes back of a backup that was pruned."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import blackboard
from blackboard.backup.place import BackupPlace
from blackboard.backup.retain import Policy, prune
from blackboard.backup.ship import Shipper
from blackboard.core.checkpoints import Instant
from blackboard.core.commit import Commit, CommitId, Committed, Put, Reading
from blackboard.core.path import Ranges
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import DEFAULT
from blackboard.server.backups.once import take_once
from blackboard.server.checkpoints.from_backup import Wanted, recover_from
from blackboard.server.settings import load
from blackboard.units import Prefix, Revision
from blackboard.wire.codec import encode_value, prepare

BOARD = "main"
SMALL = replace(DEFAULT, backup=replace(DEFAULT.backup, segment_bytes=1))
"""A file for each log entry."""


async def commit(store: SqliteStore) -> Revision:
    """Put something; returns its revision."""
    head = await store.open(BOARD)
    put = (Put("public/a", encode_value(head.revision)),)
    commit = Commit(CommitId("ann", 0, "writer", head.revision + 1), head.epoch.id, put)
    [outcome] = await store.commit(BOARD, [prepare(commit)])
    assert isinstance(outcome, Committed)
    return outcome.revision


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


async def test_a_base_that_is_not_of_one_revision_stays_until_more_may_go(tmp_path: Path) -> None:
    """The board went on while its pages were read, and the policy would cut in between."""
    backup, data, back = (tmp_path / name for name in ("backup", "data", "back"))
    store = await SqliteStore.at(data)
    shipper = Shipper(BackupPlace.at(str(backup)), store, None, SMALL)
    first, pages = await commit(store), store.list

    async def read_late(board: str, within: Prefix | Ranges, **page: Any) -> Reading:
        for _ in range(0 if page.get("keys_only") else 3):
            await commit(store)
        return await pages(board, within, **page)

    store.list = read_late  # type: ignore[method-assign]
    await shipper.begin()
    await shipper.round([BOARD])
    store.list = pages  # type: ignore[method-assign]
    await shipper.round([BOARD])  # what came meanwhile
    await shipper.end()
    place = BackupPlace.at(str(backup))
    found = []
    for kept in (2, 1, 0):
        pruned = await prune(place, Policy(revisions=kept), now_ms=0, limits=SMALL)
        found.append([each.below for each in pruned.boards])
    assert found == [[], [], [first + 3]]
    await recover_from(load({"data": back}), place, Wanted())
    async with blackboard.open(back) as client:
        assert await client.board(BOARD).get("public/a") == first + 2
    await store.aclose()


async def test_the_revisions_that_an_epoch_skips_do_not_count(tmp_path: Path) -> None:
    """Else everything before an unclean end would go, a minute after it."""
    store = await SqliteStore.at(tmp_path / "data")
    shipper = Shipper(BackupPlace.at(str(tmp_path / "backup")), store, None, SMALL)
    await commit(store)
    await shipper.begin()
    await shipper.round([BOARD])
    second = await commit(store)
    for _ in range(2):
        await commit(store)
    await store.begin_epoch(BOARD, await store.open(BOARD), above=10**6)
    assert await commit(store) > 10**6
    await shipper.round([BOARD])
    await shipper.end()
    await store.aclose()
    # Those that stay: two of the old epoch, its end, and one of the new epoch.
    place = BackupPlace.at(str(tmp_path / "backup"))
    pruned = await prune(place, Policy(revisions=4), now_ms=0, limits=SMALL)
    assert [each.below for each in pruned.boards] == [second]
