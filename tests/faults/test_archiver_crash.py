"""kill -9 of the archiver, at any moment: no gap, no duplicate, no manifest without its revision.

BLACKBOARD_KILLS=200 makes it long.
"""

import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from blackboard.archive.base import Archive
from blackboard.archive.database import Database
from blackboard.core.checkpoints import Point
from tests.conformance.archive_suite import Place
from tests.conformance.rules_archive import state_at, whole_log
from tests.faults.archiver_child import story_of
from tests.postgres import Postgres, postgres_directory
from tests.waiting import wait_until

KILLS = int(os.environ.get("BLACKBOARD_KILLS", "4"))
BOARD = "main"
STEPS = 160


def run_and_kill(place: Place, seed: int, dice: random.Random, *own: str) -> bool:
    """Let a child archive, kill it after a few lines; says whether it came to the end."""
    arguments = [place.url, str(place.blobs), BOARD, str(seed), str(STEPS), *own]
    command = [sys.executable, "-m", "tests.faults.archiver_child", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            for _ in range(dice.randrange(1, 12)):
                if not child.stdout.readline():
                    return child.wait() == 0
        finally:
            child.kill()
    return False


async def check(archive: Archive, seed: int) -> None:
    """Everything that is archived is a beginning of the story, whole and verified."""
    story = story_of(seed, STEPS)
    mark = await archive.mark(BOARD)
    if mark is None:
        return
    upto = mark.revision
    assert await whole_log(archive, BOARD) == story.log[:upto]
    assert await state_at(archive, Point(BOARD, upto)) == story.held[upto]
    names = [c.name for c in await archive.checkpoints(BOARD)]
    taken = [c.key for entry in story.log[:upto] for c in entry.changes]
    assert names == [k.rpartition("/")[2] for k in taken if k.startswith("system/checkpoints/")]
    assert [finding async for finding in archive.verify(Point(BOARD, upto))] == []


async def crash(place: Place, seed: int) -> None:
    """Kill children one after the other, and look at what they left."""
    dice = random.Random(seed)
    archive = await place.open()
    for _ in range(KILLS):
        done = run_and_kill(place, seed % 2**20, dice)
        # A server finishes what a dead client had sent: this waits for the row that it has locked.
        await archive.take(BOARD, "a look", 50)
        await check(archive, seed % 2**20)
        if done:
            break


async def test_a_killed_archiver_leaves_no_gap_in_sqlite(tmp_path: Path, seed: int) -> None:
    """A file whose writer died in the middle of a transaction."""
    async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
        await crash(place, seed)


async def is_alone(place: Place) -> bool:
    """Whether no process has the file open."""
    database = await Database.open(place.url)
    await database.aclose()
    return database.was_alone


async def test_a_killed_service_leaves_no_process_that_writes(tmp_path: Path, seed: int) -> None:
    """The process that writes its pages ends at once, wherever it was: nobody else has the file."""
    dice = random.Random(seed)
    async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
        for _ in range(KILLS):
            done = run_and_kill(place, seed % 2**20, dice, "own")
            await wait_until(partial(is_alone, place))
            archive = await place.open()
            await check(archive, seed % 2**20)
            await archive.aclose()
            if done:
                break


def stop_and_kill(place: Place) -> None:
    """Stop the process that writes for a child, so that only SIGKILL ends it; kill the child."""
    arguments = [place.url, str(place.blobs), BOARD, "1", str(STEPS), "own"]
    command = [sys.executable, "-m", "tests.faults.archiver_child", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        os.kill(int(child.stdout.readline()), signal.SIGSTOP)
        child.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with another one")
async def test_the_process_of_a_killed_service_ends_whatever_it_does(tmp_path: Path) -> None:
    """At once: the next service has the file alone."""
    async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
        stop_and_kill(place)
        await wait_until(partial(is_alone, place))


async def test_a_killed_archiver_leaves_no_gap_in_postgres(
    postgres: Postgres, tmp_path: Path, seed: int
) -> None:
    """A server whose client died in the middle of a transaction."""
    async with Place(await postgres.empty(), tmp_path / "blobs") as place:
        await crash(place, seed)


async def test_a_killed_database_loses_no_more_than_the_answer(tmp_path: Path, seed: int) -> None:
    """The server dies and comes back; the archive goes on where it is."""
    if postgres_directory() is None:
        pytest.skip("no PostgreSQL server on this machine: run tools/get_postgres.sh")
    story = story_of(seed % 2**20, STEPS)
    async with Postgres() as server, Place(server.url, tmp_path / "blobs") as place:
        archive = await place.open()
        early = story_of(seed % 2**20, 20)
        await early.archive_into(archive, BOARD)
        server.kill()
        await server.start()
        await story.archive_into(archive, BOARD)
        await check(archive, seed % 2**20)
