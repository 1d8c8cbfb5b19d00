"""A team that writes, watches, locks and edits while its services are stopped and started.

Nobody here handles an error: a commit, a lock or an edit that fails for its caller ends the test.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio

from blackboard.client.board import Board
from blackboard.client.client import Client
from tests.guarantees.history import Entry
from tests.guarantees.traffic import entry_of, whole_log
from tests.waiting import let_pass, wait_until

WRITERS, WATCHERS, LOCKERS, EDITORS = 4, 2, 2, 2
PAUSE_S = 0.005
"""Between two actions of one: so that a slow machine is not kept busy by this load alone."""
TOTAL, LOCKED, MEMO, OVER = "public/total", "public/locked", "public/memo", "public/over"
PATIENCE_S = 400.0
LOCK_MS = int(PATIENCE_S * 1000)
"""A lease outlasts a restart, however long the machine takes for it."""
Connect = Callable[[], AbstractAsyncContextManager[Client]]


@dataclass
class Team:
    """Works on the board `main` from entering until `end`, each member over its own connection."""

    connect: Connect
    done: Counter[str] = field(default_factory=Counter)
    """What each member had acknowledged."""
    acknowledged: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The revision of each receipt of a writer: who, and which of its commits."""
    seen: list[list[Entry]] = field(default_factory=list)
    """What each watcher was shown."""
    fences: list[int] = field(default_factory=list)
    """Of the lock, in the order in which it was held."""
    _over: bool = False
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    async def begin(self) -> None:
        """Connect everybody, and let them work."""
        roles: list[tuple[str, int, Callable[[Board, str], Coroutine[Any, Any, None]]]] = [
            ("writer", WRITERS, self._write),
            ("watcher", WATCHERS, self._watch),
            ("locker", LOCKERS, self._lock),
            ("editor", EDITORS, self._edit),
        ]
        for role, count, work in roles:
            for number in range(count):
                client = await self._stack.enter_async_context(self.connect())
                name = f"{role}-{number}"
                board = client.board("main").as_agent(name)
                self._tasks.append(asyncio.create_task(work(board, name), name=name))

    async def works(self, times: int) -> None:
        """Wait until everybody got `times` more answers from now on."""
        names = [task.get_name() for task in self._tasks]
        wanted = {name: self.done[name] + times for name in names}

        async def so() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return all(self.done[name] >= count for name, count in wanted.items())

        await wait_until(so, timeout_s=PATIENCE_S)

    async def end(self) -> Board:
        """Let everybody finish; returns the board of a client that stays open."""
        self._over = True
        at_work = [task for task in self._tasks if not task.get_name().startswith("watcher")]
        board = (await self._stack.enter_async_context(self.connect())).board("main")
        with anyio.fail_after(PATIENCE_S):
            await asyncio.gather(*at_work)
            await board.put(OVER, 1)
            await asyncio.gather(*self._tasks)
        return board

    async def aclose(self) -> None:
        """End everybody at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    # --- the members ------------------------------------------------------------------------------

    async def _write(self, board: Board, name: str) -> None:
        while not self._over:
            number = self.done[name] + 1
            receipt = await board.put(f"public/own/{name}", number)
            assert receipt.revision not in self.acknowledged
            self.acknowledged[receipt.revision] = name, number
            await board.increment(TOTAL)
            self.done[name] = number
            await let_pass(PAUSE_S)

    async def _watch(self, board: Board, name: str) -> None:
        seen: list[Entry] = []
        self.seen.append(seen)
        async with board.watch("public/**", after=0) as watch:
            async for revised in watch:
                seen.append(entry_of(revised))
                self.done[name] += 1
                if any(change.key == OVER for change in revised.changes):
                    return

    async def _lock(self, board: Board, name: str) -> None:
        while not self._over:
            async with board.lock("public/lock", ttl_ms=LOCK_MS) as lock:
                self.fences.append(lock.fences[0].fence)
                before = await board.get(LOCKED, 0)
                await let_pass(PAUSE_S)
                await board.put(LOCKED, before + 1)
            self.done[name] += 1

    async def _edit(self, board: Board, name: str) -> None:
        async with board.document(MEMO) as document:
            text = document.text()
            while not self._over:
                text.append(f"[{name}.{self.done[name]}]")
                await document.synced()
                self.done[name] += 1
                await let_pass(PAUSE_S)


async def check(team: Team, board: Board) -> None:
    """Nothing that was answered is lost, and nothing happened twice."""
    log = await whole_log(board)
    by_revision = {entry.revision: dict(entry.changes) for entry in log}
    # Watchers leave there. A document that its editors have left may be compacted after it.
    over = next(revision for revision, changes in by_revision.items() if OVER in changes)
    public = [entry for entry in log if entry.revision <= over and _public(entry)]
    later = [key for entry in log if entry.revision > over for key, _ in _public(entry)]
    assert all(key.startswith(f"{MEMO}/") for key in later)
    for revision, (name, number) in team.acknowledged.items():
        assert by_revision[revision] == {f"public/own/{name}": number}
    writers = {name: count for name, count in team.done.items() if name.startswith("writer")}
    assert len(team.acknowledged) == sum(writers.values())
    assert await board.get(TOTAL) == sum(writers.values()), "an increment is lost, or was doubled"
    for seen in team.seen:
        assert [(each.revision, each.changes) for each in seen] == [
            (each.revision, _public(each)) for each in public
        ]
    sections = sum(count for name, count in team.done.items() if name.startswith("locker"))
    assert await board.get(LOCKED) == sections == len(team.fences), "two were in the lock at once"
    assert team.fences == sorted(set(team.fences)), "a fence was granted twice"
    async with board.document(MEMO) as document:
        await document.synced()
        words = Counter(str(document.text()).strip("[]").split("]["))
    edits = {
        f"{name}.{number}": 1
        for name, count in team.done.items()
        if name.startswith("editor")
        for number in range(count)
    }
    assert words == edits, "an edit is lost, or was doubled"


def _public(entry: Entry) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in entry.changes if key.startswith("public/"))
