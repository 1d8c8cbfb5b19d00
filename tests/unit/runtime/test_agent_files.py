"""`ctx.files` on a real directory, an embedded board, and real commands."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import blackboard
from blackboard import RunOptions, run_agent
from blackboard.client.board import Board
from blackboard.client.workspace.removing import remove_tree
from blackboard.core.path import tree_head_key, tree_objects_prefix
from blackboard.encryption.master_key import new_master_key
from blackboard.errors import (
    BlackboardError,
    CommandStopped,
    FileRefused,
    InvalidRequest,
    LimitExceeded,
    LocalProtocolError,
    UnsavedFiles,
    WorkspaceHeld,
)
from blackboard.limits import (
    DEFAULT,
    LARGE_BYTES_MAX,
    OPERATIONS_MAX,
    WORKSPACE_ENTRIES_MAX,
    WORKSPACE_PATH_BYTES_MAX,
)
from blackboard.runtime import commands
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.context import Context
from blackboard.runtime.runner import Runner, Stepped
from blackboard.runtime.trial import try_step
from tests.conformance.acting import Actor, Body, Notes
from tests.lowered import lowered
from tests.source_tree import ROOT
from tests.waiting import TIMEOUT_S, wait_until

SHELL = ["sh", "-c"]


class Coder(Actor):
    """An actor with files."""

    def __init__(self, name: str, body: Body, top: Path | None = None) -> None:
        super().__init__(name, body)
        self._top = top

    def workspace(self) -> Path | None:
        """The directory that it was given."""
        return self._top


class Desk:
    """An agent's board and directory: takes steps there. `boss` may act for everybody."""

    def __init__(self, boss: Board, top: Path, agent: str = "ada") -> None:
        self.boss = boss
        self.board = boss.as_agent(agent)
        self.top = top
        self.beside = top.with_name(f".{top.name}.blackboard")

    async def step(self, call: "Call") -> Stepped:
        """Take one step, as a process that begins."""

        async def body(ctx: Context[Notes]) -> None:
            await call(ctx)

        coder = Coder(self.board.agent, body, self.top)
        return await Runner(coder, LiveBoardPort(self.board)).step()

    async def write(self, **files: str) -> Stepped:
        """A step that writes these files."""

        async def body(ctx: Context[Notes]) -> None:
            for name, content in files.items():
                await ctx.files.write(name, content)

        return await self.step(body)

    def tree(self) -> dict[str, str]:
        """What is in the directory."""
        found = (path for path in self.top.rglob("*") if path.is_file())
        return {str(path.relative_to(self.top)): path.read_text() for path in found}

    def left(self) -> set[str]:
        """What lies beside it."""
        return {path.name for path in self.beside.iterdir()}

    async def refused(self, kind: type[BlackboardError], call: "Call") -> Any:
        """The error of a call in a step that writes a file, too; the files are then as before."""
        before, head = self.tree(), (await self.board.head()).revision
        with pytest.raises(kind) as found:
            await self.step(lambda ctx: _writing(ctx, call))
        assert self.tree() == before
        assert (await self.board.head()).revision == head
        assert self.left() <= {"lock", "index"}
        return found.value


Call = Callable[[Context[Notes]], Awaitable[object]]


