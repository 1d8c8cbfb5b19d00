"""The process between a step and its command: `python -I -S command_guard.py STATUS`.

It reads one line of JSON from its standard input, the order; starts the command, in a process group
of its own; and writes to the descriptor STATUS the number of that process, and then how it ended.
When the command has ended, or the standard input has, because the agent is gone or wants it to
stop, it kills everything that the command has started. It keeps the lock of the workspace
meanwhile, so that nobody works there before that.

It uses the standard library only, and nothing of this package: it has to start quickly.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36


def main(status: int) -> None:
    """Carry out one order."""
    order = json.loads(sys.stdin.buffer.readline())
    # Before the start: an orphan whose parent ends earlier would go to init, out of reach.
    _adopt_orphans()
    # Inherited by the command and by everything that it starts.
    limit, present = order["file_bytes_max"], resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    # A lower one, as of `ulimit -f`, stays: only root may raise it.
    limit = limit if present == resource.RLIM_INFINITY else min(limit, present)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        command = subprocess.Popen(
            order["argv"],
            env=order["environment"],
            cwd=order["directory"],
            stdin=subprocess.DEVNULL,
            # A group of its own, so that killing it does not reach this process.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        _tell(status, {"error": getattr(error, "strerror", None) or str(error)})
        return
    threading.Thread(target=_end_with_agent, args=(command.pid,), daemon=True).start()
    _tell(status, {"pid": command.pid})
    os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
    _kill_group(command.pid)  # its number is not given to another one before it is waited for
    code = command.wait()
    # What has left the group: by `setsid`, for example.
    _kill_orphans()
    _tell(status, {"exit_code": code})


def _tell(status: int, what: dict[str, Any]) -> None:
    # The agent may have been killed: then nobody listens, and the command is still to be killed.
    with contextlib.suppress(BrokenPipeError):
        os.write(status, json.dumps(what).encode() + b"\n")


def _end_with_agent(pid: int) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    _kill_group(pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _adopt_orphans() -> None:
    """Let what leaves the group of the command be a child of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_orphans() -> None:
    """Kill the children of this process until there are none."""
    with contextlib.suppress(ChildProcessError):
        while True:
            # Looked for again after each one that ended: they may have started others meanwhile.
            for pid in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in front of it may contain spaces and parentheses.
            parent = status.read_bytes().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(status.parent.name))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # not waiting for the thread, which reads
