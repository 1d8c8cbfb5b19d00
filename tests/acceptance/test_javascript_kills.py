"""The JavaScript client under `kill -9` of a real service: nothing lost, nothing doubled."""

import asyncio
import signal
from pathlib import Path

import pytest

from blackboard.client.views import RevisionEvent
from tests.acceptance.shell import Shell
from tests.conformance.js.client import JsBoard, JsClient
from tests.conformance.js.process import Node, needs_node, node
from tests.ports import free_port
from tests.tiers import few_or_many
from tests.waiting import TIMEOUT_S, wait_until

pytestmark = needs_node
WRITERS = 4
PATIENT = {"commit_timeout_ms": 240_000, "request_timeout_ms": 240_000}
"""A machine under load may take long to start a service again."""


class Work:
    """Writers that each append their numbers to a list, and what was acknowledged to them."""

    def __init__(self, board: JsBoard) -> None:
        self.board = board
        self.acknowledged = [0] * WRITERS
        self.sums = list[int]()
        self.over = False

    async def write(self, writer: int) -> None:
        """Append 0, 1, 2, ... until it is over."""
        while not self.over:
            number = self.acknowledged[writer]
            key = await self.board.append(f"public/lists/{writer}", number)
            assert key == f"public/lists/{writer}/{number:010}"
            self.sums.append(await self.board.increment("public/sum"))
            self.acknowledged[writer] += 1

    async def progress(self) -> None:
        """Wait until every writer had an answer since now."""
        before = list(self.acknowledged)

        async def all_did() -> bool:
            return all(now > was for now, was in zip(self.acknowledged, before, strict=True))

        await wait_until(all_did)


async def connected(driver: Node, shell: Shell, port: int) -> JsClient:
    """The operator's client."""
    token = (Path(shell.environ["BLACKBOARD_DATA"]) / "token").read_text().strip()
    url, patience_ms = f"ws://127.0.0.1:{port}", PATIENT["request_timeout_ms"]
    return await JsClient.connect(driver, url, token=token, limits=PATIENT, patience_ms=patience_ms)


async def follow(board: JsBoard) -> list[RevisionEvent]:
    """Watch the board from its beginning, through every kill, until `public/end` is written."""
    seen: list[RevisionEvent] = []
    async with board.watch("public/**", after=0) as watch:
        while not (seen and seen[-1].changes[0].key == "public/end"):
            seen.append(await anext(watch))
    return seen[:-1]


async def write_through(shell: Shell, work: Work, port: int, kills: int) -> None:
    """Let writers write while the service is killed and started again."""
    async with asyncio.TaskGroup() as tasks:
        writers = [tasks.create_task(work.write(writer)) for writer in range(WRITERS)]
        for _ in range(kills):
            with shell.service(port=port) as service:
                await work.progress()
                service.send(signal.SIGKILL)
        with shell.service(port=port):
            await work.progress()
            work.over = True
            await asyncio.gather(*writers)


@pytest.mark.timeout(1_200)  # a start of a service for each kill
@few_or_many(5, 40)
async def test_nothing_is_lost_and_nothing_doubled_through_kills(shell: Shell, rounds: int) -> None:
    """Each commit once, each answer the first one, each revision watched once and in order."""
    port = free_port()
    async with node() as driver:
        with shell.service(port=port):
            client = await connected(driver, shell, port)
        board = client.board("main")
        watching = asyncio.create_task(follow(board))
        work = Work(board)
        try:
            await write_through(shell, work, port, rounds)
            with shell.service(port=port):
                await board.put("public/end", True)
                await check(work, await asyncio.wait_for(watching, TIMEOUT_S))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await client.aclose()


async def check(work: Work, seen: list[RevisionEvent]) -> None:
    """What is there is what was acknowledged, and what was watched."""
    listed: dict[str, list[int]] = {}
    async for entry in work.board.scan("public/lists/**"):
        listed.setdefault(entry.key.split("/")[2], []).append(entry.value)
    assert listed == {str(w): [*range(count)] for w, count in enumerate(work.acknowledged)}
    assert sorted(work.sums) == [*range(1, sum(work.acknowledged) + 1)]
    changed = [(change.key, change.value) for event in seen for change in event.changes]
    assert [event.revision for event in seen] == sorted({event.revision for event in seen})
    assert len(changed) == len(set(changed)) == 2 * sum(work.acknowledged)