async def _writing(ctx: Context[Notes], call: Call) -> None:
    await ctx.files.write("half", "done")
    await call(ctx)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A board and a directory of its own, as Ada."""
    limits = lowered(DEFAULT, workspace_wait_ms=0, command_output_bytes_max=10_000)
    async with blackboard.open(tmp_path / "data", limits=limits) as client:
        yield Desk(client.board("main"), tmp_path / "src")


async def test_files_and_board_change_in_one_commit(desk: Desk) -> None:
    """Also the first time; the tree on the board is what is in the directory."""

    async def body(ctx: Context[Notes]) -> None:
        assert await ctx.files.list() == ()
        await ctx.files.write("src/main.py", "print(1)\n")
        await ctx.files.write("run", b"#!/bin/sh\n", executable=True)
        assert [one.path for one in await ctx.files.list("src")] == ["src/main.py"]
        assert not desk.top.exists()
        ctx.put("public/a", 1)

    stepped = await desk.step(body)
    assert stepped.receipt is not None
    files = desk.board.workspace(desk.top)
    taken = await files.info()
    assert taken is not None
    assert taken.revision == stepped.receipt.revision == (await desk.board.head()).revision
    assert desk.tree() == {"src/main.py": "print(1)\n", "run": "#!/bin/sh\n"}
    assert os.access(desk.top / "run", os.X_OK)
    assert await files.diff() == ()
    assert desk.left() == {"lock", "index"}


async def test_a_step_sees_its_own_changes(desk: Desk) -> None:
    """And those of its commands; the directory has none of them before the commit."""
    await desk.write(a="1", b="2")

    async def body(ctx: Context[Notes]) -> None:
        await ctx.files.write("a", "one")
        await ctx.files.remove("b")
        ran = await ctx.files.run(
            [*SHELL, "cat a; pwd; echo $HOME; echo no >&2; echo 3 > c; exit 7"]
        )
        assert (ran.exit_code, ran.stderr) == (7, "no\n")
        assert ran.stdout == f"one{desk.beside / 'stage'}\n\n"
        assert await ctx.files.read("c") == b"3\n"
        assert [one.path for one in await ctx.files.list()] == ["a", "c"]
        assert desk.tree() == {"a": "1", "b": "2"}

    await desk.step(body)
    assert desk.tree() == {"a": "one", "c": "3\n"}


async def test_a_step_that_fails_leaves_the_files(desk: Desk) -> None:
    """And so does one that waits; both see them as they were when they run again."""
    await desk.write(a="1")

    async def fails(ctx: Context[Notes]) -> None:
        assert await ctx.files.read("a") == b"1"
        await ctx.files.run([*SHELL, "rm a; touch b"])
        raise ValueError("it failed")

    async def waits(ctx: Context[Notes]) -> None:
        assert await ctx.files.read("a") == b"1"
        await ctx.files.remove("a")
        await ctx.wait("public/go")

    with pytest.raises(ValueError, match="it failed"):
        await desk.step(fails)
    assert (await desk.step(waits)).rests
    assert desk.tree() == {"a": "1"}
    assert desk.left() == {"lock", "index"}
    await desk.board.put("public/go", 1)
    await desk.step(waits)
    assert desk.tree() == {}


async def test_a_step_rests_on_the_files_that_it_read(desk: Desk) -> None:
    """It runs again if they are other ones at its commit, and `why` names them."""
    await desk.write(a="1")
    seen = []

    async def body(ctx: Context[Notes]) -> None:
        seen.append(await ctx.files.read("a"))
        if len(seen) == 1:
            await desk.board.put(tree_head_key("private/ada/workspace"), await _head(desk.board))
        ctx.put("public/a", seen[-1].decode())

    stepped = await desk.step(body)
    assert (seen, stepped.attempts) == ([b"1", b"1"], 2)
    assert tree_head_key("private/ada/workspace") in {
        cause.key for cause in await desk.board.why("public/a")
    }


async def _head(board: Board) -> Any:
    return await board.get(tree_head_key("private/ada/workspace"))


async def test_files_follow_a_restore_and_a_branch(desk: Desk, tmp_path: Path) -> None:
    """Back to before the first ones, too; the step that is taken again finds what it found."""
    await desk.board.put("private/ada/first", 1)
    boss = desk.boss
    await boss.checkpoint("empty")
    await desk.write(a="1")
    await boss.checkpoint("one")
    await desk.write(a="2", b="2")
    other = await boss.branch("other", "one")
    second = Desk(other, tmp_path / "second")
    await second.write(c="3")
    assert second.tree() == {"a": "1", "c": "3"}
    with pytest.raises(
        InvalidRequest, match="has the files of private/ada/workspace on board main"
    ):
        await Desk(other, desk.top).write(c="3")
    for name, tree in (("one", {"a": "1"}), ("empty", {})):
        await boss.restore(name)
        await desk.board.refresh()
        await desk.write()
        assert desk.tree() == tree
    await desk.write(d="4")
    assert desk.tree() == {"d": "4"}
    assert await desk.board.workspace(desk.top).diff() == ()


async def test_an_agent_goes_on_in_the_files_of_a_restored_board(desk: Desk) -> None:
    """`run_agent`, which attaches again; and on a machine without the directory."""
    found: list[int] = []

    async def body(ctx: Context[Notes]) -> None:
        found.append(len(await ctx.files.list()))
        if len(found) < 4:
            await ctx.files.write(f"file{len(found)}", "")
            ctx.state.count += 1
        else:
            ctx.done()

    coder = Coder("ada", body, desk.top)
    await run_agent(coder, desk.board, RunOptions(steps_max=1))
    await desk.boss.checkpoint("one")
    await run_agent(coder, desk.board, RunOptions(steps_max=1))
    await desk.boss.restore("one")
    await run_agent(Coder("ada", body, desk.top.with_name("elsewhere")), desk.board)
    assert found == [0, 1, 1, 2]


async def test_an_agent_that_is_done_is_looked_after(desk: Desk) -> None:
    """It was killed between its last commit and the directory, which is brought up to the board."""

    async def body(ctx: Context[Notes]) -> None:
        await ctx.files.write("a", "1")
        ctx.done()

    await desk.step(body)
    await asyncio.to_thread(remove_tree, desk.top)
    await asyncio.to_thread(remove_tree, desk.beside)
    stepped = await desk.step(body)
    assert (stepped.receipt, desk.tree()) == (None, {"a": "1"})


async def test_encrypted_with_the_namespace(tmp_path: Path) -> None:
    """No content and no name of a file is in any file of the service."""
    async with blackboard.open(tmp_path / "data", master_key=new_master_key()) as client:
        desk = Desk(client.board("main"), tmp_path / "src")
        await desk.write(plainly_named="plainly written")
    stored = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert not [one for one in stored if b"plainly" in one]


# --- one writer -----------------------------------------------------------------------------------


async def test_a_second_process_is_told_who_works_there(desk: Desk, tmp_path: Path) -> None:
    """And what it cannot do it can do afterwards."""
    assert desk.board.limits.agents.workspace_wait_ms == 0
    await desk.write(a="1")
    code = f"""
