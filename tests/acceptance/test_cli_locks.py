"""Commands under a lock, leases and claims, as people and scripts use them: real processes."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

import blackboard
from blackboard.client.board import Board
from blackboard.client.watch import Watch
from blackboard.ops import Grant, Release
from tests.acceptance.shell import TIMEOUT_S, Running, Shell
from tests.lock_masters import keys_of, lock_masters
from tests.redis_process import RedisProcess, find_redis_server
from tests.waiting import wait_until

KEY = "public/deploy"
HOUR_MS = 3_600_000
HOLD = ("sh", "-c", "echo holding; cat gate")
BLOCK = "from signal import *; pthread_sigmask(SIG_BLOCK, [SIGINT]); "
# For Ctrl-C no command is a shell. `sh -c` catches it, to end when what it has started ends; and if
# that was forked but has not begun, it loses the signal: both then wait for ever, now and then.
DIE = ("cat", "start", "gate")
CATCH = (
    sys.executable,
    "-c",
    BLOCK + "print('holding', flush=True); sigwait([SIGINT]); raise SystemExit(3)",
)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A user with a gate: who reads it goes on when somebody has written."""
    user = Shell(tmp_path)
    os.mkfifo(user.home / "gate")
    (user.home / "start").write_text("holding\n")
    return user


@pytest.fixture
def service(shell: Shell) -> Iterator[Running]:
    """That user's service, on the embedded engine."""
    with shell.service() as running:
        yield running


@pytest.fixture
async def board(shell: Shell, service: Running) -> AsyncIterator[Board]:
    """The same board, for an agent that is a program."""
    token = shell.out("token", "create", "thief").strip()
    async with blackboard.connect(service.url, token=token) as client:
        yield client.board("main")


def open_gate(shell: Shell) -> None:
    """Let the one who reads the gate go on."""
    (shell.home / "gate").write_text("open\n")


def refusal(shell: Shell, *arguments: str, code: int) -> Any:
    """The error that `blackboard lock` ends with; behind `--`, `--json` would be the command's."""
    return json.loads(shell.run("lock", "--json", KEY, *arguments, code=code).stderr)["error"]


async def until(watch: Watch, kind: str) -> None:
    """Wait for the next change of that kind."""
    with anyio.fail_after(TIMEOUT_S):
        async for revised in watch:
            if any(change.kind == kind for change in revised.changes):
                return


# --- a command under a lock -----------------------------------------------------------------------


@pytest.mark.usefixtures("service")
def test_a_command_runs_under_the_lock_and_knows_its_fence(shell: Shell) -> None:
    """Afterwards nobody has it."""
    told = shell.out("lock", KEY, "--", "sh", "-c", "echo $BLACKBOARD_FENCE $BLACKBOARD_LEASE")
    fence, lease = told.split()
    name, key, holder, again = lease.split(":")
    assert (name, key, again) == ("main", KEY, fence)
    assert holder.startswith("operator~")
    assert shell.out("log").splitlines()[0].split("\t")[3:5] == ["grant", KEY]
    assert shell.json("leases") == {"leases": []}


@pytest.mark.usefixtures("service")
def test_commands_under_one_lock_run_one_at_a_time(shell: Shell) -> None:
    """`mkdir` fails where two overlap."""
    script = "mkdir busy && sleep 0.1 && rmdir busy"

    def run(_: int) -> int:
        return shell.run("lock", KEY, "--", "sh", "-c", script).returncode

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [0] * 4


async def test_who_waits_is_seen_and_comes_next(shell: Shell, board: Board) -> None:
    """In the order of asking."""
    async with board.watch(KEY) as watch:
        with shell.start("lock", KEY, "--", *HOLD) as first:
            first.wait_for("holding")
            with shell.start("lock", KEY, "--", "echo", "second") as second:
                await until(watch, "wait")
                [row] = shell.out("leases").splitlines()
                key, holder, _, _, waiting = row.split("\t")
                assert key == KEY
                assert {holder[:9], waiting[:9]} == {"operator~"}
                open_gate(shell)
                assert first.end()[0] == 0
                second.wait_for("second")
                assert second.end()[0] == 0


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 42", 42), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_that_of_the_command(shell: Shell, script: str, code: int) -> None:
    """As a shell tells it."""
    shell.run("lock", KEY, "--", "sh", "-c", script, code=code)
    assert shell.json("leases") == {"leases": []}


@pytest.mark.usefixtures("service")
def test_what_cannot_be_run_takes_no_lock(shell: Shell) -> None:
    """The codes are those of shells."""
    (shell.home / "script").write_text("#!/bin/sh\n")
    assert refusal(shell, "--", "no-such-command", code=127)["code"] == "not_found"
    assert refusal(shell, "--", "./script", code=126)["code"] == "not_executable"
    shell.run("lock", KEY, code=2)
    assert shell.out("log") == ""


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("first_line", ["", "#!/no/such/program"])
def test_what_the_system_cannot_start_is_said_so(shell: Shell, first_line: str) -> None:
    """It looks like a program; only to start it shows that it is none."""
    (shell.home / "script").write_text(f"{first_line}\n")
    (shell.home / "script").chmod(0o755)
    told = refusal(shell, "--", "./script", code=126)
    assert told["code"] == "not_executable"
    assert "./script cannot be run: " in told["message"]
    assert shell.json("leases") == {"leases": []}


