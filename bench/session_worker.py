"""A worker of bench/sessions.py, in the environment of its framework: one store, one session.

    python -P -m bench.session_worker '{"store": "openai-agents-sqlite", "place": FOLDER, ...}'

Its argument is a `SessionWork`. Alone, it takes steps, lists them, and prints its figures. As one
of several it prints "ready", begins at a line of its standard input, and prints which turns were
acknowledged; a second line, with those of all workers, is answered with what became of them. `-P`
because one framework has the import name `agents`, as a folder of the checkout.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import blackboard
from bench.agent_peers import FULL
from bench.agent_rows import message
from bench.rows import client_module

READY = "ready"
SESSION = "bench"
WHERE = {"app_name": "bench", "user_id": "u", "session_id": SESSION}


@dataclass(frozen=True, slots=True)
class SessionWork:
    """What to do. `place` is a folder, or with a `token` the address of a service of ours; `worker`
    is the number of one of several."""

    store: str
    place: str
    steps: int
    token: str = ""
    level: Any = "disk"
    worker: int | None = None


@dataclass(frozen=True, slots=True)
class TurnsKept:
    """What became of acknowledged turns: those that are gone, and those in a wrong place."""

    lost: int
    out_of_order: int


class MeasuredSession(ABC):
    """A session in some store, by the interface of its framework."""

    async def begin(self) -> None:  # noqa: B027 - most sessions begin with their first item
        """Make the session, once."""

    @abstractmethod
    async def step(self, number: int) -> None:
        """Add a text of 1 KB, by the only worker."""

    @abstractmethod
    async def listed(self) -> int:
        """Read the whole history, decoded; how many steps it has."""

    @abstractmethod
    async def turn(self, worker: int, number: int) -> tuple[Sequence[str], int]:
        """What a worker adds beside others: the names of what was acknowledged, and how often it
        was refused."""

    @abstractmethod
    async def kept(self, acknowledged: Collection[str]) -> TurnsKept:
        """What is there of that, when all workers have ended."""


# --- the three interfaces -------------------------------------------------------------------------


class HistoryItems(MeasuredSession):
    """A `Session` of the OpenAI Agents SDK; a turn is a question and its answer, in one call."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def step(self, number: int) -> None:
        await self.turn(0, number)

    async def listed(self) -> int:
        return len(await self._session.get_items()) // 2

    async def turn(self, worker: int, number: int) -> tuple[Sequence[str], int]:
        name = f"{worker}.{number}"
        said = {"role": "assistant", "content": message(number), "id": name}
        await self._session.add_items([{"role": "user", "content": name}, said])
        return [name], 0

    async def kept(self, acknowledged: Collection[str]) -> TurnsKept:
        items = await self._session.get_items()
        answers = [item["id"] for item in items if item["role"] == "assistant"]
        together = {
            first["content"]
            for first, then in pairwise(items)
            if first["content"] == then.get("id")
        }
        apart = len(set(answers) - together)
        return TurnsKept(len(set(acknowledged) - set(answers)), apart + out_of_turn(answers))


