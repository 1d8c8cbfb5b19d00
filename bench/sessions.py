"""Measure our adapters of sessions beside the stores that their frameworks come with.

    python -m bench.sessions                          three rounds
    python -m bench.sessions --quick                  does it run at all; figures are worthless
    python -m bench.sessions --only openai-agents     rows whose name contains one of these words

Each framework has an environment of its own below .frameworks/, which tools/test_frameworks.sh
makes; the rows of one that cannot be had are skipped. A worker there takes 200 steps, each with a
text of 1 KB, and lists them. Told are steps per second; its processor time per step; the time of
the listing, decoded; and how many times the bytes of the texts the files have after a clean stop.
Then two processes work on one session at once, a board as clients of `blackboard serve`: told are
their turns per second, the refusals, and of what was acknowledged how much is lost or out of order.
Rows run one after the other, in another order each round; ratios are those of one round. Exit
status 1 means that a row failed, not a target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

from bench.agent_rows import MESSAGE_BYTES, size_of
from bench.figures import Figures, Results
from bench.machine import gather_facts
from bench.ours import serve_ours
from bench.peers import POWER_LOSS, PROCESS_CRASH
from bench.report import Table, cell_table, verdict_table
from bench.rows import LOOPBACK
from bench.servers import CHECKOUT, Lab, UnavailableError, die_with_parent
from bench.session import (
    Measured,
    command_line,
    end_on_sigterm,
    in_rounds,
    laboratory,
    report,
    start_rows,
    wanted,
)
from bench.session_worker import READY, SessionWork
from bench.targets import Target, judge

STEPS = 200
TURNS = 60
"""Of each of the workers that collide."""
WORKERS = 2
ROW_SECONDS_MAX = 300.0
ANSWER_BYTES_MAX = 1024 * 1024
"""The longest line of a worker: the names of its turns."""


class SessionRow:
    """A store that keeps its files in a folder, which two processes open at once."""

    name: ClassVar[str]
    survives: ClassVar[str] = POWER_LOSS
    extra: ClassVar[str]
    """The framework, as an extra of pyproject.toml."""

    async def start(self, lab: Lab) -> None:
        """Make the environment of the framework. Errors: UnavailableError."""
        self.lab = lab
        self.python = await asyncio.to_thread(environment, self.extra, fetch=lab.fetch)

    @asynccontextmanager
    async def shared(self, folder: str, turns: int) -> AsyncIterator[SessionWork]:
        """What workers do that share a session, which is kept in a new folder of that name."""
        yield SessionWork(self.name, str(self.lab.data_folder(folder)), turns)

    def alone(self, folder: Path, steps: int) -> SessionWork:
        """What a worker does alone, in a folder."""
        return SessionWork(self.name, str(folder), steps)


class OnABoard(SessionRow):
    """Ours: embedded for one process, and a service for two; with its archive, as it comes."""

    level: ClassVar[str] = "disk"

    def alone(self, folder: Path, steps: int) -> SessionWork:
        return SessionWork(self.name, str(folder), steps, level=self.level)

    @asynccontextmanager
    async def shared(self, folder: str, turns: int) -> AsyncIterator[SessionWork]:
        engine = ("--level", self.level)
        server, endpoint = await serve_ours(self.lab, folder, engine, archive=())
        url = f"ws://{LOOPBACK}:{endpoint.port}"
        yield SessionWork(self.name, url, turns, endpoint.token)
        server.stop()  # if not, the lab does


class OpenAIOnABoard(OnABoard):
    """BlackboardSession."""

    name: ClassVar[str] = "openai-agents-board"
    extra: ClassVar[str] = "openai-agents"


class OpenAISqlite(SessionRow):
    """SQLiteSession."""

    name: ClassVar[str] = "openai-agents-sqlite"
    extra: ClassVar[str] = "openai-agents"


class GoogleOnABoard(OnABoard):
    """BlackboardSessionService."""

    name: ClassVar[str] = "google-adk-board"
    extra: ClassVar[str] = "google-adk"


class GoogleSqlite(SessionRow):
    """SqliteSessionService."""

    name: ClassVar[str] = "google-adk-sqlite"
    extra: ClassVar[str] = "google-adk"


class GoogleDatabase(SessionRow):
    """DatabaseSessionService, on SQLite."""

    name: ClassVar[str] = "google-adk-database"
    extra: ClassVar[str] = "google-adk"


class MicrosoftOnABoard(OnABoard):
    """BlackboardCheckpointStorage."""

    name: ClassVar[str] = "agent-framework-board"
    extra: ClassVar[str] = "agent-framework"


class MicrosoftInMemory(OnABoard):
    """The same at the level of files that nobody syncs."""

    name: ClassVar[str] = "agent-framework-board-memory"
    survives: ClassVar[str] = PROCESS_CRASH
    extra: ClassVar[str] = "agent-framework"
    level: ClassVar[str] = "memory"


class MicrosoftFiles(SessionRow):
    """FileCheckpointStorage."""

    name: ClassVar[str] = "agent-framework-files"
    survives: ClassVar[str] = PROCESS_CRASH
    extra: ClassVar[str] = "agent-framework"


ROWS: tuple[type[SessionRow], ...] = (
    OpenAIOnABoard,
    OpenAISqlite,
    GoogleOnABoard,
    GoogleSqlite,
    GoogleDatabase,
    MicrosoftOnABoard,
    MicrosoftInMemory,
    MicrosoftFiles,
)
CELLS = tuple(dict.fromkeys(kind.extra for kind in ROWS))
"""A table for each framework."""


def environment(extra: str, *, fetch: bool) -> Path:
    """The interpreter of a framework's environment, made if need be. Errors: UnavailableError."""
    place = CHECKOUT / ".frameworks" / extra
    if fetch:
        made = subprocess.run(
            [CHECKOUT / "tools/test_frameworks.sh", "--make", extra], capture_output=True, text=True
        )
        if made.returncode:
            said = made.stderr.strip().splitlines()[-1:]
            raise UnavailableError(f"{extra} cannot be installed: {' '.join(said)}")
    if not (place / ".installed").exists():
        raise UnavailableError(f"no .frameworks/{extra}; without --no-fetch it is made")
    return place / "bin/python"


