"""Measure documents beside Hocuspocus and y-websocket-server, in one run on this machine.

    python -m bench.documents                     everything, three rounds
    python -m bench.documents --only ours,hocus   rows whose name contains one of these
    python -m bench.documents --cells fanout      kinds: fanout, load, stall, session
    python -m bench.documents --quick             does it run at all; figures are worthless

Every server keeps what it is sent. Ours tells an edit when it is committed; the peers tell it
first, and store it later: Hocuspocus the whole document every two seconds, y-websocket-server each
update, without waiting. The clients are one Node process (bench/yjs/fanout.mjs) with a real Y.Doc
as the editor, the same for all. In every round each cell visits all rows in a new random order.

A fan-out also says how long one commit takes at the same server, put by a client before it and
after it, and what is left of the median without that: what passing an edit on takes beside storing
it.

A session is a recording of two writers (bench/typing_model.py) that stock clients replay
(bench/yjs/session.mjs). Each has a new server, which is stopped afterwards: its files are measured
before and after.

Servers and clients are installed with npm into the checkout's .servers folder (not with
--no-fetch). Everything listens on 127.0.0.1 only. Exit status 1 means that a cell failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from bench import typing_model
from bench.figures import Figures, Results
from bench.machine import Facts, gather_facts
from bench.ours import BOARD, serve_ours
from bench.peers import serve_redis
from bench.published import summary
from bench.report import Table, cell_table, verdict_table
from bench.rows import LOOPBACK, Endpoint, client_module
from bench.servers import (
    CACHE,
    CHECKOUT,
    FETCH_SECONDS_MAX,
    Lab,
    Server,
    UnavailableError,
    die_with_parent,
    prepare_cache,
)
from bench.session import (
    SETTLE_SECONDS,
    Measured,
    command_line,
    end_on_sigterm,
    explain,
    laboratory,
    one_of,
    report,
    start_rows,
    wanted,
)
from bench.targets import DOCUMENT_TARGETS, judge
from blackboard.client.remote.documents import document_token

CELL_SECONDS_MAX = 240.0
PROGRAMS = CHECKOUT / "bench/yjs"
INSTALLED = CACHE / "yjs"
FOLDER = "public/bench"
POWER_LOSS, NOTHING = "power loss", "nothing yet"


class Room:
    """Where a client finds one document."""

    def __init__(self, url: str, name: str, query: str = "") -> None:
        self.url = url
        self.told = {"name": name, "query": query}


class Row:
    """A server of documents; `servers[0]` is the process that clients talk to."""

    name: ClassVar[str]
    survives: ClassVar[str]
    dialect: ClassVar[str] = "y-websocket"
    rest_ms: ClassVar[int] = 500
    """After its last peer left, until a document is surely not held in memory any more."""

    def __init__(self) -> None:
        self.servers: list[Server] = []

    async def start(self, lab: Lab) -> None:
        """Bring it up. Errors: UnavailableError."""
        raise NotImplementedError

    def room(self, name: str) -> Room:
        """A document of that name."""
        return Room(f"ws://{LOOPBACK}:{self.servers[0].port}", name)

    async def commits_ms(self, rate: float, seconds: float) -> list[float]:
        """How long commits take, so many a second; empty if an edit is passed on without one."""
        return []


class Ours(Row):
    """Our service on the embedded engine, as it comes: synced to disk, and with an archive."""

    name = "ours-embedded"
    survives = POWER_LOSS

    async def start(self, lab: Lab) -> None:
        """See `Row.start`."""
        self.servers, self._endpoint = await self._started(lab)

    async def _started(self, lab: Lab) -> tuple[list[Server], Endpoint]:
        server, endpoint = await serve_ours(lab, self.name, (), archive=())
        return [server], endpoint

    def room(self, name: str) -> Room:
        """See `Row.room`; with a token for the document alone."""
        url = f"ws://{LOOPBACK}:{self._endpoint.port}/v1/boards/{BOARD}/docs/{FOLDER}"
        token = document_token(self._endpoint.token, BOARD, f"{FOLDER}/{name}")
        return Room(url, name, f"token={token}")

    async def commits_ms(self, rate: float, seconds: float) -> list[float]:
        """See `Row.commits_ms`."""
        url, token = f"ws://{LOOPBACK}:{self._endpoint.port}", self._endpoint.token
        took: list[float] = []
        async with client_module("blackboard").connect(url, token=token) as client:
            board = client.board(BOARD)
            for number in range(round(rate * seconds)):
                began = time.perf_counter()
                await board.put(f"{FOLDER}/commit", number)
                took.append((time.perf_counter() - began) * 1_000)
                await asyncio.sleep(max(0.0, began + 1 / rate - time.perf_counter()))
        return took


class OursRedis(Ours):
    """Our service over a Redis that syncs before each answer; the CPU is that of both."""

    name = "ours-redis"

    async def _started(self, lab: Lab) -> tuple[list[Server], Endpoint]:
        redis = await serve_redis(lab, "redis-of-ours", "always")
        engine = ("--engine", f"redis://{LOOPBACK}:{redis.port}")
        server, endpoint = await serve_ours(lab, self.name, engine)
        return [server, redis], endpoint


class Hocuspocus(Row):
    """Hocuspocus with its defaults and documents in files."""

    name = "hocuspocus"
    survives = NOTHING
    dialect = "hocuspocus"
    rest_ms = 3_000

    async def start(self, lab: Lab) -> None:
        """See `Row.start`."""
        program, folder = INSTALLED / "hocuspocus.mjs", lab.data_folder(self.name)
        command = [_node(), str(program)]
        self.servers = [await lab.serve(self.name, lambda port: [*command, str(port), str(folder)])]


class YWebsocketServer(Row):
    """Yjs' own server with its LevelDB persistence."""

    name = "y-websocket-server"
    survives = NOTHING

    async def start(self, lab: Lab) -> None:
        """See `Row.start`."""
        program = INSTALLED / "node_modules/@y/websocket-server/src/server.js"
        settings = {"HOST": LOOPBACK, "YPERSISTENCE": str(lab.data_folder(self.name))}
        self.servers = [
            await lab.serve(
                self.name, lambda port: ["env", f"PORT={port}", _node(), str(program)], settings
            )
        ]


