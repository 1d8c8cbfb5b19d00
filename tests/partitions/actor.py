"""Somebody on a host of its own: `python -m tests.partitions.actor`, a JSON message a line.

Each request names what to `do`, and is answered by one line, in order. An actor lives as long as
its standard input, for several boards, one after the other.
"""

import asyncio
import json
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import anyio
import httpx
import msgspec

import blackboard
from blackboard.client.board import Board
from blackboard.errors import BlackboardError, Unavailable
from blackboard.limits import DEFAULT
from tests.guarantees.chaos_traffic import ChaosRecorder
from tests.guarantees.history import History
from tests.guarantees.lease_record import whole_log
from tests.lowered import lowered
from tests.waiting import let_pass

PAUSE_S = 0.04
LOOK_S = 0.05
"""Between two looks at what is waited for."""
PATIENCE_S = 90.0
SEED = 0
Answer = dict[str, Any]


class Part:
    """Two writers, a reader and a watcher on one board, over one connection, from `begin` on.

    One writer always waits for a commit: what is cut off is cut off in the middle of one.
    """

    def __init__(self) -> None:
        self._recorder = ChaosRecorder(SEED, pause_s=PAUSE_S, read_pause_s=PAUSE_S)
        self._end: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """The writers are the first two."""
        self._board: Board

    async def begin(self, board: Board, name: str) -> None:
        """Write, read and watch."""
        self._board, recorder = board, self._recorder
        self._tasks = [
            asyncio.create_task(recorder.write_on(board, name)),
            asyncio.create_task(recorder.put_on(board, name)),
            asyncio.create_task(recorder.read_on(board, lambda: self._end is not None)),
            asyncio.create_task(recorder.watch_on(board, "public/", lambda: self._end)),
        ]

    @property
    def reads(self) -> int:
        """How many reads were answered so far."""
        return len(self._recorder.history.reads)

    def outcomes(self) -> Counter[str]:
        """How often each outcome of a commit came so far."""
        return Counter(write.outcome for write in self._recorder.history.writes)

    async def stop(self) -> int:
        """Write no more; returns the last revision."""
        self._recorder.over.set()
        await asyncio.gather(*self._tasks[:2])
        return (await self._board.head()).revision

    async def finish(self, until: int) -> History:
        """Watch up to `until`; returns what was recorded."""
        self._end = until
        await asyncio.gather(*self._tasks)
        return self._recorder.history

    async def aclose(self) -> None:
        """End what a test left that failed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Actor:
    """Carries out requests; `_do_NAME` is what it does."""

    def __init__(self) -> None:
        self._connections = AsyncExitStack()
        self._part = Part()

    async def serve(self) -> None:
        """Answer requests until there are no more."""
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            try:
                with anyio.fail_after(PATIENCE_S):
                    answer = await getattr(self, f"_do_{request.pop('do')}")(**request)
            except BlackboardError as error:
                answer = {"error": error.code}
            except TimeoutError:
                answer = {"error": f"it takes too long: {self._part.outcomes()}"}
            sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
            sys.stdout.flush()
        await self._connections.aclose()

    async def _do_begin(self, *, name: str, **where: Any) -> Answer:
        await self._part.aclose()
        await self._connections.aclose()
        self._part = Part()
        await self._part.begin(await self._board_of(**where), name)
        return {}

    async def _do_counts(self) -> Answer:
        return {**self._part.outcomes(), "reads": self._part.reads}

    async def _do_more(self, *, count: int, outcomes: list[str]) -> Answer:
        """Wait until so many more commits have one of the outcomes."""
        before = self._part.outcomes()
        while True:
            gained = self._part.outcomes() - before
            if sum(gained[outcome] for outcome in outcomes) >= count:
                return {}
            await let_pass(LOOK_S)

    async def _do_stop(self) -> Answer:
        return {"head": await self._part.stop()}

    async def _do_finish(self, *, until: int) -> Answer:
        history = await self._part.finish(until)
        await self._connections.aclose()
        return _packed(history)

    async def _do_log(self, **where: Any) -> Answer:
        """The log as the operator, who sees everything, has it."""
        recorder = ChaosRecorder(SEED)
        await recorder.read_all(await self._board_of(**where))
        await self._connections.aclose()
        return _packed(recorder.history)

    async def _do_lease_log(self, **where: Any) -> Answer:
        """The log of the workers' board (tests/guarantees/lease_worker.py)."""
        found = await whole_log(await self._board_of(**where))
        await self._connections.aclose()
        return _packed(found)

    async def _do_until_ready(self, *, url: str, status: int) -> Answer:
        """Wait until `/readyz` answers with that status."""
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
            while True:
                found = await client.get(url.replace("ws://", "http://") + "/readyz")
                if found.status_code == status:
                    return {"reason": found.json().get("reason", "")}
                await let_pass(LOOK_S)

    async def _do_put(self, *, key: str, value: object, **where: Any) -> Answer:
        receipt = await (await self._board_of(**where)).put(key, value)
        await self._connections.aclose()
        return {"revision": receipt.revision, "level": receipt.level}

    async def _do_get(self, *, key: str, **where: Any) -> Answer:
        value = await (await self._board_of(**where)).get(key, None)
        await self._connections.aclose()
        return {"value": value}

    async def _board_of(
        self, *, url: str, token: str, board: str, limits: dict[str, int] | None = None
    ) -> Board:
        """A board, over a connection of its own, with some limits other than usual."""
        known = lowered(DEFAULT, **(limits or {}))
        while True:
            try:
                connecting = blackboard.connect(url, token=token, limits=known)
                client = await self._connections.enter_async_context(connecting)
                return client.board(board)
            except Unavailable:
                await let_pass(LOOK_S)


def _packed(found: object) -> Answer:
    """As `site.py` unpacks it."""
    return {"found": msgspec.to_builtins(found)}


if __name__ == "__main__":
    asyncio.run(Actor().serve())
