"""The engines of a simulated run: the machine that a board is kept on, and how it fails.

An engine outlives the services that use it. `store()` is the way of one simulated process to it;
`kill` ends such a process as the kernel does, without a word.
"""

import asyncio
import contextlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from blackboard.engines.base import Store
from blackboard.engines.redis.driver import (
    Argument,
    Listening,
    NotNowError,
    RetryBudget,
    ScriptMissingError,
)
from blackboard.engines.redis.lua import COMMIT, COMPACT
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite import follower
from blackboard.engines.sqlite.board import Threads
from blackboard.engines.sqlite.file import BoardFile, Level
from blackboard.engines.sqlite.rows import Taken
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, Unavailable
from blackboard.limits import DEFAULT
from blackboard.units import Milliseconds
from tests.simulation.fake_redis import FakeRedis
from tests.simulation.loop import SimulatedExecutor, SimulatedLoop, rest
from tests.simulation.nature import BEGAN_MS
from tests.simulation.plan import Plan
from tests.simulation.trace import Trace

T = TypeVar("T")

BOARD: Final = "main"
commit_script = COMMIT
"""What carries out commits on Redis; a planted fault puts another one here."""
_SMALL_PARTS: Final = {"FOLLOW_ROWS": 12, "TOGETHER_ROWS": 5, "SCATTERED_ROWS": 3}
"""So that within a short run the tables of a board follow its log, and in parts."""
_USUAL_PARTS: Final = {name: getattr(follower, name) for name in _SMALL_PARTS}
_LATENCY_S: Final = 0.001
_SYNC_S: Final = 0.002


class Engine(Protocol):
    """What the faults of a run need of an engine."""

    clock: "Clock"
    before_trim: Callable[[], None]
    """Called before anything is taken from a log."""

    async def store(self, process: "Process") -> Store:
        """Open the engine for a process."""

    def kill(self, process: "Process") -> None:
        """The process ends; what it asked for and is under way may still happen."""

    def restart(self) -> None:
        """The engine's process ends and begins again. It has all that it acknowledged."""

    def mark(self) -> None:
        """Remember what there is now: a later `fail_over` goes back to it."""

    def fail_over(self) -> bool:
        """Lose everything since `mark`; False when this engine would not."""


class Clock:
    """The engine's clock. `jumps` are (from, until) of those forward, `set_back_ms` the others."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._offset_ms = 0
        self.jumps: list[tuple[Milliseconds, Milliseconds]] = []
        self.set_back_ms: Milliseconds = 0

    def now_ms(self) -> Milliseconds:
        """What it shows."""
        return BEGAN_MS + int(self._loop.time() * 1000) + self._offset_ms

    def jump(self, by_ms: int) -> None:
        """Somebody sets it."""
        before_ms = self.now_ms()
        self._offset_ms += by_ms
        if by_ms > 0:
            self.jumps.append((before_ms, self.now_ms()))
        else:
            self.set_back_ms -= by_ms


class Process:
    """A simulated process that has an engine open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False


# --- Redis ----------------------------------------------------------------------------------------


class RedisEngine:
    """One server, and perhaps a replica of it that has fallen behind."""

    def __init__(self, plan: Plan, loop: SimulatedLoop, server: FakeRedis, trace: Trace) -> None:
        self.clock = Clock(loop)
        self.plan = plan
        self.server = server
        self.trace = trace
        self.dice = random.Random(f"calls {plan.seed}")
        self.changed = asyncio.Event()
        self.before_trim: Callable[[], None] = lambda: None
        self._runs = 0
        self._behind: dict[bytes, Any] | None = None
        server.now_ms = self.clock.now_ms
        server.become({})
        self.restart()

    async def store(self, process: Process) -> Store:
        """As `Engine.store`."""
        return RedisStore(_Driver(self, process), "simulated", commit=commit_script)

    def kill(self, process: Process) -> None:
        """As `Engine.kill`."""
        process.is_dead = True

    def restart(self) -> None:
        """As `Engine.restart`."""
        self._runs += 1
        self.server.run_id = f"{self._runs:040x}"
        self.server.forget_scripts()
        self.poke()

    def mark(self) -> None:
        """As `Engine.mark`: from here on the replica gets nothing."""
        self._behind = self.server.snapshot()

    def fail_over(self) -> bool:
        """As `Engine.fail_over`: the replica takes over."""
        if self._behind is None:
            return False
        self.server.become(self._behind)
        self._behind = None
        self.restart()
        return True

    def poke(self) -> None:
        """Wake who blocks on a stream."""
        self.changed.set()
        self.changed = asyncio.Event()