ROWS: tuple[type[Row], ...] = (Ours, OursRedis, Hocuspocus, YWebsocketServer)
CELLS: Mapping[str, Mapping[str, Any]] = {
    "fanout n=1": {"cell": "fanout", "receivers": 1, "burst": 4_000},
    "fanout n=10": {"cell": "fanout", "receivers": 10, "burst": 4_000},
    "fanout n=50": {"cell": "fanout", "receivers": 50, "burst": 8_000},
    "load 10,000 edits": {"cell": "load", "edits": 10_000, "rounds": 5},
    "stall": {"cell": "stall", "megabytes": 64},
    "session of two": {"cell": "session", "edits": 26_000},
}
KINDS = ("fanout", "load", "stall", "session")
PACED = {"rate": 100, "seconds": 6, "window": 1_024}
QUICK = {"rate": 50, "seconds": 1, "burst": 300, "edits": 300, "rounds": 1, "megabytes": 8}


def _node() -> str:
    found = shutil.which("node")
    if found is None:
        raise UnavailableError("no node on PATH")
    return found


def install(*, fetch: bool) -> None:
    """Have the programs of bench/yjs ready to run. Errors: UnavailableError."""
    if shutil.which("npm") is None:
        raise UnavailableError("no npm on PATH")
    prepare_cache()
    INSTALLED.mkdir(exist_ok=True)
    wanted, marker = (PROGRAMS / "package.json").read_text(), INSTALLED / "complete"
    for program in PROGRAMS.iterdir():
        shutil.copy(program, INSTALLED)
    if marker.exists() and marker.read_text() == wanted:
        return
    if not fetch:
        raise UnavailableError("the Yjs servers are not installed, and nothing may be fetched")
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]
    try:
        subprocess.run(command, cwd=INSTALLED, check=True, timeout=FETCH_SECONDS_MAX)
    except (subprocess.SubprocessError, OSError) as error:
        raise UnavailableError(f"npm install: {error}") from error
    marker.write_text(wanted)


async def measure(row: Row, cell: Mapping[str, Any], lab: Lab) -> Figures:
    """One cell of one row."""
    if cell["cell"] == "fanout":
        commits_ms = partial(row.commits_ms, cell["rate"], cell["seconds"] / 2)
        took_ms = await commits_ms()
        figures = await _by_clients(row, cell, "fanout.mjs")
        took_ms += await commits_ms()
        commit_ms = statistics.median(took_ms or [0.0])
        without_ms = figures["paced p50 ms"] - commit_ms
        return {**figures, "commit p50 ms": commit_ms, "p50 less commit ms": without_ms}
    if cell["cell"] != "session":
        return await _by_clients(row, cell, "fanout.mjs")
    alone = Lab(lab.data_folder(f"{row.name}-{random.getrandbits(40):x}"), fetch=lab.fetch)
    try:
        fresh = type(row)()
        await fresh.start(alone)
        recording = alone.folder / "recording.json"
        recording.write_text(json.dumps(typing_model.recording(cell["edits"])))
        figures = await _by_clients(fresh, {**cell, "recording": str(recording)}, "session.mjs")
        recording.unlink()
        live = _megabytes(alone.folder)
        for server in fresh.servers:
            server.stop()
        return {**figures, "live MB": live, "stopped MB": _megabytes(alone.folder)}
    finally:
        alone.close()


