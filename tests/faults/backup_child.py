"""Backs boards up while one file call on the backup fails, or ends the process:
`backup_child.py DIRECTORY HOW ROUNDS`. HOW is "once" or "following". As many failed syncs and calls
without room as ROUNDS says, and twice as many kills, are spread over the calls. Prints what should
not have happened, and nothing else.

Each backup, and each look at what it left, is a process of its own, forked from this one: that
costs no start of an interpreter.
"""

import asyncio
import ctypes
import errno
import hashlib
import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import blackboard
from blackboard.archive.sql import archive_beside
from blackboard.backup.place import BackupPlace
from blackboard.backup.read import backed_up, verify
from blackboard.backup.retain import Policy, prune
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable
from blackboard.server.backups.once import take_once
from blackboard.server.checkpoints.from_backup import Wanted, recover_from
from blackboard.server.service import Service
from blackboard.server.settings import load
from tests.lowered import lowered
from tests.waiting import wait_until

LIMITS: Final = lowered(
    segment_bytes=2_000,
    segments_merged=3,
    backup_interval_ms=5,
    archive_retry_ms=20,
    archive_pause_ms=1,
)
LARGE: Final = "L" * 70_000
"""Above BLOB_BYTES."""
STEPS: Final = 4
ROOM, SYNC, OTHER = 1, 2, 4
FAILURES: Final = {
    "kill": (ROOM + SYNC + OTHER, 0),
    "EIO": (SYNC, errno.EIO),
    "ENOSPC": (ROOM, errno.ENOSPC),
}
SOON_S: Final = 120.0
"""What a hang would exceed."""
PRELOADED: Final[Any] = ctypes.CDLL(None)
Contents = Mapping[str, Mapping[str, Any]]
"""What the keys of each board hold."""


@dataclass(frozen=True, slots=True)
class Case:
    """One copy of the data and of its backup, in the folder `top`."""

    top: Path

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.top / "data"

    @property
    def backup(self) -> Path:
        """Where the backup is."""
        return self.top / "backup"

    @property
    def place(self) -> BackupPlace:
        """The backup."""
        return BackupPlace.at(str(self.backup), LIMITS)

    @property
    def acknowledged(self) -> Path:
        """How many steps of a service that follows were acknowledged."""
        return self.top / "acknowledged"

    async def take(self) -> None:
        """Add to the backup what is new."""
        await take_once(load({"data": self.data}), str(self.backup), LIMITS)

    async def follow(self, steps: int) -> None:
        """Let a service follow the backup while so many commits are made, one for each round."""
        store = await SqliteStore.at(self.data, limits=LIMITS)
        archive = await archive_beside(self.data, LIMITS, store)
        async with Service(store, archive=archive, limits=LIMITS) as service:
            await service.follow(self.place)
            board = service.client().board("main")
            for number in range(steps):
                last = (await board.put("public/step", [number, f"{number}{LARGE}"])).revision
                self.acknowledged.write_text(str(number + 1))
                await wait_until(partial(self._is_shipped, last), timeout_s=SOON_S)

    async def _is_shipped(self, revision: int) -> bool:
        if not (self.backup / "backup.json").exists():
            return False
        found = [manifest.last or 0 async for manifest in backed_up(self.place)]
        return max(found, default=0) >= revision

    async def reached(self) -> dict[str, int]:
        """Read the whole backup; the newest revision of each board."""
        found = [each async for each in verify(self.place)]
        return {each.board: each.last for each in found if not each.board.startswith("~")}

    async def recovered(self) -> Contents:
        """What comes back from the backup, in an empty place."""
        new = self.top / "new"
        shutil.rmtree(new, ignore_errors=True)
        await recover_from(load({"data": new}), self.place, Wanted(), limits=LIMITS)
        return await contents(new)

    def drafts(self) -> list[Path]:
        """Files of which nothing speaks: what a failed write left."""
        known = ("manifest.json", "backup.json", "lock")
        found = [path for path in self.backup.rglob("*") if path.is_file()]
        blobs = [p for p in found if p.parent.parent.name == "blobs" and len(p.name) == 64]
        return [
            p for p in found if p.name not in known and p.suffix != ".segment" and p not in blobs
        ]


async def contents(data: Path) -> Contents:
    """All boards of a data directory."""
    async with blackboard.open(data) as client:
        return {
            name: {
                entry.key: entry.value
                for pattern in ("public/**", "private/ann/**")
                for entry in (await client.board(name).list(pattern)).entries
            }
            for name in await client.boards()
        }