class _Driver:
    """The connections of one process to the server; one command each, as ours are."""

    limits = DEFAULT.engine

    def __init__(self, engine: RedisEngine, process: Process) -> None:
        self._engine = engine
        self._process = process

    async def send(self, trial: RetryBudget, key: str, *command: Argument) -> Any:
        """As `OneServer.send`."""
        if self._process.is_dead:
            raise Unavailable(what="engine", reason="this process is dead")
        if command[0] == "XREAD":
            return await self._wait(command)
        before, trial.maybe_executed = trial.maybe_executed, True
        try:
            reply = await self._call(command)
        except (ScriptMissingError, Corrupt):
            trial.maybe_executed = before
            raise
        trial.maybe_executed = before
        return reply

    async def _call(self, command: tuple[Argument, ...]) -> Any:
        """Send it, and wait for its reply as long as the driver does. It arrives whether or not
        somebody waits."""
        loop, fault = asyncio.get_running_loop(), self._fault()
        reply = loop.create_future()
        if fault == "lost call":
            raise NotNowError("the connection broke")
        late_s = self._draw() * (8.0 if fault == "late call" else 0.0)
        loop.call_later(self._latency() + late_s, self._execute, command, reply)
        try:
            async with asyncio.timeout(self.limits.engine_timeout_ms / 1000):
                found = await reply
        except TimeoutError as error:
            raise NotNowError("no answer in time") from error
        await rest(self._latency())
        if fault == "lost answer":
            raise NotNowError("the connection broke")
        return found

    def _execute(self, command: tuple[Argument, ...], reply: "asyncio.Future[Any]") -> None:
        """The command arrived: the server executes it, also for a process that is gone."""
        engine, result = self._engine, None
        failure: Exception | None = None
        if command[1:2] in ((COMPACT.sha,), (COMPACT.text,)):
            engine.before_trim()
        try:
            result = engine.server.execute(*command)
        except NoScriptError:
            failure = ScriptMissingError()
        except ResponseError as error:
            failure = Corrupt(what="engine", reason=str(error))
        shown = engine.trace.short(repr(failure or result).encode())
        engine.trace.note("call", f"{self._process.name} {command[0]!s} {shown}")
        if str(command[0]).startswith("EVAL"):
            engine.poke()
        if reply.done():
            return
        if failure is not None:
            reply.set_exception(failure)
        else:
            reply.set_result(result)

    async def _wait(self, command: tuple[Argument, ...]) -> Any:
        """XREAD: until the stream has something new, or the time is over."""
        block_ms = int(command[command.index("BLOCK") + 1])
        stream, after = command[-2:]
        found = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(block_ms / 1000):
                while not (found := self._newer(str(stream), str(after))):
                    await self._engine.changed.wait()
        return found

    def _newer(self, stream: str, after: str) -> Any:
        return self._engine.server.execute("XRANGE", stream, f"({after}", "+", "COUNT", 1)

    def listening(self, key: str) -> contextlib.AbstractAsyncContextManager[Listening]:
        """Pub/sub messages are not part of a board's history, and not simulated."""
        raise NotNowError("there is no pub/sub here")

    async def ask_all(self, *command: Argument) -> list[Any]:
        """As `OneServer.ask_all`."""
        if command[0] == "CONFIG":
            return [[b"appendfsync", b"everysec"]]
        return [await self.send(RetryBudget(), "", *command)]

    async def aclose(self) -> None:
        """As `OneServer.aclose`."""

    def _fault(self) -> str | None:
        plan = self._engine.plan
        for fault in ("lost call", "lost answer", "late call"):
            if fault in plan.faults and self._draw() < plan.rate:
                self._engine.trace.note(fault, self._process.name)
                return fault
        return None

    def _draw(self) -> float:
        return self._engine.dice.random()

    def _latency(self) -> float:
        return _LATENCY_S * (0.2 + self._draw())


# --- SQLite ---------------------------------------------------------------------------------------


