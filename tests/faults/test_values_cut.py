"""kill -9 and power cuts while a service leaves values in the logs of its boards, cuts the logs and
removes a board: no value of an archived revision is lost.

The file calls of SQLite are recorded (tests/faults/disk.py), those of the boards' files and those
of the archive in one row, and the files made as they were after any of them.
BLACKBOARD_TEST_CUTS=500 makes it long.
"""

import os
import random
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.service import Service
from blackboard.server.sweeper import Sweeper
from tests.faults.disk import Lost, Power, Recorder, Told, recorded
from tests.proof import Layer

CUTS = int(os.environ.get("BLACKBOARD_TEST_CUTS", "40")) // 4
COMMITS = 48
KEPT = 5
KEYS = 4


@dataclass
class LongValues:
    """What the board `main` held at each revision, and after how many events a branch of it was
    there."""

    held: dict[int, dict[str, str]] = field(default_factory=dict)
    branched: int = -1
    branched_at: int = 0
    copied: int = 0
    """Logs that were cut."""


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Service]:
    """A service on a directory, as `blackboard serve` has it."""
    store = await SqliteStore.at(path)
    async with Service(store, archive=await archive_beside(path, logs=store)) as service:
        yield service


def board_of(service: Service, name: str) -> Board:
    """A board, as the operator."""
    return Client(service.link(access.operator())).board(name)


async def archived(service: Service, name: str) -> None:
    """Wait until a board is archived to its end."""
    assert service.host.archiver is not None
    head = await service.host.store.open(name)
    await service.host.archiver.reached(name, head.revision, 60_000)


async def write(service: Service, recorder: Recorder, dice: random.Random) -> LongValues:
    """Commit long values, and cut the log again and again; then go on with a branch."""
    written, now, sweeper = LongValues(), dict[str, str](), Sweeper(service.boards, "ab")
    board = board_of(service, "main")
    for number in range(COMMITS):
        key, value = (
            f"public/k{dice.randrange(KEYS)}",
            f"{number}:" + "v" * dice.randint(600, 3_000),
        )
        revision = (await board.put(key, value)).revision
        now = now | {key: value}
        written.held[revision] = now
        recorder.events.append(Told(revision, b""))
        if number % 9 == 8:
            await archived(service, "main")
            before = (await service.host.store.open("main")).oldest
            await sweeper.trim(KEPT)
            written.copied += (await service.host.store.open("main")).oldest > before
    await board.branch("other")
    written.branched, written.branched_at = len(recorder.events), max(written.held)
    await board_of(service, "other").put("public/more", "m" * 700)
    await Client(service.link(access.operator())).remove_board("main")
    return written


def laid_out(flat: Path, key: bytes) -> None:
    """Put the files of `flat` where a service has them."""
    (flat / "boards").mkdir(exist_ok=True)
    for old in (flat / "boards").iterdir():
        old.unlink()
    for path in [each for each in flat.iterdir() if each.is_file()]:
        if ".db" in path.name and not path.name.startswith("archive.db"):
            path.rename(flat / "boards" / path.name)
    (flat / "signing_key").write_bytes(key)


async def contents(board: Board, at: int) -> Mapping[str, object]:
    """What a board held at a revision, but for records of the service."""
    return {e.key: e.value async for e in board.scan("public/**", at=at)}


async def check(path: Path, written: LongValues, told: list[Told], done: int) -> int:
    """Every acknowledged revision is read as it was, of the board or of its branch; how many."""
    last = max((one.revision for one in told), default=0)
    async with opened(path) as service:
        client = Client(service.link(access.operator()))
        there = await client.boards()
        name = "main" if "main" in there else "other"
        if name == "other":
            assert done > written.branched
        board = client.board(name)
        if name == "main":
            assert (await board.head()).revision >= last
        for revision, held in written.held.items():
            if revision <= last:
                assert await contents(board, revision) == held, (name, revision)
        for each in there:
            assert (await client.board(each).verify("now")).findings == ()
    return last


@pytest.mark.parametrize("kind", ["killed", "cut"])
async def test_no_value_is_lost_where_logs_are_cut(tmp_path: Path, seed: int, kind: str) -> None:
    """At whichever call it ends; what the log loses, the archive has on the disk before."""
    dice, whole, victim = random.Random(seed), tmp_path / "whole", tmp_path / "victim"
    whole.mkdir()
    victim.mkdir()
    with recorded() as recorder:
        async with opened(whole) as service:
            written = await write(service, recorder, dice)
    assert written.copied > 2
    key, events = (whole / "signing_key").read_bytes(), recorder.events
    first = next(n for n, event in enumerate(events) if isinstance(event, Told))
    moments = sorted(dice.randrange(first + 1, len(events) + 1) for _ in range(CUTS))
    power, done = Power({}), 0
    with Layer("power", seeds=[seed]) as layer:
        for moment in moments:
            for event in events[done:moment]:
                power.goes_on(event)
            done = moment
            shutil.rmtree(victim)
            victim.mkdir()
            if kind == "killed":
                power.is_killed(victim)
            else:
                power.is_cut(victim, dice.choice(get_args(Lost)), dice)
            laid_out(victim, key)
            layer.operations += await check(victim, written, list(power.told), done)
            layer.faults["cut"] += 1
