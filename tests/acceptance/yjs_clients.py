"""Unmodified Yjs clients in a process of their own, told what to do."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.source_tree import ROOT

FOLDER = ROOT / ".yjs"
TIMEOUT_S = 60
needs_node = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="node and npm are not installed",
)


def get_clients() -> None:
    """Install them, if they are not there."""
    subprocess.run([ROOT / "tools/get_yjs.sh"], check=True, timeout=300)


class Yjs:
    """The process; `do` tells it one thing and returns what it answers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def do(self, what: str, **details: Any) -> Any:
        """Carry out a command of client.mjs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **details}).encode() + b"\n")
        line = await asyncio.wait_for(self._process.stdout.readline(), TIMEOUT_S)
        assert line, "the Yjs clients are gone"
        return json.loads(line)

    async def until(self, name: str, **wanted: Any) -> Any:
        """Wait until what a client tells has all that is wanted."""
        told = await self.do("until", name=name, wanted=wanted)
        assert told["held"], told
        return told


@asynccontextmanager
async def yjs() -> AsyncIterator[Yjs]:
    """The process, until the block ends."""
    await asyncio.to_thread(get_clients)
    process = await asyncio.create_subprocess_exec(
        "node", FOLDER / "client.mjs", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield Yjs(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), TIMEOUT_S)