async def test_waiting_can_be_limited(shell: Shell, board: Board) -> None:
    """The error names the holder."""
    await board.commit([Grant(KEY, "thief~1", HOUR_MS)])
    for timeout in ("0", "2"):
        error = refusal(shell, "--timeout", timeout, "--", "true", code=4)
        assert (error["code"], error["holder"]) == ("lease_held", "thief~1")
    [lease] = await board.leases()
    assert lease.waiters == ()


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(("command", "code"), [(CATCH, 3), (DIE, 130)])
def test_ctrl_c_goes_to_the_command(shell: Shell, command: tuple[str, ...], code: int) -> None:
    """Which decides how it ends; then the lock is free."""
    with shell.start("lock", KEY, "--", *command) as running:
        running.wait_for("holding")
        assert running.end(signal.SIGINT)[0] == code
    assert shell.json("leases") == {"leases": []}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_who_is_stopped_while_waiting_leaves_the_queue(
    shell: Shell, board: Board, number: signal.Signals, code: int
) -> None:
    """At once, and the command never ran."""
    await board.commit([Grant(KEY, "thief~1", HOUR_MS)])
    async with board.watch(KEY) as watch:
        with shell.start("lock", KEY, "--", "echo", "ran") as running:
            await until(watch, "wait")
            assert running.end(number)[:2] == (code, "")
    [lease] = await board.leases()
    assert lease.waiters == ()


async def test_a_killed_holder_lets_the_next_one_in(shell: Shell, board: Board) -> None:
    """When its time to live is over."""
    async with board.watch(KEY) as watch:
        with shell.start("lock", KEY, "--ttl", "5", "--", *HOLD) as killed:
            killed.wait_for("holding")
            with shell.start("lock", KEY, "--", "echo", "next") as waiting:
                await until(watch, "wait")
                killed.send(signal.SIGKILL)
                waiting.wait_for("next")
                assert waiting.end()[0] == 0
            open_gate(shell)  # its command goes on alone


async def test_a_lost_lock_ends_the_command(shell: Shell, service: Running) -> None:
    """Also what the command has started; the exit code says why."""
    token = shell.out("token", "create", "thief", "--grant", "public/**=all").strip()
    with shell.start("lock", KEY, "--ttl", "6", "--", *HOLD) as running:
        running.wait_for("holding")
        async with blackboard.connect(service.url, token=token) as client:
            board = client.board("main")
            [lease] = await board.leases()
            stolen = Release(KEY, lease.holder, lease.fence), Grant(KEY, "thief", HOUR_MS)
            await board.commit(stolen)
        code, _, told = running.end()
    assert code == 7
    assert "lease" in told
    with pytest.raises(OSError, match="No such device"):  # nobody reads the gate any more
        os.open(shell.home / "gate", os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.usefixtures("service")
def test_a_test_that_fails_leaves_no_command_behind(shell: Shell) -> None:
    """The command has a process group of its own, and would hold the streams that we read."""
    with shell.start("lock", KEY, "--", *HOLD) as running:
        running.wait_for("holding")
    with pytest.raises(OSError, match="No such device"):
        os.open(shell.home / "gate", os.O_WRONLY | os.O_NONBLOCK)


# --- leases and claims ----------------------------------------------------------------------------


async def test_tasks_are_listed_as_they_stand(shell: Shell, board: Board) -> None:
    """Claimed, returned, dead; done ones are not there."""
    for name in ("a", "b", "c", "d"):
        await board.put(f"public/tasks/{name}", name)
    with pytest.raises(ZeroDivisionError):
        async with board.claim("public/tasks/a", tries_max=1):
            raise ZeroDivisionError("by zero")
    with pytest.raises(ZeroDivisionError):
        async with board.claim("public/tasks/b"):
            raise ZeroDivisionError("by zero")
    async with board.claim("public/tasks/c"):
        pass
    # Commands hold up the event loop of this process, which could not renew a short lease.
    async with board.claim("public/tasks/d", ttl_ms=HOUR_MS):
        rows = [row.split("\t") for row in shell.out("claims").splitlines()]
        assert [(row[0], row[1], row[2], row[5]) for row in rows] == [
            ("public/tasks/b", "returned", "1", "ZeroDivisionError: by zero"),
            ("public/tasks/d", "claimed", "1", ""),
            ("public/~dead/tasks/a", "dead", "1", "ZeroDivisionError: by zero"),
        ]
        assert rows[1][3].startswith("thief~")
        [lease] = shell.json("leases", "public/tasks/*")["leases"]
        assert lease["key"] == "public/tasks/d"
    assert [task["state"] for task in shell.json("claims")["claims"]] == ["returned", "dead"]
    assert "no lease matches" in shell.run("leases").stderr


async def _have_voted(masters: list[RedisProcess]) -> bool:
    return await keys_of(masters) == len(masters)


async def test_lock_masters_are_given_on_the_command_line(shell: Shell) -> None:
    """A lock then is a vote of theirs, too; a server that is none is refused by name."""
    async with lock_masters(find_redis_server(), 3) as masters:
        given = [part for master in masters for part in ("--lock-master", master.url)]
        with shell.service(*given), shell.start("lock", KEY, "--", *HOLD) as running:
            await anyio.to_thread.run_sync(running.wait_for, "holding")
            # A master that was late with its vote gives it with the next renewal.
            await wait_until(lambda: _have_voted(masters))
            await anyio.to_thread.run_sync(open_gate, shell)
            assert await anyio.to_thread.run_sync(running.end) == (0, "open\n", "")
    refused = shell.run("serve", "--port", "0", "--lock-master", "http://nowhere", code=2)
    assert "lock_masters" in refused.stderr
