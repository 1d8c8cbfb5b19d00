"""Services, and people who work through them, each on a host of its own."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec

from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.core.commit import LogEntry
from blackboard.integrity.tokens import issue
from tests.guarantees import lease_worker
from tests.guarantees.history import Entry, History, Mark, Read, Watched, Write
from tests.guarantees.lease_checkers import check
from tests.guarantees.lease_history import LeaseHistory, moments
from tests.guarantees.lease_record import acquired_of, miscounted, relied_of
from tests.guarantees.processes import HOUR_MS, ServiceProcess
from tests.guarantees.worker_process import WorkerProcess
from tests.hosts import Host
from tests.source_tree import ROOT
from tests.waiting import wait_until

PATIENCE_S = 90.0
"""What coming back to each other never takes, on the slowest machine."""
WORKER_TTL_MS = 1_000
LINE_BYTES_MAX = 64 * 1024 * 1024
"""A history comes in one line."""
USUAL: Mapping[str, int] = {}
HASTY = {"commit_timeout_ms": 1_500, "request_timeout_ms": 1_500}
"""Limits of a client that does not wait long for an answer."""


@dataclass(frozen=True, slots=True)
class Place:
    """A board of a service, as a principal."""

    service: ServiceProcess
    board: str
    principal: Principal

    def told(self) -> dict[str, str]:
        """As an actor takes it."""
        token = issue(self.service.secret, self.principal, HOUR_MS)
        return {"url": self.service.url, "token": token, "board": self.board}


class Actor:
    """`async with Actor(host) as actor`: a process there (actor.py) that does what it is asked."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._host.enter,
            sys.executable,
            "-m",
            "tests.partitions.actor",
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()

    async def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """What it answers; with `error`, the code of one of ours."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        line = await self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line)
        return found

    async def begin(self, name: str, place: Place, limits: Mapping[str, int] = USUAL) -> None:
        """Let it write, read and watch as `name`, with some limits other than usual."""
        await self.ask("begin", name=name, limits=limits, **place.told())

    async def more(self, count: int, *outcomes: str) -> None:
        """Wait until so many more of its commits have one of these outcomes, by default "done"."""
        answer = await self.ask("more", count=count, outcomes=outcomes or ("done",))
        assert answer == {}, answer

    async def until_ready(self, service: ServiceProcess, status: int) -> str:
        """Wait until `/readyz` of a service answers so; returns the reason that it gives."""
        answer = await self.ask("until_ready", url=service.url, status=status)
        return str(answer["reason"])


async def finished(actors: Sequence[Actor], operator: Actor, place: Place) -> History:
    """Let everybody come to an end; returns all that was recorded, with the log as a witness."""
    heads = [(await actor.ask("stop"))["head"] for actor in actors]
    whole = _history(await operator.ask("log", **place.told()))
    for actor in actors:
        part = _history(await actor.ask("finish", until=max(heads)))
        whole.writes += part.writes
        whole.reads += part.reads
        whole.watches += part.watches
    return whole


async def judged_leases(
    workers: Sequence[WorkerProcess], operator: Actor, service: ServiceProcess
) -> dict[str, list[str]]:
    """Let workers end; returns what is found against L1 to L6, and steps that were lost."""
    statuses = [await worker.finish(PATIENCE_S) for worker in workers]
    assert statuses == [0] * len(workers), [worker.lines[-3:] for worker in workers]
    place = Place(service, lease_worker.BOARD, access.operator())
    answer = await operator.ask("lease_log", **place.told())
    log = msgspec.convert(answer["found"], list[LogEntry])
    acquired = [one for worker in workers for one in acquired_of(worker)]
    relied = [one for worker in workers for one in relied_of(worker)]
    history = LeaseHistory(moments(log), acquired, relied, [], log[-1].time_ms)
    found = check(history) | {"miscounted": miscounted(log)}
    return {name: sentences for name, sentences in found.items() if sentences}


def _history(answer: dict[str, Any]) -> History:
    found = answer["found"]
    return History(
        msgspec.convert(found["log"], list[Entry]),
        msgspec.convert(found["writes"], list[Write]),
        msgspec.convert(found["reads"], list[Read]),
        [[_watched(one) for one in watches] for watches in found["watches"]],
    )


def _watched(found: dict[str, Any]) -> Watched:
    """Only an entry has changes."""
    watched = Watched(found["prefix"], found["after"])
    for one in found["told"]:
        kind: type[Entry] | type[Mark] = Entry if "changes" in one else Mark
        watched.told.append(msgspec.convert(one, kind))
    return watched


async def said(worker: WorkerProcess, what: str, since: int, why: str | None = None) -> None:
    """Wait until a worker says it, for this reason, after its first `since` lines."""

    async def is_said() -> bool:
        return any(
            line["said"] == what and why in (None, line.get("why")) for line in worker.lines[since:]
        )

    await wait_until(is_said, timeout_s=PATIENCE_S)


class Site:
    """Actors and services that end with the block."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stack.aclose()

    async def actor(self, host: Host) -> Actor:
        """Somebody new."""
        return await self.stack.enter_async_context(Actor(host))

    async def worker(self, name: str, host: Host, service: ServiceProcess) -> WorkerProcess:
        """Somebody who increments a counter under a lock that lives for WORKER_TTL_MS."""
        token = issue(service.secret, access.operator(), HOUR_MS)
        arguments = [service.url, token, name, str(WORKER_TTL_MS)]
        worker = WorkerProcess("tests.guarantees.lease_worker", arguments, host)
        await worker.start()
        self.stack.push_async_callback(worker.kill)
        return worker

    def place(self, service: ServiceProcess, board: str, name: str | None = None) -> Place:
        """A board as an agent, or as the operator."""
        principal = access.operator() if name is None else access.agent(name)
        return Place(service, board, principal)