# --- workers --------------------------------------------------------------------------------------


class WorkerProcess:
    """A process of bench/session_worker.py; what it says is a line of JSON."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process, self._log = process, log

    @classmethod
    async def begun(cls, row: SessionRow, task: SessionWork, log: Path) -> WorkerProcess:
        """One that has just been started. It does not outlive this process."""
        command = [str(row.python), "-P", "-m", "bench.session_worker", json.dumps(asdict(task))]
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=row.lab.folder,
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                limit=ANSWER_BYTES_MAX,
                preexec_fn=die_with_parent,
            )
        return cls(process, log)

    async def said(self) -> Any:
        """Its next line. Errors: RuntimeError with the end of its log if it ended before."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            tail = self._log.read_text(errors="replace")[-200:].strip()
            raise RuntimeError(f"a worker ended early: {tail}")
        return json.loads(line)

    def tell(self, what: Any) -> None:
        """A line for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    async def end(self) -> None:
        """Wait until it ended by itself, which a closed input lets it do."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if await self._process.wait():
            await self.said()

    async def kill(self) -> None:
        """Make it end, if it has not."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.communicate()


async def alone(row: SessionRow, name: str, steps: int) -> Figures:
    """Steps and a listing by one process, and the bytes that it leaves."""
    folder = row.lab.data_folder(name)
    worker = await WorkerProcess.begun(
        row, row.alone(folder, steps), row.lab.folder / f"{name}.log"
    )
    try:
        figures: Mapping[str, float] = await worker.said()
        await worker.end()
    finally:
        await worker.kill()
    return {**figures, "bytes x input": size_of(folder) / (steps * MESSAGE_BYTES)}


async def colliding(row: SessionRow, name: str, turns: int) -> Figures:
    """Two processes that work on one session at once, and what is there when both have ended."""
    log, workers = row.lab.folder / f"{name}-workers.log", list[WorkerProcess]()
    async with row.shared(name, turns) as work:
        try:
            for number in range(WORKERS):
                workers.append(await WorkerProcess.begun(row, replace(work, worker=number), log))
            for worker in workers:
                assert await worker.said() == READY
            for worker in workers:
                worker.tell("go")
            told = [await worker.said() for worker in workers]
            for worker in workers[1:]:
                await worker.end()
            workers[0].tell([name for one in told for name in one["acknowledged"]])
            kept: Mapping[str, float] = await workers[0].said()
            await workers[0].end()
        finally:
            for worker in workers:
                await worker.kill()
    return {
        "2 workers, turns/s": WORKERS * turns / max(one["seconds"] for one in told),
        "refused": float(sum(one["refused"] for one in told)),
        **kept,
    }


# --- the run --------------------------------------------------------------------------------------


def targets() -> Sequence[Target]:
    """What the page promises: ratios within a round, and that nothing is lost."""
    pairs = (
        ("openai-agents-board", "openai-agents-sqlite", "SQLiteSession"),
        ("google-adk-board", "google-adk-sqlite", "SqliteSessionService"),
        ("google-adk-board", "google-adk-database", "DatabaseSessionService"),
        ("agent-framework-board-memory", "agent-framework-files", "FileCheckpointStorage"),
    )
    cells = {kind.name: kind.extra for kind in ROWS}
    speed = [
        Target(f"at least the steps/s of {store}", cells[row], row, "steps/s", peer, at_least=1.0)
        for row, peer, store in pairs
    ]
    lost = [
        Target(f"two workers lose nothing, {row}", cells[row], row, "lost", below=1.0)
        for row in dict.fromkeys(row for row, _, _ in pairs)
    ]
    return (*speed, *lost)


async def measure(
    rows: Sequence[SessionRow], rounds: int, sizes: tuple[int, int], troubles: dict[str, str]
) -> Results:
    """Every row in every round, in a new random order each; `sizes` are steps and turns."""
    results = Results()
    for kind in rows:
        results.cells.setdefault(kind.extra, {})[kind.name] = {}
    steps, turns = sizes

    async def work(row: SessionRow, number: int) -> None:
        name = f"{row.name}-{number}"
        found = await alone(row, name, steps)
        found = {**found, **await colliding(row, f"{name}-shared", turns)}
        results.add(row.extra, row.name, number, found)

    await in_rounds(rows, rounds, troubles, ROW_SECONDS_MAX, work)
    return results


def tables(results: Results) -> dict[str, Table]:
    """The table of each framework that was measured, and the verdicts, by published name."""
    survives = {kind.name: kind.survives for kind in ROWS}
    found = {
        f"sessions-{cell}": cell_table(results, cell, survives)
        for cell in CELLS
        if any(results.cells.get(cell, {}).values())
    }
    verdicts = [judge(target, results) for target in targets()]
    return found | {"sessions-targets": verdict_table(verdicts)}


def prepared(name: str) -> None:
    """Say what is next: making an environment takes a minute."""
    print(f"sessions: preparing {name}", file=sys.stderr)


async def run(options: argparse.Namespace) -> int:
    """One whole run."""
    rounds, sizes = (1, (20, 5)) if options.quick else (options.rounds, (options.steps, TURNS))
    troubles: dict[str, str] = {}
    with laboratory(fetch=options.fetch) as lab:
        rows = await start_rows(wanted(ROWS, options.only), lab, troubles, prepared)
        facts = gather_facts(lab.folder)
        results = await measure(rows, rounds, sizes, troubles)
    found = tables(results)
    measured = Measured(facts, troubles, rounds, results, ROWS, targets(), lambda: found)
    return report(options, list(found.values()), measured)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return command_line("sessions", __doc__, steps=STEPS).parse_args(arguments)


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(asyncio.run(run(parse())))
