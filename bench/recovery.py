"""Measure what a lost machine costs: what is missing afterwards, and how long it takes to be back.

    python -m bench.recovery                     three rounds
    python -m bench.recovery --quick             does it run at all; figures are worthless
    python -m bench.recovery --only redis        rows whose name contains one of these words

`load`: a service with an archive follows a backup in a directory while 16 agents commit for 20
seconds. Then it is killed (kill -9), its engine and its archive are wiped, and the board is
recovered from the backup. The table has the acknowledged commits per second, how many of them are
lost, and how many seconds before the kill the newest one was acknowledged that came back: the
recovery point. "miscounted" is what came back and was never committed.

`keys=N`: a board of so many keys with values of 100 bytes, a thousand in each log entry, is backed
up, wiped and recovered into an empty engine and archive. That compares every digest, and its time
is the recovery time. Rows run one after the other, in another order each round.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from bench.figures import Figures, Results
from bench.machine import gather_facts
from bench.ours import serve_ours
from bench.peers import POWER_LOSS, serve_redis
from bench.published import summary
from bench.report import Table, cell_table
from bench.rows import LOOPBACK
from bench.servers import Lab
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
from blackboard import connect
from blackboard.backup.place import BackupPlace
from blackboard.client.board import Board
from blackboard.errors import BlackboardError
from blackboard.integrity.signing import make_key
from blackboard.ops import Put, encode_value
from blackboard.server.backups.once import take_once
from blackboard.server.checkpoints.from_backup import Wanted, recover_from
from blackboard.server.service import Service
from blackboard.server.settings import Settings, load, make_archive, make_store

AGENTS = 16
LOAD_SECONDS = 20.0
SIZES = (1_000, 10_000, 100_000)
OPERATIONS = 1_000
VALUE_BYTES = 100
PATIENCE_MS = 500
ROW_SECONDS_MAX = 600.0
Acknowledged = list[tuple[float, str, int]]
"""When each commit was answered, by the clock of `time.perf_counter`, its key and its value."""


def empty(folder: Path) -> None:
    """Remove what is in a data directory, but for what an operator keeps elsewhere."""
    for path in folder.iterdir():
        if path.name not in ("secret", "token", "signing_key", "config"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class RecoveryRow:
    """An engine that can be served, lost and recovered."""

    name: ClassVar[str]
    survives: ClassVar[str] = POWER_LOSS

    async def start(self, lab: Lab) -> None:
        """Begin with an empty engine. Errors: UnavailableError."""
        self.lab = lab

    def settings(self, folder: Path) -> Settings:
        """A service with everything in a folder."""
        return load({"data": folder})

    async def wipe(self, folder: Path) -> None:
        """Lose the engine and the archive."""
        await asyncio.to_thread(empty, folder)

    def environment(self, folder: Path) -> Sequence[str]:
        """What `serve` needs beside its directory, as variables."""
        return ()


class Embedded(RecoveryRow):
    """The embedded engine, with its archive beside it."""

    name: ClassVar[str] = "recovery-embedded"


class OnRedis(RecoveryRow):
    """A Redis that syncs before each answer, and an archive in SQLite."""

    name: ClassVar[str] = "recovery-redis"

    async def start(self, lab: Lab) -> None:
        self.lab = lab
        self.redis = await serve_redis(lab, "redis-of-recovery", "always")

    def _beside(self, folder: Path) -> Path:
        """Where the archive is."""
        found = folder.with_name(f"{folder.name}-archive")
        found.mkdir(exist_ok=True)
        return found

    def _given(self, folder: Path) -> dict[str, str]:
        key = self._beside(folder) / "signing_key"
        if not key.exists():
            make_key(key)
        return {
            "engine": f"redis://{LOOPBACK}:{self.redis.port}",
            "archive": f"sqlite:///{key.parent}/archive.db",
            "blobs": str(key.parent / "blobs"),
            "signing_key": str(key),
        }

    def settings(self, folder: Path) -> Settings:
        return load({"data": folder, **self._given(folder)})

    def environment(self, folder: Path) -> Sequence[str]:
        return [f"BLACKBOARD_{name.upper()}={text}" for name, text in self._given(folder).items()]

    async def wipe(self, folder: Path) -> None:
        import redis.asyncio as redis

        for each in (folder, self._beside(folder)):
            await asyncio.to_thread(empty, each)
        async with redis.Redis(port=self.redis.port) as connection:
            await connection.flushall()


ROWS: tuple[type[RecoveryRow], ...] = (Embedded, OnRedis)


# --- the recovery point ---------------------------------------------------------------------------


async def under_load(row: RecoveryRow, name: str, seconds: float) -> Figures:
    """Kill a service that follows a backup while agents commit, and see what is back."""
    folder, backup = row.lab.folder / name, row.lab.folder / f"{name}-backup"
    variables = row.environment(folder)
    server, endpoint = await serve_ours(row.lab, name, ("--backup", str(backup)), archive=variables)
    done: Acknowledged = []
    sent: dict[str, int] = {}
    url = f"ws://{LOOPBACK}:{endpoint.port}"
    working = [
        asyncio.create_task(_work(url, endpoint.token, f"agent{n}", sent, done))
        for n in range(AGENTS)
    ]
    await asyncio.sleep(seconds)
    server.kill()
    killed_s = time.perf_counter()
    await asyncio.gather(*working, return_exceptions=True)
    await row.wipe(folder)
    await recover_from(row.settings(folder), BackupPlace.at(str(backup)), Wanted())
    found = await _contents(row.settings(folder))
    await row.wipe(folder)
    back = [at_s for at_s, key, value in done if found.get(key, -1) >= value]
    return {
        "commits/s": len(done) / seconds,
        "lost": float(len(done) - len(back)),
        "lost s": killed_s - max(back, default=killed_s - seconds),
        "miscounted": float(sum(value > sent.get(key, -1) for key, value in found.items())),
    }


async def _work(url: str, token: str, agent: str, sent: dict[str, int], done: Acknowledged) -> None:
    """Count up in one key until the service is gone."""
    async with connect(url, token=token, agent=agent, patience_ms=PATIENCE_MS) as client:
        board, key = client.board("bench"), f"public/{agent}"
        for number in range(10**9):
            sent[key] = number
            try:
                await board.put(key, number)
            except BlackboardError:
                return
            done.append((time.perf_counter(), key, number))


async def _contents(settings: Settings) -> dict[str, int]:
    async with serving(settings) as board:
        return {
            entry.key: entry.value
            async for entry in board.scan("public/*")
            if isinstance(entry.value, int)
        }


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Board]:
    """The board of the settings, in this process."""
    store = await make_store(settings)
    archive = await make_archive(settings, store=store)
    async with Service(store, archive=archive) as service:
        yield service.client().board("bench")


# --- the recovery time ----------------------------------------------------------------------------


async def of_size(row: RecoveryRow, name: str, keys: int) -> Figures:
    """Back a board up, lose it, and recover it."""
    folder, backup = row.lab.data_folder(name), row.lab.folder / f"{name}-backup"
    settings, draw = row.settings(folder), random.Random(keys)
    async with serving(settings) as board:
        for start in range(0, keys, OPERATIONS):
            numbers = range(start, min(start + OPERATIONS, keys))
            texts = [(n, draw.randbytes(VALUE_BYTES // 2).hex()) for n in numbers]
            await board.commit([Put(f"public/k{n}", encode_value(text)) for n, text in texts])
    began_s = time.perf_counter()
    shipped = await take_once(settings, str(backup))
    took_s = time.perf_counter() - began_s
    await row.wipe(folder)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    await recover_from(settings, BackupPlace.at(str(backup)), Wanted())
    figures = {
        "backup s": took_s,
        "backup MB": shipped.bytes / 1e6,
        "recover s": time.perf_counter() - began_s,
        "recover cpu s": time.process_time() - began_cpu_s,
    }
    async with serving(settings) as board:
        found = [entry async for entry in board.scan("public/*", keys_only=True)]
        figures["miscounted"] = float(abs(len(found) - keys))
    await row.wipe(folder)
    return figures


# --- the run --------------------------------------------------------------------------------------


async def measure(
    rows: Sequence[RecoveryRow],
    rounds: int,
    sizes: Sequence[int],
    seconds: float,
    troubles: dict[str, str],
) -> Results:
    """Every row in every round, in a new random order each."""
    results = Results()

    async def work(row: RecoveryRow, number: int) -> None:
        found = await under_load(row, f"{row.name}-{number}", seconds)
        results.add("recovery load", row.name, number, found)
        for keys in sizes:
            found = await of_size(row, f"{row.name}-{number}-{keys}", keys)
            results.add(f"recovery keys={keys}", row.name, number, found)

    await in_rounds(rows, rounds, troubles, ROW_SECONDS_MAX, work)
    return results


def tables(results: Results) -> list[Table]:
    """The table of each cell."""
    survives = {kind.name: kind.survives for kind in ROWS}
    return [cell_table(results, cell, survives) for cell in results.cells]


async def run(options: argparse.Namespace) -> int:
    """One whole run."""
    rounds, seconds = options.rounds, LOAD_SECONDS
    sizes: Sequence[int] = SIZES
    if options.quick:
        rounds, sizes, seconds = 1, SIZES[:1], 3.0
    troubles: dict[str, str] = {}
    logging.disable(logging.WARNING)  # that engines lost boards is meant here
    with laboratory(fetch=options.fetch) as lab:
        rows: list[Any] = await start_rows(wanted(ROWS, options.only), lab, troubles)
        facts = gather_facts(lab.folder)
        results = await measure(rows, rounds, sizes, seconds, troubles)
    measured = Measured(
        facts,
        troubles,
        rounds,
        results,
        ROWS,
        (),
        lambda: {"recovery": summary("recovery", results)},
    )
    return report(options, tables(results), measured)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    return command_line("recovery", __doc__).parse_args(arguments)


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(asyncio.run(run(parse())))