import asyncio, sys, blackboard
async def main():
    async with blackboard.open({str(tmp_path / "other")!r}) as client:
        try:
            await client.board("two").as_agent("bob").workspace({str(desk.top)!r}).snapshot()
        except blackboard.errors.WorkspaceHeld as held:
            print(held.pid, held.holder, sep="|")
asyncio.run(main())
"""

    async def body(ctx: Context[Notes]) -> None:
        await ctx.files.read("a")
        ran = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        out, _ = await ran.communicate()
        assert out.decode().strip() == f"{os.getpid()}|ada on board main"
        with pytest.raises(WorkspaceHeld):
            await desk.step(body)

    await desk.step(body)
    await desk.write(a="2")
    assert desk.tree() == {"a": "2"}


async def test_an_agent_does_not_work_in_the_directory_of_another(desk: Desk) -> None:
    """However long that one rests."""
    await desk.write(a="1")
    with pytest.raises(InvalidRequest, match="private/ada/workspace on board main"):
        await Desk(desk.boss, desk.top, "bob").write(a="2")
    assert desk.tree() == {"a": "1"}


async def test_changes_of_others_are_named(desk: Desk) -> None:
    """Before the first step, before a step, and during one; none is lost."""
    desk.top.mkdir()
    (desk.top / "own").write_text("1")
    with pytest.raises(UnsavedFiles) as unsaved:
        await desk.write(a="1")
    assert unsaved.value.paths == ["own"]
    await desk.board.workspace(desk.top).snapshot()
    await desk.write(a="1")
    assert desk.tree() == {"own": "1", "a": "1"}
    (desk.top / "own").write_text("2")
    with pytest.raises(UnsavedFiles):
        await desk.write(a="2")
    with pytest.raises(UnsavedFiles):
        await desk.step(lambda ctx: ctx.files.read("own"))
    await desk.board.workspace(desk.top).snapshot()

    async def meanwhile(ctx: Context[Notes]) -> None:
        await ctx.files.write("a", "3")
        (desk.top / "own").write_text("3")

    with pytest.raises(FileRefused, match="something changed in it during the step"):
        await desk.step(meanwhile)
    assert desk.tree() == {"own": "3", "a": "1"}


async def test_ignored_files_are_the_directorys(desk: Desk) -> None:
    """No step sees them, or leaves any; one in the way of a file is named."""
    await desk.write(**{".gitignore": "*.log\n"})
    (desk.top / "a.log").write_text("mine")

    async def body(ctx: Context[Notes]) -> None:
        assert (await ctx.files.run([*SHELL, "ls; touch a.log b.log"])).stdout == ""
        assert [one.path for one in await ctx.files.list()] == [".gitignore"]
        await ctx.files.write("a", "1")

    await desk.step(body)
    assert desk.tree() == {".gitignore": "*.log\n", "a": "1", "a.log": "mine"}
    with pytest.raises(FileRefused, match=r"a\.log"):
        await desk.write(**{".gitignore": "", "a.log": "theirs"})
    assert desk.tree()["a.log"] == "mine"


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["../a", "/etc/passwd", "a/../../b", "", ".", "a//b", "a\0b", "a/", "\udcff"]
)
async def test_a_path_that_leads_out_is_refused(desk: Desk, path: str) -> None:
    """By every method, with the path; and so is one that is not UTF-8."""
    for call in (
        lambda ctx: ctx.files.read(path),
        lambda ctx: ctx.files.write(path, ""),
        lambda ctx: ctx.files.remove(path),
        lambda ctx: ctx.files.run(["true"], directory=path or ".."),
    ):
        error = await desk.refused(InvalidRequest, call)
        assert error.field == "path"


async def test_what_is_no_file_is_refused(desk: Desk, tmp_path: Path) -> None:
    """Links out, which are not followed; pipes and sockets, which no snapshot has."""
    (tmp_path / "secret").write_text("kept")

    async def links(ctx: Context[Notes]) -> None:
        await ctx.files.run(["ln", "-s", str(tmp_path), "out"])
        await ctx.files.run(["ln", "-s", "out/secret", "to"])

    await desk.step(links)
    for call in (
        lambda ctx: ctx.files.read("out/secret"),
        lambda ctx: ctx.files.read("to"),
        lambda ctx: ctx.files.write("out/secret", "lost"),
        lambda ctx: ctx.files.write("to", "lost"),
        lambda ctx: ctx.files.remove("out/secret"),
        lambda ctx: ctx.files.run(["true"], directory="out"),
        lambda ctx: ctx.files.run(["mkfifo", "pipe"]),
        lambda ctx: ctx.files.run([sys.executable, "-c", _SOCKET]),
        lambda ctx: _reading_a_pipe(ctx),
    ):
        await desk.refused(FileRefused, call)
    assert (tmp_path / "secret").read_text() == "kept"
    await desk.step(lambda ctx: ctx.files.remove("out"))
    assert (tmp_path / "secret").exists()


_SOCKET = "import socket; socket.socket(socket.AF_UNIX).bind('here')"


async def _reading_a_pipe(ctx: Context[Notes]) -> None:
    await ctx.files.run(["mkfifo", "pipe"])
    await ctx.files.read("pipe")


async def test_a_name_in_another_normal_form_is_refused(desk: Desk) -> None:
    """It looks like the one that is there, and on some systems it is."""
    await desk.write(café="1")
    for call in (
        lambda ctx: ctx.files.read("cafe\u0301"),
        lambda ctx: ctx.files.write("cafe\u0301", "2"),
        lambda ctx: ctx.files.write("cafe\u0301/inside", "2"),
        lambda ctx: ctx.files.remove("cafe\u0301"),
    ):
        error = await desk.refused(FileRefused, call)
        assert "normal form" in error.reason
    with pytest.raises(FileRefused, match="normal form"):
        await desk.step(lambda ctx: ctx.files.read("cafe\u0301"))


async def test_a_name_that_is_not_utf_8_is_kept(desk: Desk) -> None:
    """Commands may make one; it is listed, and comes back."""
    await desk.step(lambda ctx: ctx.files.run([sys.executable, "-c", "open(b'\\xff', 'w')"]))
    assert [path.name for path in desk.top.iterdir()] == ["\udcff"]
    assert [one.path for one in await desk.board.workspace(desk.top).list()] == ["\\xff"]


async def test_a_file_that_keeps_changing_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a step reads it."""
    real = os.read

    def reading(file: int, size: int) -> bytes:
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path.name == "half":
            with path.open("ab") as out:
                out.write(b"more")
        return real(file, size)

    monkeypatch.setattr(os, "read", reading)
    error = await desk.refused(FileRefused, lambda ctx: ctx.files.read("half"))
    assert error.reason == "it changes while it is read"


