"""Workers as processes of their own, which a test pauses and lets go on."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from tests.hosts import HERE, Host
from tests.source_tree import ROOT


class WorkerProcess:
    """A worker on `host`; what it says is in `lines`, in order."""

    def __init__(self, module: str, arguments: Sequence[str], host: Host = HERE) -> None:
        self.lines: list[dict[str, Any]] = []
        self.heard = asyncio.Event()
        """Set with each line; the waiting task clears it."""
        self._command = [*host.enter, sys.executable, "-m", module, *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Let it run."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):  # the last one of a killed process may be cut short
                self.lines.append(json.loads(line))
                self.heard.set()

    def send(self, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT: pause it, and let it go on as if nothing had been."""
        assert self._process is not None
        self._process.send_signal(number)

    async def finish(self, timeout_s: float) -> int:
        """Tell it to end after what it is at; returns its exit status. Killed after `timeout_s`."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._reader is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._reader
                return await self._process.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End it at once, paused or not."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
