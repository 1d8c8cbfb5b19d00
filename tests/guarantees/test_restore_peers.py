"""Two services over one Redis take the same board back at the same time, in the middle of work.

The later one comes after the other; no reader sees anything between the two, or of both at
once. BLACKBOARD_TEST_RESTORE_ROUNDS sets how often.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from blackboard import Board, Unavailable
from blackboard.client.client import Client
from tests.guarantees.cut_checkers import check
from tests.guarantees.cut_history import Cut, Restored
from tests.guarantees.cut_team import Team, run
from tests.guarantees.processes import ServiceProcess
from tests.redis_process import RedisProcess
from tests.waiting import wait_until

ROUNDS = int(os.environ.get("BLACKBOARD_TEST_RESTORE_ROUNDS", "3"))
PATIENCE_S = 120.0
MEMO = "private/dan/memo"


class Watching:
    """What a watcher receives of a board, revision by revision."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.told: list[tuple[int, dict[str, Any]]] = []
        self.epochs: list[int] = []

    async def run(self, opened: asyncio.Event) -> None:
        """Watch until cancelled."""
        async with self.board.watch("public/*", "private/**", "inbox/**") as watch:
            opened.set()
            async for revised in watch:
                changes = {change.key: change.value for change in revised.changes}
                self.told.append((revised.revision, changes))
                if revised.epoch is not None:
                    self.epochs.append(revised.epoch.number)


async def restored_by_both(team: Team, other: Board, cuts: list[Cut]) -> list[Restored]:
    """Each restores another checkpoint, at once; what was done, in order."""

    async def one(board: Board, turn: int) -> tuple[int, str, Cut] | None:
        try:
            done = await board.restore(f"cut-{turn}")
        except Unavailable:  # certainly not done
            return None
        return done.revision, done.epoch.id, cuts[turn]

    tried = await asyncio.gather(one(team.board, 0), one(other, 1))
    await team.board.refresh()
    ended, found = team.epoch_at(10**15), []
    for revision, epoch, source in sorted(
        (each for each in tried if each is not None), key=lambda each: each[0]
    ):
        restored = Restored(source, ended, epoch, revision, source)
        found.append(restored)
        team.history.restored.append(restored)
        ended = epoch
    return found


@asynccontextmanager
async def peers(binary: Path, folder: Path) -> AsyncIterator[tuple[Client, Client]]:
    """Clients of two services over one Redis, with one archive."""
    async with RedisProcess(binary) as redis:
        one = ServiceProcess(redis.url, folder / "data", archived=True)
        other = ServiceProcess(redis.url, folder / "data", one.secret, archived=True)
        async with one, other, one.connect() as client, other.connect() as second:
            yield client, second


async def test_two_services_restore_one_board_at_once(
    redis_binary: Path, tmp_path: Path, seed: int
) -> None:
    """Under a team at work, with watchers and a document on both: C1 to C8 hold."""
    with anyio.fail_after(PATIENCE_S * ROUNDS):
        async with peers(redis_binary, tmp_path) as (client, second):
            for number in range(ROUNDS):
                name = f"team-{number}"
                await both(client.board(name), second.board(name), seed + number)


async def both(board: Board, other: Board, seed: int) -> None:
    """One board, from its first commit to both restores and past them."""
    watching = [Watching(board), Watching(other)]
    cuts: list[Cut] = []
    done: list[Restored] = []
    async with (
        board.document(MEMO) as mine,
        other.document(MEMO) as theirs,
        asyncio.TaskGroup() as tasks,
    ):
        opened = [asyncio.Event(), asyncio.Event()]
        watchers = [tasks.create_task(w.run(o)) for w, o in zip(watching, opened, strict=True)]
        for each in opened:
            await each.wait()

        async def take(team: Team, turn: int) -> None:
            if turn == 2:
                done.extend(await restored_by_both(team, other, cuts))
                for restored in done:
                    found = await team.cut_at(restored.revision)
                    at = team.history.restored.index(restored)
                    team.history.restored[at] = Restored(
                        restored.source, restored.ended, restored.epoch, restored.revision, found
                    )
                return
            memo = mine if turn else theirs
            await memo.synced()
            memo.text().append(f"{turn} ")
            await memo.synced()
            cuts.append(await team.checkpoint(f"cut-{turn}"))

        history = await run(board, seed, take, cuts=3, steps=12)
        assert done, "neither was done, and nobody knows why"
        assert check(history) == {}, f"seed {seed}"
        assert len({restored.epoch for restored in done}) == len(done)
        text = "0 " if done[-1].source is cuts[0] else "0 1 "
        for memo in (mine, theirs):
            await memo.synced()
            assert str(memo.text()) == text
        head = (await board.head()).revision

        async def all_told() -> bool:
            return all(w.told and w.told[-1][0] >= newest for w in watching)

        newest = max(entry.mod_revision for entry in (await board.list("private/**")).entries)
        newest = max([newest, *(r.revision for r in done)])
        assert head >= newest
        await wait_until(all_told)
        for task in watchers:
            task.cancel()
    one, two = ([told for told in w.told if told[0] <= newest] for w in watching)
    assert one == two, f"seed {seed}"
    assert [revision for revision, _ in one] == sorted({revision for revision, _ in one})
    assert all(w.epochs == list(range(2, 2 + len(done))) for w in watching)
