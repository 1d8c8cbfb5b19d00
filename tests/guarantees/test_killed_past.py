"""kill -9 in the middle of a checkpoint, a restore or a branch: the old state or the new one.

The service, which is engine and archiver at once on the embedded engine, is killed a random number
of turns after it was asked; over Redis the server is killed with it in every other round. The
client asks again by itself, so most of what was begun is done in the end; what matters is that
nothing is ever half done. BLACKBOARD_TEST_KILLS sets how many kills there are for each.
"""

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint as turn

from blackboard import Board, OutcomeUnknown, Unavailable
from blackboard.client.client import Client
from blackboard.limits import DEFAULT
from blackboard.ops import Put, encode_value
from tests.guarantees.processes import ServiceProcess
from tests.lowered import lowered
from tests.redis_process import RedisProcess
from tests.tiers import few_or_many

KILLS = int(os.environ.get("BLACKBOARD_TEST_KILLS", "3"))
FEW_KILLS = 1
"""In `make test`."""
TURNS_MAX = 4_000
PATIENCE_S = 90.0
HURRIED = lowered(commit_timeout_ms=5_000, request_timeout_ms=5_000)
"""Of the client whose calls a kill interrupts: those answers are waited for no longer."""
KEYS = tuple(
    f"{space}/{number:02d}"
    for space in ("public/plan", "private/ada/notes", "private/bob/notes", "inbox/ada/letters")
    for number in range(8)
)
Content = dict[str, Any]


@dataclass
class Story:
    """A board that goes from content to content, and the processes that are killed under it."""

    service: ServiceProcess
    client: Client
    hurried: Client
    rng: random.Random
    kills: int
    redis: RedisProcess | None = None
    round: int = 0
    done: dict[str, int] = field(default_factory=dict)

    @property
    def board(self) -> Board:
        """The board."""
        return self.client.board("team")

    @property
    def doomed(self) -> Board:
        """The same, for a call during which the service is killed."""
        return self.hurried.board("team")

    async def write(self) -> Content:
        """Commit a content that the board never had."""
        self.round += 1
        # Half of them are so long that the archive leaves them in the log.
        long = {key: "v" * 600 * (number % 2) for number, key in enumerate(KEYS)}
        content = {key: [self.round, self.rng.getrandbits(30), long[key]] for key in KEYS}
        await self.board.commit([Put(k, encode_value(v)) for k, v in content.items()])
        return content

    async def killed(self, what: Callable[[], Awaitable[object]]) -> bool:
        """Begin `what`, kill in the middle, start again; whether it was done, as far as told."""
        told: list[bool] = []

        async def attempt() -> None:
            try:
                await what()
                told.append(True)
            except (Unavailable, OutcomeUnknown):
                told.append(False)

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(attempt)
                for _ in range(self.rng.randrange(TURNS_MAX)):
                    await turn()
                await self._kill()
        self.done[what.__name__] = self.done.get(what.__name__, 0) + told[0]
        return told[0]

    async def _kill(self) -> None:
        await self.service.kill()
        if self.redis is not None and self.round % 2:
            await self.redis.kill()
            await self.redis.restart()
        await self.service.start()
        await self.board.refresh()
        with suppress(Unavailable):  # so that it is connected when the next call begins
            await self.doomed.head()


async def held(board: Board, at: int | None = None) -> Content:
    """Everything but the service's own records."""
    listing = await board.list("**", at=at)
    assert listing.next_key is None
    return {e.key: e.value for e in listing.entries if not e.key.startswith("system/")}


async def checkpoints_are_whole(story: Story) -> None:
    """A checkpoint is there with the content of its moment, or it is not there."""
    for number in range(story.kills):
        content = await story.write()
        name = f"c{number}"

        async def take(name: str = name) -> None:
            await story.doomed.checkpoint(name)

        was_told = await story.killed(take)
        found = [one for one in await story.board.checkpoints() if one.name == name]
        assert len(found) == 1 or (not found and not was_told)
        for one in found:
            assert await held(story.board, one.revision) == content


async def restores_are_whole(story: Story) -> None:
    """The board holds all of the checkpoint, or all of what it held before."""
    wanted = await story.write()
    await story.board.checkpoint("wanted")
    for _ in range(story.kills):
        spoiled = await story.write()

        async def restore() -> None:
            await story.doomed.restore("wanted")

        was_told = await story.killed(restore)
        now = await held(story.board)
        assert now == wanted or (now == spoiled and not was_told)


async def branches_are_whole(story: Story) -> None:
    """The branch is there with everything, or its name is free."""
    for number in range(story.kills):
        content = await story.write()
        name = f"branch-{number}"

        async def branch(name: str = name) -> None:
            await story.doomed.branch(name)

        was_told = await story.killed(branch)
        if name not in await story.client.boards():
            assert not was_told
            await story.board.branch(name)
        assert await held(story.client.board(name)) == content


async def tell(story: Story) -> None:
    """All of it, one after the other; in the end nothing is damaged."""
    await checkpoints_are_whole(story)
    await restores_are_whole(story)
    await branches_are_whole(story)
    verified = await story.board.verify()
    assert verified.findings == ()
    assert story.done, "nothing was ever done"


@asynccontextmanager
async def telling(
    service: ServiceProcess, seed: int, kills: int, redis: RedisProcess | None = None
) -> AsyncIterator[Story]:
    """A story over a running service, with so many kills of each kind."""
    patient = replace(service, limits=DEFAULT)
    async with patient.connect() as client, service.connect() as hurried:
        yield Story(service, client, hurried, random.Random(seed), kills, redis)


@pytest.mark.timeout(0)
@few_or_many(FEW_KILLS, KILLS)
async def test_the_embedded_service_is_killed(tmp_path: Path, seed: int, rounds: int) -> None:
    async with (
        ServiceProcess(
            "sqlite",
            tmp_path,
            limits=HURRIED,
            more={"log_kept_revisions": 4, "archive_process_entries": 1},
        ) as service,
        telling(service, seed, rounds) as story,
    ):
        await tell(story)


@pytest.mark.timeout(0)
@few_or_many(FEW_KILLS, KILLS)
async def test_a_service_over_redis_is_killed(
    tmp_path: Path, redis_binary: Path, seed: int, rounds: int
) -> None:
    async with (
        RedisProcess(redis_binary) as redis,
        ServiceProcess(redis.url, tmp_path, archived=True, limits=HURRIED) as service,
        telling(service, seed, rounds, redis) as story,
    ):
        await tell(story)
