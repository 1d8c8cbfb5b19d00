"""Commands of a step where a process has little left: of file sizes, of descriptors."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blackboard.errors import FileRefused
from blackboard.runtime import commands
from blackboard.runtime.commands import CommandOrder, default_environment, run_command


def order_of(*argv: str) -> CommandOrder:
    """An order to run that."""
    return CommandOrder(argv, default_environment(), 60_000, 1_000)


def test_a_lower_limit_of_file_sizes_stays(tmp_path: Path) -> None:
    """As of `ulimit -f` for the agent: only root could raise it."""
    guard = [sys.executable, "-I", "-S", str(commands._GUARD), "1"]
    with subprocess.Popen(
        ["sh", "-c", 'ulimit -f 2048; exec "$@"', "sh", *guard],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(order_of("sh", "-c", "ulimit -f").line(tmp_path))
        running.stdin.flush()
        # Its end would end the command: it stays open until all was read.
        assert b"2048" in running.stdout.read().splitlines()


async def test_a_command_without_descriptors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every other one that cannot be started."""

    def none_left() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", none_left)
    with (tmp_path / "lock").open("w") as lock, pytest.raises(FileRefused, match="Too many open"):
        await run_command(order_of("true"), tmp_path, lock.fileno())