class _FailingSync:
    """A connection whose next commit reaches the page cache and no disk."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:
        """As that of a connection."""
        done = self._connection.execute(statement, *given)
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class SqliteEngine:
    """A directory; one process at a time has it open."""

    def __init__(self, plan: Plan, loop: SimulatedLoop, folder: Path, trace: Trace) -> None:
        self.clock = Clock(loop)
        self.before_trim: Callable[[], None] = lambda: None
        self._loop = loop
        self._folder = folder
        self._level: Level = "disk" if plan.level == "disk" else "memory"
        self._dice = random.Random(f"disk {plan.seed}")
        self._open: tuple[SqliteStore, SimulatedExecutor] | None = None
        self._fails = False
        self._unsynced: Path | None = None
        """The file of the board whose sync failed."""

    async def store(self, process: Process) -> Store:
        """As `Engine.store`."""
        threads = SimulatedExecutor(self._loop, self._delay_s, self._watch)
        store = await SqliteStore.at(
            self._folder / "data",
            self._level,
            clock_ns=lambda: self.clock.now_ms() * 1_000_000,
            threads=Threads(threads, threads),
        )
        self._open = store, threads
        return store

    def kill(self, process: Process) -> None:
        """As `Engine.kill`: the files are as the last finished call left them."""
        process.is_dead = True
        if self._open is None:
            return
        (store, threads), self._open = self._open, None
        threads.kill()
        for board in store._boards.values():
            board._file.abandon()
        store._taken.lock.release()

    def restart(self) -> None:
        """As `Engine.restart`: there is no process but the service's."""

    def mark(self) -> None:
        """As `Engine.mark`: from here on nothing reaches the disk, unless it is synced."""
        if self._level == "memory":
            _copy(self._folder / "data" / "boards", self._folder / "kept")

    def fail_over(self) -> bool:
        """As `Engine.fail_over`: the power fails. What was synced is there."""
        kept = self._folder / "kept"
        if not kept.exists() or self._open is not None:
            return False
        _copy(kept, self._folder / "data" / "boards")
        shutil.rmtree(kept)
        return True

    def fail_sync(self) -> None:
        """The sync of the next transaction fails."""
        self._fails = True

    @property
    def has_failed_sync(self) -> bool:
        """Whether a sync failed since the last `mend`."""
        return self._unsynced is not None

    def mend(self) -> None:
        """From here on syncs succeed."""
        self._fails, self._unsynced = False, None

    def drop_pages(self, *, with_power: bool) -> None:
        """Nothing of the transaction whose sync failed is there any more; with the power goes what
        was never synced besides. No process may have the files."""
        path = self._unsynced
        assert path is not None
        assert self._open is None
        for suffix in ("", "-wal"):
            kept = self._folder / f"unsynced{suffix}"
            shutil.copyfile(kept, path.with_name(f"{path.name}{suffix}"))
        if with_power:
            for mark in path.parent.glob(f"{path.name}.suspect"):
                mark.unlink()

    def file_of(self, board: str) -> BoardFile | None:
        """The file of a board that is open."""
        opened = self._open and self._open[0]._boards.get(board)
        return opened._file if opened else None

    def path_of(self, board: str) -> Path:
        """Where the file of a board is."""
        return self._folder / "data" / "boards" / f"{board}.db"

    def _watch(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        """A thread does `work`."""
        if any(isinstance(one, Taken) and one.log_below is not None for one in arguments):
            self.before_trim()
        if self._fails and any(isinstance(one, Taken) for one in arguments):
            return self._unsynced_write(work, arguments)
        result = work(*arguments)
        if (self._folder / "kept").exists() and isinstance(result, tuple):
            self.mark()  # a board was opened: that, and the epoch that began with it, was synced
        return result

    def _unsynced_write(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        """A transaction whose sync fails: keep what is on the disk without it."""
        file: BoardFile = work.__self__._file  # type: ignore[attr-defined]
        self.before_trim()  # from here on a reader of the log finds more than was acknowledged
        self._fails, self._unsynced = False, file.path
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{file.path}{suffix}", self._folder / f"unsynced{suffix}")
        file._writer = _FailingSync(file._writer)  # type: ignore[assignment]
        return work(*arguments)

    def _delay_s(self) -> float:
        return _SYNC_S * self._dice.random()


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*-shm"))


_server: FakeRedis | None = None


def make_engine(plan: Plan, loop: SimulatedLoop, folder: Path, trace: Trace) -> Engine:
    """The engine of a plan, empty."""
    global _server
    if plan.engine == "sqlite":
        vars(follower).update(_SMALL_PARTS)
        return SqliteEngine(plan, loop, folder, trace)
    if _server is None:
        _server = FakeRedis(_no_clock)
    return RedisEngine(plan, loop, _server, trace)


def let_go() -> None:
    """Keep nothing of a run that is over: its clock has the loop, and that all the rest."""
    vars(follower).update(_USUAL_PARTS)
    if _server is not None:
        _server.now_ms = _no_clock
        _server.become({})


def _no_clock() -> Milliseconds:
    return 0
