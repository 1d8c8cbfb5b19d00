"""The stall cell: what a watcher that stopped reading costs the server in memory.

The watcher is a process of its own which the kernel stops (SIGSTOP), so nothing in any client
library can read on behind our back, and every row is treated alike. Run as a program, this
module is that watcher: `python -m bench.stall ROW`, the endpoint in BENCH_ENDPOINT.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from bench.catalogue import ROWS
from bench.cells import fresh_folder
from bench.figures import Figures
from bench.rows import Connection, Endpoint, Row
from bench.servers import CHECKOUT, die_with_parent

VALUE_BYTES = 16 * 1024
KEYS = 100
WRITERS = 16
WATCHING_SECONDS_MAX = 20.0
SAMPLE_SECONDS = 0.05
MEGABYTE = 1024 * 1024


async def stall_cell(row: Row, megabytes: int) -> Figures:
    """Write `megabytes` three times: to warm up, with nobody watching, with a stopped watcher."""
    connection, folder = await row.connect(), fresh_folder("stall")
    try:
        await _write(row, connection, folder, megabytes)
        warm = row.servers[0].rss_bytes()
        alone = await _write(row, connection, folder, megabytes)
        before = row.servers[0].rss_bytes()
        async with _stopped_watcher(row, folder):
            peak = await _write(row, connection, folder, megabytes)
            after = row.servers[0].rss_bytes()
    finally:
        await connection.close()
    return {
        "written MB": megabytes,
        "before MB": before / MEGABYTE,
        "after MB": after / MEGABYTE,
        "stalled growth MB": max(0, peak - before) / MEGABYTE,
        "unwatched growth MB": max(0, alone - warm) / MEGABYTE,
    }


async def _write(row: Row, connection: Connection, folder: str, megabytes: int) -> int:
    """Write so many megabytes; the largest resident size seen on the way."""
    value = random.Random(megabytes).randbytes(VALUE_BYTES)
    keys = iter(range(megabytes * MEGABYTE // VALUE_BYTES))

    async def write() -> None:
        for number in keys:
            await connection.put(f"{folder}/{number % KEYS}", value)

    writers = asyncio.gather(*(write() for _ in range(WRITERS)))
    peak = 0
    while not writers.done():
        peak = max(peak, row.servers[0].rss_bytes())
        await asyncio.wait([writers], timeout=SAMPLE_SECONDS)
    await writers
    return max(peak, row.servers[0].rss_bytes())


@asynccontextmanager
async def _stopped_watcher(row: Row, folder: str) -> AsyncIterator[None]:
    environment = {
        **os.environ,
        "BENCH_ENDPOINT": json.dumps(asdict(row.endpoint)),
        "BENCH_FOLDER": folder,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.stall",
        row.name,
        cwd=CHECKOUT,
        env=environment,
        stdin=DEVNULL,
        stdout=PIPE,
        start_new_session=True,
    )
    try:
        await asyncio.wait_for(_until_watching(process), WATCHING_SECONDS_MAX)
        process.send_signal(signal.SIGSTOP)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _until_watching(process: Process) -> None:
    line = await process.stdout.readline() if process.stdout else b""
    if line != b"watching\n":
        raise RuntimeError("the stalled watcher ended before it watched")


async def watch_until_killed(row_name: str) -> None:
    """Watch like any client, say so on standard output, then wait to be stopped and killed."""

    die_with_parent()
    row = next(kind for kind in ROWS if kind.name == row_name)()
    row.endpoint = Endpoint(**json.loads(os.environ["BENCH_ENDPOINT"]))
    connection = await row.connect()
    await connection.watch(os.environ["BENCH_FOLDER"], lambda value: None)
    print("watching", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(watch_until_killed(sys.argv[1]))
