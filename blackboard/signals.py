"""Signals to child processes of an event loop."""

import contextlib
import os
from typing import Protocol


class Child(Protocol):
    """A process that asyncio or anyio started."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """Its exit code, None while it is not known to have ended."""


def send_signal(child: Child, number: int) -> None:
    """Send a signal to a child, if it is not known to have ended.

    The methods of asyncio's processes look first whether the process has ended, and collect its
    exit code if so. The event loop, which waits for the same code in a thread, then logs "Unknown
    child process" and reports 255 (CPython issue 87744, mended in 3.13). A second signal right
    after SIGKILL is enough for that. This function leaves the exit code to the event loop.
    """
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)