async def prepare(case: Case) -> None:
    """Boards with a backup, and what they got since. Writes down what they held then and now."""
    async with blackboard.open(case.data) as client:
        for number in range(20):
            await client.board("main").put(f"public/k{number}", "v" * 100)
    await case.take()
    old = await contents(case.data)
    async with blackboard.open(case.data) as client:
        await client.board("main").put("public/large", LARGE)
        await client.board("main").put("private/ann/notes", "mine")
        for number in range(40):
            await client.board("main").put(f"public/k{number}", os.urandom(60).hex())
        await client.board("side").put("public/a", 1)
    new = await contents(case.data)
    (case.top / "story.json").write_text(json.dumps([old, new, await case.reached()]))


async def check(case: Case, seen: Path, how: str) -> None:
    """The backup is the old or the new one and can be recovered; the next one goes on from it."""
    old, new, was = json.loads((case.top / "story.json").read_text())
    if (case.backup / "backup.json").exists():
        reached = await case.reached()
        assert was.items() <= reached.items() or reached["main"] > was["main"], (was, reached)
        if await is_new(case, seen):
            found = await case.recovered()
            for board, content in found.items():
                assert without_step(content) in (old.get(board, {}), new[board]), (board, reached)
    if how == "following":
        await case.follow(0)
    else:
        await case.take()
    reached, now = await case.reached(), await contents(case.data)
    assert reached.keys() == new.keys(), reached
    if case.acknowledged.exists():
        assert now["main"]["public/step"][0] + 1 >= int(case.acknowledged.read_text())
    if await is_new(case, seen):
        assert await case.recovered() == now, reached
    await prune(case.place, Policy(revisions=10**6), 0, limits=LIMITS)
    assert case.drafts() == []
    assert await case.reached() == reached


def without_step(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A board without what a service that follows has added."""
    return {key: value for key, value in content.items() if key != "public/step"}


async def is_new(case: Case, seen: Path) -> bool:
    """Whether no backup with such files, in this order, was recovered yet."""
    layout = [
        (manifest.board, [(each.kind, each.begins, each.tier) for each in manifest.segments])
        async for manifest in backed_up(case.place)
    ]
    mark = seen / hashlib.sha256(repr(layout).encode()).hexdigest()
    if mark.exists():
        return False
    mark.touch()
    return True


async def act(case: Case, how: str, at: int) -> int:
    """Back up while call `at` fails; returns how many calls there were."""
    PRELOADED.fail_call(f"{case.backup}".encode(), ctypes.c_long(at))
    try:
        if how == "following":
            await case.follow(STEPS)
        else:
            await case.take()
    except Unavailable:
        if at < 0:
            raise
    PRELOADED.calls_seen.restype = ctypes.c_long
    count = int(PRELOADED.calls_seen())
    PRELOADED.fail_call(b"", ctypes.c_long(-1))
    assert case.drafts() == [], "half a file is left"
    return count


def forked(work: Callable[[], Awaitable[int | None]], label: str) -> int | None:
    """Do it in a process of its own; returns what it returned, None if it was killed."""
    inside, outside = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.write(outside, str(asyncio.run(asyncio.wait_for(work(), SOON_S)) or 0).encode())
            code = 0
        except BaseException as error:  # noqa: BLE001 - it is the finding
            sys.stdout.write(f"{label}: {error!r} {places(error)}\n")
            sys.stdout.flush()
        os._exit(code)
    os.close(outside)
    with os.fdopen(inside, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return int(told) if told else None


def places(error: BaseException) -> str:
    """Where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-6:])


def walk(first: Case, seen: Path, how: str, what: str, rounds: int) -> None:
    """Let none of the calls fail, then so many of them, each in a copy of the same directory."""
    kinds, number = FAILURES[what]
    PRELOADED.fail_how(kinds, number)
    points, case = [-1], Case(first.top.with_name("case"))
    for at in points:
        shutil.copytree(first.top, case.top)
        label = f"{what} at call {at}, {how}"
        done = forked(partial(act, case, how, at), label)
        if at < 0:
            points += sorted({turn * (done or 0) // rounds for turn in range(rounds)})
        if (done is None) != (what == "kill" and at >= 0):
            sys.stdout.write(f"{label}: it ended otherwise\n")
        if at >= 0:
            forked(partial(check, case, seen, how), label)
        shutil.rmtree(case.top)


def main(top: Path, how: str, rounds: int) -> None:
    """Each kind of failure."""
    logging.disable(logging.CRITICAL)
    first, seen = Case(top / "first"), top / "seen"
    for made in (first.top, seen):
        made.mkdir()
    forked(partial(prepare, first), "preparing")
    for what in FAILURES:
        walk(first, seen, how, what, rounds * (2 if what == "kill" else 1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
