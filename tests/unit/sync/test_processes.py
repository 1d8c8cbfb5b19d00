"""`blackboard.sync` at the end of an interpreter, after a fork, and under Ctrl-C."""

import signal
import subprocess
import sys
from pathlib import Path

from blackboard import sync

BEGIN = "import os, sys, threading, blackboard.sync as sync\n"


def run(program: str, *arguments: object, sends: int | None = None) -> tuple[int, str, str]:
    """Exit code and output of a program, which gets signal `sends` after its first line."""
    command = [sys.executable, "-u", "-X", "dev", "-W", "error", "-c", BEGIN + program]
    with subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline() if sends else ""
        if sends:
            process.send_signal(sends)
        out, err = process.communicate()
    return process.returncode, first + out, _without_slow_steps(err)


def _without_slow_steps(err: str) -> str:
    """What asyncio's debug mode says of a slow machine is no finding."""
    return "".join(line for line in err.splitlines(True) if not line.startswith("Executing <"))


def test_a_client_that_is_never_closed(tmp_path: Path) -> None:
    """A script exits at once, and the next process to open the directory finds all its commits."""
    program = """
client = sync.open(sys.argv[1])
board = client.board("b")
watch = board.watch("public/**").__enter__()
lock = board.lock("public/a").__enter__()
board.put("public/a", 1)
"""
    assert run(program, tmp_path) == (0, "", "")
    with sync.open(tmp_path) as client:
        assert client.board("b").get("public/a") == 1


def test_a_thread_that_waits_when_the_interpreter_ends(tmp_path: Path) -> None:
    program = """
client = sync.open(sys.argv[1])
begun = threading.Event()
def follow():
    with client.board("b").watch("public/**") as watch:
        begun.set()
        try:
            next(watch)
        except Exception as error:
            print(type(error).__name__)
threading.Thread(target=follow).start()
begun.wait()
"""
    assert run(program, tmp_path) == (0, "Unavailable\n", "")


def test_after_a_fork_each_process_opens_its_own(tmp_path: Path) -> None:
    program = """
from blackboard.errors import BlackboardError, LocalProtocolError
client = sync.open(sys.argv[1])
client.board("b").put("public/a", 1)
child = os.fork()
if not child:
    try:
        client.board("b").get("public/a")
    except LocalProtocolError as error:
        print(error.reason)
    with sync.open(sys.argv[2]) as own:
        own.board("b").put("public/a", 2)
        print(own.board("b").get("public/a"))
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(client.board("b").get("public/a"))
"""
    code, out, err = run(program, tmp_path / "one", tmp_path / "two")
    assert (code, err) == (0, "")
    reason, *values = out.splitlines()
    assert "forked: open or connect in each process" in reason
    assert values == ["2", "1"]


def test_ctrl_c_ends_a_call_and_nothing_else(tmp_path: Path) -> None:
    """The lock around the wait is released, and the client goes on."""
    program = """
client = sync.open(sys.argv[1])
board = client.board("b")
try:
    with board.lock("public/a"), board.watch("public/**") as watch:
        print("waits")
        for revised in watch:
            pass
except KeyboardInterrupt:
    print(board.leases(), board.put("public/a", 1).revision > 0)
"""
    code, out, err = run(program, tmp_path, sends=signal.SIGINT)
    assert (code, out, err) == (0, "waits\n() True\n", "")


def test_ctrl_c_that_does_not_end_the_wait_for_a_lock(tmp_path: Path) -> None:
    """As one that comes after Python's last look and before the wait: it is noted, and no more."""
    program = """
import _thread, asyncio
client = sync.open(sys.argv[1])
async def wait(client):
    threading.Thread(target=_thread.interrupt_main).start()
    await asyncio.Event().wait()
try:
    client.run(wait)
except KeyboardInterrupt:
    print(client.board("b").put("public/a", 1).revision > 0)
"""
    assert run(program, tmp_path) == (0, "True\n", "")


def test_ctrl_c_that_nobody_catches(tmp_path: Path) -> None:
    program = """
board = sync.open(sys.argv[1]).board("b")
with board.watch("public/**") as watch:
    print("waits")
    next(watch)
"""
    code, out, err = run(program, tmp_path, sends=signal.SIGINT)
    assert (code != 0, out) == (True, "waits\n")
    assert err.endswith("KeyboardInterrupt\n")