def _megabytes(folder: Path) -> float:
    """What the files of a server take, without its log."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]
    return sum(path.stat().st_size for path in files) / 1e6


async def _by_clients(row: Row, cell: Mapping[str, Any], program: str) -> Figures:
    """One cell, by the clients in their own process."""
    room = row.room(f"d{random.getrandbits(40):x}")
    given = {
        **cell,
        "url": room.url,
        "room": room.told,
        "dialect": row.dialect,
        "restMs": row.rest_ms,
        "pids": [server.pid for server in row.servers],
    }
    process = await asyncio.create_subprocess_exec(
        _node(),
        str(INSTALLED / program),
        json.dumps(given),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "NODE_NO_WARNINGS": "1"},
        preexec_fn=die_with_parent,
    )
    try:
        async with asyncio.timeout(CELL_SECONDS_MAX):
            out, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise RuntimeError(errors.decode(errors="replace").strip()[-300:])
    found: dict[str, float | None] = json.loads(out)
    return {name: float("nan") if value is None else value for name, value in found.items()}


async def measure_all(
    rows: Sequence[Row], options: argparse.Namespace, failed: dict[str, str], lab: Lab
) -> Results:
    """Every cell of every row in every round; a broken cell is noted and the run goes on."""
    results = Results()
    rounds: int = 1 if options.quick else options.rounds
    for number in range(1, rounds + 1):
        for name, settings in CELLS.items():
            if settings["cell"] not in options.cells:
                continue
            cell = {**PACED, **settings, **(QUICK if options.quick else {})}
            for row in random.sample(rows, len(rows)):
                print(f"{name}, {row.name}, round {number}", file=sys.stderr)
                try:
                    results.add(name, row.name, number, await measure(row, cell, lab))
                except Exception as error:  # noqa: BLE001 - one broken cell must not lose the rest
                    failed[f"failed {name}, {row.name}, round {number}"] = explain(error)
                await asyncio.sleep(SETTLE_SECONDS)
    return results


def report_run(
    results: Results, facts: Facts, options: argparse.Namespace, troubles: dict[str, str]
) -> int:
    """Report a table per cell and the verdicts; returns the exit code."""
    survives = {kind.name: kind.survives for kind in ROWS}
    ordered = Results()
    for cell in CELLS:
        for kind in ROWS:
            for number, figures in results.rounds_of(cell, kind.name).items():
                ordered.add(cell, kind.name, number, figures)
    tables = [cell_table(ordered, cell, survives) for cell in ordered.cells]
    tables.append(verdict_table([judge(target, ordered) for target in DOCUMENT_TARGETS]))

    def published() -> dict[str, Table]:
        return {"documents": summary("documents", ordered)}

    measured = Measured(facts, troubles, options.rounds, ordered, ROWS, DOCUMENT_TARGETS, published)
    return report(options, tables, measured)


async def run_all(options: argparse.Namespace) -> int:
    """One whole run; at its end its servers are stopped and its files deleted."""
    troubles: dict[str, str] = {}
    with laboratory(fetch=options.fetch) as lab:
        try:
            install(fetch=options.fetch)
        except UnavailableError as reason:
            print(f"- skipped: {reason}")
            return 0
        rows = await start_rows(wanted(ROWS, options.only), lab, troubles)
        results = await measure_all(rows, options, troubles, lab)
        facts = gather_facts(lab.folder)
    return report_run(results, facts, options, troubles)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = command_line("documents", __doc__)
    parser.add_argument("--cells", type=one_of(KINDS), default=list(KINDS), help=", ".join(KINDS))
    return parser.parse_args(arguments)


def main() -> int:
    """Entry point; SIGTERM ends the run like Ctrl-C, so that the servers are stopped."""
    end_on_sigterm()
    return asyncio.run(run_all(parse()))


if __name__ == "__main__":
    sys.exit(main())
