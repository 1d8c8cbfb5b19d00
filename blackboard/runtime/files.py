"""The files of an agent, as its steps see them: `ctx.files`.

    async def step(self, ctx: Context[Notes]) -> None:
        source = (await ctx.files.read("src/main.py")).decode()
        await ctx.files.write("src/main.py", source.replace("1", "2"))
        tested = await ctx.files.run(["python", "-m", "pytest", "-q"])
        ctx.state.passed = tested.exit_code == 0

Invariants
- What a step does to its files takes effect with its commit, or not at all; a step that runs again
  sees them as they were.
- After a command that was stopped, nothing says which of its files are whole: the step commits no
  files, unless it takes them back.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from blackboard.client.step import Step
from blackboard.client.workspace.objects import CommitRoom
from blackboard.core.commit import ABSENT, Append, KeyAt, Op, Put
from blackboard.errors import BlackboardError, CommandStopped, LocalProtocolError
from blackboard.limits import COMMIT_BYTES_MAX, OPERATIONS_MAX, VALUE_BYTES_MAX, AgentLimits
from blackboard.runtime.commands import (
    CommandOrder,
    CommandResult,
    default_environment,
    run_command,
)
from blackboard.units import Milliseconds
from blackboard.wire.codec import encode_text

if TYPE_CHECKING:
    from blackboard.client.workspace.step_files import StepFiles
    from blackboard.client.workspace.workspace import WorkspaceFile

_OWN_OPS: Final = 128
"""Operations that the runtime adds to those of a step, and to spare."""
_OWN_BYTES: Final = VALUE_BYTES_MAX + 64 * 1024
"""Likewise: the state of the agent, and what is around the values."""
_BYTES: Final = COMMIT_BYTES_MAX // 2
"""Of files in a step's commit; more is put ahead of it, because other commits wait meanwhile."""


class AgentFiles:
    """The files of the agent in the present step.

    Paths are relative, with slashes, in UTF-8, such as `src/main.py`. Errors of all methods:
    FileRefused, naming the path, with what the file system says, for what is no ordinary file, and
    for a link, which is never followed; InvalidRequest for a path that leads out; LimitExceeded
    (LARGE_BYTES_MAX, WORKSPACE_PATH_BYTES_MAX); UnsavedFiles when somebody else changed the
    directory. After each of them the files are as before the call. Cancellation: likewise, or it
    was done.
    """

    def __init__(self, tree: "StepFiles", step: Step, limits: AgentLimits) -> None:
        self._tree = tree
        self._step = step
        self._limits = limits
        self._is_used = False
        self._broken: BlackboardError | None = None
        self._running: set[asyncio.Task[CommandResult]] = set()
        self._is_open = True

    async def read(self, path: str) -> bytes:
        """The content of the file at `path`, as this step sees it."""
        return await self._tree.read(self._path(path))

    async def write(
        self, path: str, content: bytes | str, *, executable: bool | None = None
    ) -> None:
        """Write a file, text as UTF-8, and the directories above it. With None it stays executable
        if it is. Errors: InvalidRequest for half of a surrogate pair in a text."""
        data = encode_text(content, "content") if isinstance(content, str) else content
        await self._tree.write(self._path(path), data, executable)

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with everything in it."""
        await self._tree.remove(self._path(path))

    async def list(self, below: str = "") -> "tuple[WorkspaceFile, ...]":
        """What is below a directory, at any depth, by path: files, links and directories, but for
        what ignore rules leave out."""
        return await self._tree.list(self._path(below, top=True))

    async def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: str = "",
        timeout_ms: Milliseconds | None = None,
    ) -> CommandResult:
        """Run a command in the workspace, without a shell and without input; returns its exit code
        and what it printed.

        It sees the files as this step does, and what it changes is part of the step. It has the
        rights of this process. Its `environment` is the given one alone; by default, PATH and a
        LANG for UTF-8. It is not journaled: a step that runs again runs it again. What should
        happen once, outside of the files, goes through `ctx.tool`.

        Errors: CommandStopped when it ran for more than `timeout_ms` (by default
        `command_timeout_ms`), or printed more than `command_output_bytes_max`; then the files can
        be used again, and the step can commit, only after `reset`. FileRefused when it cannot be
        started. Cancellation: it is stopped, as after an error.
        """
        # Not journaled: an exit code without what the command did to the files would be wrong.
        limits, path = self._limits, self._path(directory, top=True)
        order = CommandOrder(
            argv,
            default_environment() if environment is None else environment,
            limits.command_timeout_ms if timeout_ms is None else timeout_ms,
            limits.command_output_bytes_max,
        )
        where = await self._tree.directory(path)
        assert self._tree.lock is not None
        # A task, so that `close` can stop it when the step returns without waiting for it.
        running = asyncio.ensure_future(run_command(order, where, self._tree.lock))
        self._running.add(running)
        try:
            return await running
        except CommandStopped as stopped:
            self._broken = stopped
            raise
        except asyncio.CancelledError:
            # It was ended between two writes, as by its timeout.
            self._broken = CommandStopped(order.argv[0], "cancelled", 0)
            raise
        finally:
            self._running.discard(running)

    async def reset(self) -> None:
        """Take back all that this step did to the files."""
        self._check_open()
        await self._stop()
        self._broken = None
        await self._tree.reset()

    def _path(self, path: str, *, top: bool = False) -> bytes:
        from blackboard.client.workspace.inside import checked

        self._check_open()
        if self._broken is not None:
            raise self._broken
        self._track()
        return checked(path, top=top)

    def _check_open(self) -> None:
        if not self._is_open:
            raise LocalProtocolError("files are used within their step only")

    def _track(self) -> None:
        """The step rests on the files: its commit is refused if they change meanwhile."""
        if not self._is_used:
            self._is_used = True
            if self._tree.head is not None:
                self._step.saw(self._tree.head)
            else:
                self._step.expect(KeyAt(self._tree.head_key, ABSENT))

    # --- called by the runner ---------------------------------------------------------------------

    async def close(self) -> None:
        """The step has returned: nothing changes its files any more. Stops what still runs."""
        # First: a task that the step left behind starts no other command while this one ends.
        self._is_open = False
        await self._stop()

    async def put(self) -> None:
        """Add the files to the step's commit, if any changed. Errors: as of `StepFiles.prepare`;
        CommandStopped when they cannot be relied on."""
        if self._broken is not None:
            raise self._broken
        publication = await self._tree.prepare(_room(self._step.ops))
        if publication is not None:
            for key, value in publication.puts:
                self._step.put(key, value)
            for key in publication.deletes:
                self._step.delete(key)
            self._step.expect(*publication.conditions)

    async def _stop(self) -> None:
        running = [*self._running]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


def _room(ops: Sequence[Op]) -> CommitRoom:
    """How much of its commit a step leaves to its files."""
    values = sum(len(op.value) for op in ops if isinstance(op, Put | Append))
    count = OPERATIONS_MAX - len(ops) - _OWN_OPS
    return CommitRoom(max(count, 0), max(min(COMMIT_BYTES_MAX - values - _OWN_BYTES, _BYTES), 0))
