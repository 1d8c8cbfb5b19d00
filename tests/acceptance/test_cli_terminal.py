"""What agents wrote, shown on a terminal and through a pipe: none of it steers the terminal."""

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import blackboard
from tests.acceptance.shell import TIMEOUT_S, Shell

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals")

UNSEEN = ("\x07", "\x9b", "\x9c", "\x9d", "\u202e", "\u2066", "\u061c", "\u200b", "\U000e0041")
HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]x[/] " + " x ".join(UNSEEN) + " end\r"
STEERS = ("\x1b]", "\x1b[2J", *UNSEEN)
"""What must not come out. Through a pipe no carriage return either: a terminal adds its own."""

COMMANDS = (
    ["ls"],
    ["ls", "--json"],
    ["get", "public/a"],
    ["get", "public/a", "--json"],
    ["get", "public/a", "--entry"],
    ["get", "public/b"],
    ["get", "public/b", "--json"],
    ["log"],
    ["log", "--json"],
    ["watch", "--after", "0", "--count", "2"],
    ["watch", "--after", "0", "--count", "2", "--json"],
    ["watch", "--snapshot", "--count", "0"],
    ["history", "public/a"],
    ["history", "public/a", "--json"],
    ["why", "public/a"],
    ["why", "public/a", "--json"],
    ["agents"],
    ["agents", "--json"],
    ["approvals"],
    ["approvals", "--json"],
    ["leases"],
    ["claims"],
    ["claims", "--json"],
    ["checkpoint", "list"],
    ["checkpoint", "list", "--json"],
    ["checkpoint", "show", "c"],
    ["checkpoint", "show", "c", "--json"],
    ["checkpoint", "diff", "1", "now"],
    ["checkpoint", "diff", "1", "now", "--json"],
    ["trajectories"],
    ["audit"],
    ["audit", "--json"],
    ["boards"],
    ["get", f"public/{HOSTILE}"],
    ["get", f"public/{HOSTILE}", "--json"],
    ["ls", HOSTILE],
    ["set", "public/c", "{" + HOSTILE],
)

RUN_ALL = """
import json, sys
from blackboard.cli.main import app
for command in json.loads(sys.argv[1]):
    sys.stdout.write(f"$$$ {json.dumps(command)}\\n")
    sys.stdout.flush()
    try:
        app(command)
    except SystemExit:
        sys.stdout.flush()
"""


async def plant(url: str, token: str) -> None:
    """Write it wherever an agent, or somebody with a token, can."""
    async with blackboard.connect(url, token=token) as client:
        board = client.board("main")
        eve = board.as_agent("eve")
        await eve.put("public/a", HOSTILE, note=HOSTILE)
        await eve.put("public/b", {HOSTILE: [HOSTILE]}, note=HOSTILE)
        step = eve.step(note=HOSTILE)
        async with step:
            await step.get("public/b")
            step.put("public/a", HOSTILE + "2")
        books: dict[str, Any] = {
            "public/~agents/eve": {"state": HOSTILE, "note": HOSTILE, "since_ms": 1, "step": 1},
            "public/~approvals/eve/x": {
                "question": HOSTILE,
                "details": HOSTILE,
                "facts": [{"key": "public/a", "revision": 1, "digest": "", "value": HOSTILE}],
                "approvers": [],
                "asked": 1,
                "changed": [],
            },
        }
        for key, value in books.items():
            await eve.put(key, value)
        await board.checkpoint("c", note=HOSTILE)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A service whose board is full of it."""
    import anyio

    found = Shell(tmp_path_factory.mktemp("terminal"))
    with found.service():
        url = json.loads((found.home / "data" / "owner.json").read_text())["url"]
        token = (found.home / "data" / "token").read_text().strip()
        anyio.run(plant, url, token)
        yield found


def on_terminal(shell: Shell) -> str:
    """All that the commands write to a pseudo-terminal, both streams."""
    leader, follower = pty.openpty()
    environ = {**shell.environ, "COLUMNS": "200", "TERM": "xterm-256color"}
    environ.pop("NO_COLOR")
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_ALL, json.dumps(COMMANDS)],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        cwd=shell.home,
        env=environ,
    )
    os.close(follower)
    told = b""
    try:
        while select.select([leader], [], [], TIMEOUT_S)[0]:
            try:
                told += os.read(leader, 1 << 16)
            except OSError:  # its last writer is gone
                break
        assert process.wait(TIMEOUT_S) is not None
    finally:
        process.kill()
        os.close(leader)
    return told.decode()


def through_pipe(shell: Shell) -> str:
    """All that the commands write to pipes, both streams."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(COMMANDS)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=shell.home,
        env=shell.environ,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("where", ["terminal", "pipe"])
def test_nothing_that_an_agent_wrote_steers_the_terminal(shell: Shell, where: str) -> None:
    """Values, notes, questions, states, errors: each command that shows what others chose."""
    told = on_terminal(shell) if where == "terminal" else through_pipe(shell)
    parts = told.split("$$$ ")[1:]
    assert len(parts) == len(COMMANDS)
    forbidden = STEERS if where == "terminal" else (*STEERS, "\r")
    for part in parts:
        command, _, shown = part.partition("\n")
        assert [found for found in forbidden if found in shown] == [], command
        assert "Traceback" not in shown, shown
    assert told.count("owned") >= 40, "and yet it is shown"
    assert ("\x1b[" in told) is (where == "terminal"), "colours are ours"


def test_raw_is_for_files(shell: Shell, tmp_path: Path) -> None:
    """`--raw` gives a pipe every byte, and a terminal none that steers it."""
    raw = subprocess.run(
        [sys.executable, "-m", "blackboard", "get", "public/a", "--raw"],
        stdout=subprocess.PIPE,
        cwd=shell.home,
        env=shell.environ,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert raw.stdout.decode() == HOSTILE + "2"
