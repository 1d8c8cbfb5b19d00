"""Signals to child processes: whatever arrives when, the event loop gets the exit code."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from blackboard.signals import send_signal

ROUNDS = 30


def has_ended(pid: int) -> bool:
    """Whether a process is a zombie, or collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].startswith(b"Z")
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
async def test_a_signal_to_a_process_that_has_just_ended_does_not_take_its_exit_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each is killed, and gets one more signal before the event loop knows of its end."""
    for _ in range(ROUNDS):
        child = await asyncio.create_subprocess_exec("sleep", "60")
        send_signal(child, signal.SIGKILL)
        while not has_ended(child.pid):
            pass
        send_signal(child, signal.SIGCONT)
        assert await child.wait() == -signal.SIGKILL
        send_signal(child, signal.SIGCONT)
    assert caplog.records == []