class CountedEvents(MeasuredSession):
    """A `SessionService` of Google's kit; a turn reads the session and counts on from its state."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._events = client_module("google.adk.events")
        self._types = client_module("google.genai.types")
        # What the services raise for a session that is stale, and SQLite for one that is locked.
        self._refusals = (
            client_module("google.adk.errors").StaleSessionError,
            sqlite3.OperationalError,
            client_module("sqlalchemy.exc").OperationalError,
        )

    async def begin(self) -> None:
        self._session = await self._service.create_session(**WHERE, state={"count": 0})

    async def step(self, number: int) -> None:
        await self._service.append_event(self._session, self._event("0", number, number + 1))

    async def listed(self) -> int:
        return len((await self._service.get_session(**WHERE)).events)

    async def turn(self, worker: int, number: int) -> tuple[Sequence[str], int]:
        refused = 0
        while True:
            try:
                session = await self._service.get_session(**WHERE)
                event = self._event(str(worker), number, session.state["count"] + 1)
                await self._service.append_event(session, event)
            except self._refusals:
                refused += 1
            else:
                return [f"{worker}.{number}"], refused

    async def kept(self, acknowledged: Collection[str]) -> TurnsKept:
        session = await self._service.get_session(**WHERE)
        names = {f"{event.author}.{event.invocation_id}" for event in session.events}
        gone = len(set(acknowledged) - names)
        uncounted = len(acknowledged) - session.state["count"]
        counts = [0, *(event.actions.state_delta["count"] for event in session.events)]
        return TurnsKept(max(gone, uncounted), sum(b != a + 1 for a, b in pairwise(counts)))

    def _event(self, author: str, number: int, count: int) -> Any:
        part = self._types.Part(text=message(number))
        return self._events.Event(
            author=author,
            invocation_id=str(number),
            content=self._types.Content(role="model", parts=[part]),
            actions=self._events.EventActions(state_delta={"count": count}),
        )


class GrowingCheckpoints(MeasuredSession):
    """A `CheckpointStorage` of Agent Framework; each step saves a state that has 1 KB more.

    In a turn a worker saves a checkpoint of its own, and one whose id the other one uses, too.
    """

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        framework = client_module("agent_framework")
        self._checkpoint = framework.WorkflowCheckpoint
        self._refusal = framework.WorkflowCheckpointException
        self._said: list[str] = []

    async def step(self, number: int) -> None:
        self._said.append(message(number))
        state = {"messages": list(self._said)}
        await self._storage.save(self._checkpoint(SESSION, "hash", state=state))

    async def listed(self) -> int:
        return len(await self._storage.list_checkpoints(workflow_name=SESSION))

    async def turn(self, worker: int, number: int) -> tuple[Sequence[str], int]:
        saved = []
        for id_ in (f"{worker}-{number}", f"both-{number}"):
            state = {"of": worker, "said": message(number)}
            try:
                await self._storage.save(self._checkpoint(SESSION, "hash", id_, state=state))
                saved.append(f"{id_} {worker}")
            except self._refusal:
                pass
        return saved, 2 - len(saved)

    async def kept(self, acknowledged: Collection[str]) -> TurnsKept:
        found = await self._storage.list_checkpoints(workflow_name=SESSION)
        there = {f"{one.checkpoint_id} {one.state['of']}" for one in found}
        return TurnsKept(len(set(acknowledged) - there), 0)


def out_of_turn(names: Sequence[str]) -> int:
    """How many stand before an earlier one of the same worker (names are `worker.number`)."""
    of: dict[str, list[int]] = {}
    for name in names:
        worker, _, number = name.partition(".")
        of.setdefault(worker, []).append(int(number))
    return sum(b < a for numbers in of.values() for a, b in pairwise(numbers))


# --- the stores -----------------------------------------------------------------------------------


@asynccontextmanager
async def sqlite_session(task: SessionWork) -> AsyncIterator[MeasuredSession]:
    """The SDK's own, in a file."""
    kind = client_module("agents.memory").SQLiteSession
    session = kind(SESSION, Path(task.place) / "sessions.db")
    try:
        # Its connections are private, and only they know what is set.
        with session._locked_connection() as connection:
            [level] = connection.execute("PRAGMA synchronous").fetchone()
        yield HistoryItems(_synced(level, session))
    finally:
        session.close()


@asynccontextmanager
async def sqlite_service(task: SessionWork) -> AsyncIterator[MeasuredSession]:
    """The kit's service for SQLite, which opens the file at each call."""
    kind = client_module("google.adk.sessions.sqlite_session_service").SqliteSessionService
    service = kind(str(Path(task.place) / "sessions.db"))
    async with service._get_db_connection() as connection:
        [[level]] = await connection.execute_fetchall("PRAGMA synchronous")
    yield CountedEvents(_synced(level, service))