async def test_no_space_is_no_half_file(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step may go on, with the files as they were; or it ends, and so are the files."""
    await desk.write(a="1")
    real = os.rename

    def renaming(*arguments: Any, **named: Any) -> None:
        if Path(str(arguments[0])).parent.name == "drafts":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments, **named)

    async def body(ctx: Context[Notes]) -> None:
        monkeypatch.setattr(os, "rename", renaming)
        with pytest.raises(FileRefused, match="No space left"):
            await ctx.files.write("a", "2")
        monkeypatch.undo()
        assert await ctx.files.read("a") == b"1"
        await ctx.files.write("b", "2")

    await desk.step(body)
    assert desk.tree() == {"a": "1", "b": "2"}


async def test_limits_have_their_edge(desk: Desk) -> None:
    """Of paths, of files, and of what a step may have of them."""
    longest = "/".join(["d" * 200] * (WORKSPACE_PATH_BYTES_MAX // 201))
    longest += "/" + "e" * (WORKSPACE_PATH_BYTES_MAX - len(longest) - 1)
    with pytest.raises(FileRefused, match="no such file"):
        await desk.step(lambda ctx: ctx.files.read(longest))
    error = await desk.refused(LimitExceeded, lambda ctx: ctx.files.read(longest + "e"))
    assert (error.limit, error.value) == ("WORKSPACE_PATH_BYTES_MAX", WORKSPACE_PATH_BYTES_MAX + 1)
    large = bytes(LARGE_BYTES_MAX + 1)
    error = await desk.refused(LimitExceeded, lambda ctx: ctx.files.write("large", large))
    assert (error.limit, error.value) == ("LARGE_BYTES_MAX", LARGE_BYTES_MAX + 1)
    sparse = ["truncate", "-s", str(LARGE_BYTES_MAX + 1), "large"]

    async def reads(ctx: Context[Notes]) -> None:
        await ctx.files.run(sparse)
        await ctx.files.read("large")

    assert (await desk.refused(LimitExceeded, reads)).limit == "LARGE_BYTES_MAX"
    huge = [*SHELL, "for i in 0 1 2; do truncate -s 400M $i; done"]
    error = await desk.refused(LimitExceeded, lambda ctx: ctx.files.run(huge))
    assert error.limit == "WORKSPACE_BYTES_MAX"
    assert WORKSPACE_ENTRIES_MAX  # as of the workspace: what is looked at is counted there


async def test_many_files_are_put_ahead_of_the_commit(desk: Desk) -> None:
    """What does not fit into it beside all else; the head is in the step's commit all the same."""
    await desk.write(**{f"old{number}": str(number) for number in range(20)})

    async def body(ctx: Context[Notes]) -> None:
        for _ in range(OPERATIONS_MAX - 140):
            ctx.increment("public/count")
        for number in range(20):
            await ctx.files.remove(f"old{number}")
            await ctx.files.write(f"new{number}", f"new {number}")

    stepped = await desk.step(body)
    assert stepped.receipt is not None
    taken = await desk.board.workspace(desk.top).info()
    assert taken is not None
    assert (taken.revision, taken.files) == (stepped.receipt.revision, 20)
    assert await desk.board.workspace(desk.top).diff() == ()
    pattern = f"{tree_objects_prefix('private/ada/workspace')}/*"
    assert len([one async for one in desk.board.scan(pattern, keys_only=True)]) < 30


# --- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "cause"),
    [("yes", "output"), ("exec 2>&1; yes >&2", "output"), ("sleep 1000 & wait", "timeout")],
)
async def test_a_command_without_end_is_stopped(desk: Desk, command: str, cause: str) -> None:
    """With all that it started; the step cannot commit what it left, but can take it back."""
    await desk.write(a="1")
    told = desk.top.with_name("pids")
    argv = [*SHELL, f"touch b; echo $$ > {told}; {command}"]

    async def body(ctx: Context[Notes]) -> None:
        timeout_ms = 2_000 if cause == "timeout" else None
        with pytest.raises(CommandStopped) as stopped:
            await ctx.files.run(argv, timeout_ms=timeout_ms)
        assert (stopped.value.command, stopped.value.cause) == ("sh", cause)
        assert stopped.value.maximum == (timeout_ms or 10_000)
        if told.exists():  # it had begun in time
            with pytest.raises(ProcessLookupError):
                os.killpg(int(told.read_text()), 0)
        with pytest.raises(CommandStopped):
            await ctx.files.read("a")
        if ctx.state.count == 0:
            return
        await ctx.files.reset()
        assert [one.path for one in await ctx.files.list()] == ["a"]
        await ctx.files.write("c", "3")

    with pytest.raises(CommandStopped):
        await desk.step(body)
    assert desk.tree() == {"a": "1"}

    async def after(ctx: Context[Notes]) -> None:
        ctx.state.count = 1
        await body(ctx)

    await desk.step(after)
    assert desk.tree() == {"a": "1", "c": "3"}


