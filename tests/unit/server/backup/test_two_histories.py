"""A backup with two histories of one name: of one data directory, and then of another."""

from pathlib import Path

import pytest

from blackboard.backup.place import BackupPlace
from blackboard.backup.read import records_of
from blackboard.backup.retain import Policy, prune
from blackboard.errors import Unavailable
from tests.unit.server.backup.test_backup import grown, the_manifest


async def test_a_file_that_was_merged_is_found_in_its_own_history(tmp_path: Path) -> None:
    """The file of the other one has these revisions, too, and comes first."""
    backup = tmp_path / "backup"
    await grown(tmp_path / "first", backup, range(9))
    await grown(tmp_path / "second", backup, range(20, 22))
    place, old = BackupPlace.at(str(backup)), await the_manifest(backup)
    assert len(old.bases) == 2
    before = [[r async for r in records_of(place, each)] for each in old.segments]
    await grown(tmp_path / "second", backup, range(22, 23))
    now = {segment.name for segment in (await the_manifest(backup)).segments}
    gone = [segment for segment in old.segments if segment.name not in now]
    assert len(gone) == 2
    assert [[r async for r in records_of(place, each)] for each in old.segments] == before
    await prune(place, Policy(revisions=0), 0)
    with pytest.raises(Unavailable, match="pruned"):
        await anext(records_of(place, gone[0]))


async def test_what_was_pruned_is_not_looked_for_in_another_history(tmp_path: Path) -> None:
    """It has those revisions and other records, which is no damage."""
    backup = tmp_path / "backup"
    await grown(tmp_path / "first", backup, range(2))
    place, old = BackupPlace.at(str(backup)), await the_manifest(backup)
    await grown(tmp_path / "second", backup, range(20, 29))
    assert (await prune(place, Policy(revisions=9), 0)).boards
    with pytest.raises(Unavailable, match="pruned"):
        await anext(records_of(place, old.segments[-1]))
