"""A service under hostile connections of every kind, while others work.

Half of a request, a handshake and silence, floods, watches and documents that nobody reads,
garbage, huge frames: all at once, while a healthy team does its work. Then: everything that the
team did is there, memory is bounded, and the process has not gone.

`BLACKBOARD_HOSTILE_CONNECTIONS` sets how many there are, 1,000 in the long form, in a
process of their own (hostile_child.py). How long a commit of the team took, alone and in that
company, is logged (`--log-cli-level=info`).
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import blackboard
from blackboard.core import access
from blackboard.integrity.tokens import issue
from tests.acceptance.attack import Target
from tests.guarantees.hostile_child import ATTACKS, PATIENCE_S
from tests.guarantees.processes import HOUR_MS, ServiceProcess
from tests.source_tree import ROOT

log = logging.getLogger(__name__)
CONNECTIONS = int(os.environ.get("BLACKBOARD_HOSTILE_CONNECTIONS", "70"))
COMMITS = int(os.environ.get("BLACKBOARD_HOSTILE_COMMITS", "30"))
"""Of each healthy agent."""
TEAM = ("ada", "bob", "eve")
GROWTH_BYTES = 128 * 1024**2 + CONNECTIONS * 512 * 1024
"""What the process may take in that company: more than it needs for anybody, and half a megabyte
for each connection. A frame of 8 MiB that was kept for each would be found."""


@contextlib.asynccontextmanager
async def enemies(service: ServiceProcess, seed: int) -> AsyncIterator[Process]:
    """All of them, of every kind in turn, begun; killed when the block ends."""
    spec: dict[str, Any] = {
        "url": service.url,
        "secret": service.secret,
        "count": CONNECTIONS,
        "seed": seed,
    }
    spec["kinds"] = [attack.__name__ for attack in ATTACKS]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.guarantees.hostile_child", json.dumps(spec)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    # Their processors are their own: here they get what the service and its team leave.
    os.setpriority(os.PRIO_PROCESS, child.pid, 19)
    try:
        assert await child.stdout.readline() == b"begun\n"
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def work(service: ServiceProcess, round_: str) -> list[float]:
    """The team does its work; how long each commit took, in seconds, sorted."""
    took: list[float] = []

    async def one(name: str) -> None:
        token = issue(service.secret, access.agent(name), HOUR_MS)
        async with blackboard.connect(service.url, token=token, patience_ms=60_000) as client:
            board = client.board("main")
            for _ in range(COMMITS):
                begun_s = time.monotonic()
                await board.increment(f"public/{round_}/{name}", 1)
                took.append(time.monotonic() - begun_s)
            assert await board.get(f"public/{round_}/{name}") == COMMITS

    await asyncio.gather(*(one(name) for name in TEAM))
    return sorted(took)


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
async def test_hostile_connections_keep_nobody_from_work(tmp_path: Path, seed: int) -> None:
    """Nothing that the team did is lost, memory is bounded, and the process goes on."""
    async with (
        asyncio.timeout(PATIENCE_S),
        ServiceProcess("sqlite", tmp_path / "data") as service,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{service.port}", trust_env=False, timeout=PATIENCE_S
        ) as http,
    ):
        alone = await work(service, "alone")
        target = Target(service.port, service.pid)
        before = target.memory_bytes()
        async with enemies(service, seed) as child:
            together = await work(service, "together")
            assert (await http.get("/healthz")).status_code == 200
            grown = target.memory_bytes() - before
            assert child.returncode in (None, 0), "a fault of theirs is none of ours"
        assert grown < GROWTH_BYTES
        afterwards = await work(service, "afterwards")
        for name, took in (("alone", alone), ("together", together), ("after", afterwards)):
            middle, last = took[len(took) // 2], took[-len(took) // 100]
            log.info("%s: half of the commits in %.4f s, 99 of 100 in %.4f s", name, middle, last)
        log.info("%d MiB, and %d MiB for them", before // 1024**2, grown // 1024**2)