@asynccontextmanager
async def database_service(task: SessionWork) -> AsyncIterator[MeasuredSession]:
    """The kit's service for any database, on SQLite."""
    kind = client_module("google.adk.sessions").DatabaseSessionService
    async with kind(f"sqlite+aiosqlite:///{Path(task.place) / 'sessions.db'}") as service:
        async with service.db_engine.connect() as connection:
            level = (await connection.exec_driver_sql("PRAGMA synchronous")).scalar()
        yield CountedEvents(_synced(level, service))


@asynccontextmanager
async def file_storage(task: SessionWork) -> AsyncIterator[MeasuredSession]:
    """The framework's own: a file for each checkpoint, not synced."""
    yield GrowingCheckpoints(client_module("agent_framework").FileCheckpointStorage(task.place))


@asynccontextmanager
async def on_a_board(task: SessionWork) -> AsyncIterator[MeasuredSession]:
    """Ours: the embedded engine in this process, or a service when there are several."""
    if task.token:
        opening = blackboard.connect(task.place, token=task.token)
    else:
        opening = blackboard.open(task.place, level=task.level)
    extra = task.store.removesuffix("-memory").removesuffix("-board")
    adapter = client_module(f"blackboard.integrations.{extra.replace('-', '_')}")
    async with opening as client:
        board = client.board(SESSION)
        match extra:
            case "openai-agents":
                yield HistoryItems(adapter.BlackboardSession(SESSION, board))
            case "google-adk":
                yield CountedEvents(adapter.BlackboardSessionService(board))
            case _:
                yield GrowingCheckpoints(adapter.BlackboardCheckpointStorage(board))


def _synced(level: int, store: Any) -> Any:
    """`store`. Errors: RuntimeError if it leaves its commits to the kernel."""
    if level < FULL:
        raise RuntimeError(f"it does not sync its commits: synchronous={level}")
    return store


def opened(task: SessionWork) -> AbstractAsyncContextManager[MeasuredSession]:
    """The store that the task names."""
    own = {
        "openai-agents-sqlite": sqlite_session,
        "google-adk-sqlite": sqlite_service,
        "google-adk-database": database_service,
        "agent-framework-files": file_storage,
    }
    return own.get(task.store, on_a_board)(task)


# --- what a worker does ---------------------------------------------------------------------------


async def alone(store: MeasuredSession, task: SessionWork) -> Mapping[str, float]:
    """Steps one after the other, then a listing."""
    await store.begin()
    own, began = time.process_time(), time.monotonic()
    for number in range(task.steps):
        await store.step(number)
    own, seconds = time.process_time() - own, time.monotonic() - began
    began = time.monotonic()
    listed = await store.listed()
    listing = time.monotonic() - began
    assert listed == task.steps, f"{listed} of {task.steps} steps are listed"
    return {
        "steps/s": task.steps / seconds,
        "client ms/step": own * 1000 / task.steps,
        "list ms": listing * 1000,
    }


async def beside_others(store: MeasuredSession, task: SessionWork) -> None:
    """Turns as one of several; then, if asked, what became of all."""
    if task.worker == 0:
        await store.begin()
    say(READY)
    await asyncio.to_thread(sys.stdin.readline)
    acknowledged: list[str] = []
    refused, began = 0, time.monotonic()
    for number in range(task.steps):
        names, more = await store.turn(task.worker or 0, number)
        acknowledged += names
        refused += more
    seconds = time.monotonic() - began
    say({"acknowledged": acknowledged, "refused": refused, "seconds": seconds})
    line = await asyncio.to_thread(sys.stdin.readline)
    if line:
        kept = await store.kept(json.loads(line))
        say({"lost": kept.lost, "out of order": kept.out_of_order})


def say(what: Any) -> None:
    """A line of JSON for the process that started this one."""
    print(json.dumps(what), flush=True)


async def run(task: SessionWork) -> None:
    """All of it."""
    async with opened(task) as store:
        if task.worker is None:
            say(await alone(store, task))
        else:
            await beside_others(store, task)


if __name__ == "__main__":
    asyncio.run(run(SessionWork(**json.loads(sys.argv[1]))))