async def test_time_and_output_of_a_command_have_their_edge(desk: Desk, tmp_path: Path) -> None:
    """As this process has set them."""
    limits = lowered(DEFAULT, command_timeout_ms=500)

    async def prints(ctx: Context[Notes]) -> None:
        maximum = ctx.limits.agents.command_output_bytes_max
        ran = await ctx.files.run(["head", "-c", str(maximum), "/dev/zero"])
        assert len(ran.stdout) == maximum
        with pytest.raises(CommandStopped) as stopped:
            await ctx.files.run(["head", "-c", str(maximum + 1), "/dev/zero"])
        assert (stopped.value.cause, stopped.value.maximum) == ("output", maximum)
        await ctx.files.reset()

    await desk.step(prints)
    async with blackboard.open(tmp_path / "hasty", limits=limits) as client:
        with pytest.raises(CommandStopped) as stopped:
            await Desk(client.board("main"), tmp_path / "in_haste").step(
                lambda ctx: ctx.files.run(["sleep", "1000"])
            )
    assert (stopped.value.cause, stopped.value.maximum) == ("timeout", 500)


async def test_too_much_output_is_found_after_the_end_of_a_command(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When this process is too busy to read while the command runs."""
    await desk.write(a="1")
    text = commands._RunningCommand._text

    async def late(running: Any, stream: Any) -> str:
        await asyncio.wait([running._status.over])
        return await text(running, stream)

    monkeypatch.setattr(commands._RunningCommand, "_text", late)

    async def prints(ctx: Context[Notes]) -> None:
        maximum = ctx.limits.agents.command_output_bytes_max
        with pytest.raises(CommandStopped) as stopped:
            await ctx.files.run([*SHELL, f"echo 2 > a; head -c {maximum + 1} /dev/zero"])
        assert (stopped.value.cause, stopped.value.maximum) == ("output", maximum)

    with pytest.raises(CommandStopped):
        await desk.step(prints)
    assert desk.tree() == {"a": "1"}


async def test_nothing_outlives_a_command(desk: Desk) -> None:
    """What it leaves in its group, and on Linux also what has left that."""
    daemon = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(1000)"
    script = (
        f"sleep 1000 & echo $!; {sys.executable} -c '{daemon}' > pid &"
        " until [ -s pid ]; do sleep 0.01; done; cat pid"
    )
    pids: list[int] = []

    async def body(ctx: Context[Notes]) -> None:
        pids.extend(map(int, (await ctx.files.run([*SHELL, script])).stdout.split()))

    await desk.step(body)
    for pid in pids if sys.platform == "linux" else pids[:1]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert len(pids) == 2


async def test_a_command_has_the_environment_that_it_is_given(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the process, where tokens are; and no shell reads its arguments."""
    monkeypatch.setenv("BLACKBOARD_TOKEN", "secret")

    async def body(ctx: Context[Notes]) -> None:
        ran = await ctx.files.run(["env"])
        assert sorted(line.split("=")[0] for line in ran.stdout.split()) == ["LANG", "PATH"]
        ran = await ctx.files.run(["/usr/bin/env"], environment={"ONLY": "this"})
        assert ran.stdout == "ONLY=this\n"
        ran = await ctx.files.run(["echo", "$HOME; touch a", "*"])
        assert ran.stdout == "$HOME; touch a *\n"
        ran = await ctx.files.run(["sh", "-c", "kill -9 $$"])
        assert ran.exit_code == -signal.SIGKILL
        with pytest.raises(FileRefused) as refused:
            await ctx.files.run(["no-such-program"])
        assert refused.value.path == "no-such-program"
        for argv in ([], "ls", ["a\0b"], [1]):
            with pytest.raises(InvalidRequest):
                await ctx.files.run(argv)  # type: ignore[arg-type]

    await desk.step(body)


async def test_a_command_whose_watcher_is_killed_is_stopped(desk: Desk) -> None:
    """By itself, for example: it may do what this process may."""

    async def body(ctx: Context[Notes]) -> None:
        with pytest.raises(CommandStopped) as stopped:
            await ctx.files.run([*SHELL, "kill -9 $PPID; sleep 1000"])
        assert stopped.value.cause == "killed"
        await ctx.files.reset()

    await desk.step(body)


async def test_a_step_leaves_no_command_running(desk: Desk) -> None:
    """One that it did not wait for is stopped, and the step fails."""
    begun = asyncio.Event()
    tasks = []

    async def running(ctx: Context[Notes]) -> None:
        run = asyncio.ensure_future(ctx.files.run([*SHELL, "touch begun; sleep 1000"]))
        tasks.append(run)
        await wait_until(lambda: _is_there(desk.beside / "stage" / "begun"))
        begun.set()

    with pytest.raises(CommandStopped) as stopped:
        await desk.step(running)
    assert stopped.value.cause == "cancelled"
    assert begun.is_set()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert desk.left() == {"lock", "index"} or desk.left() == {"lock"}


async def _is_there(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


async def test_a_command_dies_with_its_agent(desk: Desk, tmp_path: Path) -> None:
    """At kill -9; and nobody works in the directory before it is gone."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.runtime.files_killed", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert child.stdout is not None
    pid = int(await asyncio.wait_for(child.stdout.readline(), 60))
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    other = Desk(desk.boss, tmp_path / "theirs")

    async def can_work() -> bool:
        try:
            await other.step(lambda ctx: ctx.files.list())
        except WorkspaceHeld:
            return False
        except InvalidRequest:
            return True
        return True

    await wait_until(can_work)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# --- where there are none -------------------------------------------------------------------------


def test_a_command_dies_with_an_agent_that_never_heard_of_it(tmp_path: Path) -> None:
    """One that was killed while its guard started the command."""
    environment = dict(commands.default_environment())
    order = commands.CommandOrder(["sleep", "90"], environment, 1_000, 1_000)
    heard, tells = os.pipe()
    os.close(heard)
    arguments = [sys.executable, "-I", "-S", str(commands._GUARD), str(tells)]
    guard = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[tells]
    )
    os.close(tells)
    # The command has the stdout of its guard: that ends when both are gone.
    guard.communicate(order.line(tmp_path), timeout=TIMEOUT_S)
    assert guard.returncode == 0


async def test_an_agent_without_a_directory_has_no_files(desk: Desk, tmp_path: Path) -> None:
    """Nor has a trial."""

    async def body(ctx: Context[Notes]) -> None:
        await ctx.files.read("a")

    plain = Runner(Actor("ada", body), LiveBoardPort(desk.board))
    for step in (plain.step, lambda: try_step(Coder("ada", body, tmp_path / "src"))):
        with pytest.raises(InvalidRequest) as refused:
            await step()
        assert refused.value.field == "workspace"


async def test_files_are_used_within_their_step(desk: Desk) -> None:
    """Afterwards, somebody else may work there."""
    kept = []

    async def body(ctx: Context[Notes]) -> None:
        kept.append(ctx.files)
        await ctx.files.write("a", "1")

    await desk.step(body)
    for call in (
        kept[0].read("a"),
        kept[0].write("a", "2"),
        kept[0].run(["true"]),
        kept[0].reset(),
    ):
        with pytest.raises(LocalProtocolError):
            await call


async def test_what_is_no_text_is_no_content(desk: Desk) -> None:
    """Half of a surrogate pair, as of a text that was cut."""

    async def body(ctx: Context[Notes]) -> None:
        await ctx.files.write("a", "cut: \ud83d")

    refused = await desk.refused(InvalidRequest, body)
    assert refused.field == "content"
