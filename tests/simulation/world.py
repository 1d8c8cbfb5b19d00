"""One simulated run, from a seed to a verdict."""

import asyncio
import atexit
import contextlib
import gc
import logging
import random
import shutil
import tempfile
import time
import traceback
import warnings
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from blackboard.archive.base import Archive
from blackboard.errors import BlackboardError
from blackboard.limits import DEFAULT
from blackboard.server.sweeper import Sweeper
from tests.guarantees.cut_team import AGENTS
from tests.simulation import judge
from tests.simulation.actors import Locker, Stage, Watcher, Writer
from tests.simulation.engines import Engine, SqliteEngine, let_go, make_engine
from tests.simulation.loop import SimulatedLoop, rest
from tests.simulation.nature import BEGAN_MS, nature
from tests.simulation.network import Network
from tests.simulation.operator import Operator, judge_bytes, judge_freezes, judge_history
from tests.simulation.plan import Plan
from tests.simulation.services import ServiceProcess, Site, empty_archive, open_archive
from tests.simulation.team import Agent, Chronicler, Ghost, judge_team
from tests.simulation.trace import Trace
from tests.simulation.witness import Witness

LIMIT_S: Final = 600.0
"""Simulated seconds after which an unfinished actor counts as hanging."""
_BEGIN_S: Final = 0.2
_BETWEEN_S: Final = 0.6
_DOWN_MS: Final = 2_000


@dataclass(slots=True)
class Verdict:
    """What one run did, and what was found against it."""

    plan: Plan
    findings: judge.Findings
    trace: Trace
    commits: int = 0
    seconds: float = 0.0
    """Simulated."""
    cpu_s: float = 0.0

    def __str__(self) -> str:
        lines = [f"{name}: {one}" for name, found in self.findings.items() for one in found]
        return "\n".join([str(self.plan), *lines, f"replay with: {self.plan.command}"])


@dataclass
class World:
    """Everything of one run."""

    plan: Plan
    folder: Path
    trace: Trace
    loop: SimulatedLoop
    empty: Path
    """Where an empty archive is, to be copied."""
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine: Engine = make_engine(self.plan, self.loop, self.folder, self.trace)
        self.network = Network(self.plan, self.trace)
        self.stage = Stage(self.plan, self.network, self.trace)
        self.witness = Witness(self.engine)
        self.engine.before_trim = self.witness.collect
        self.dice = random.Random(f"deeds {self.plan.seed}")
        self.site = Site([], self.dice)
        self.ghost = Ghost()
        self.chronicler = Chronicler(self.stage)
        self.operator = Operator(self.stage)

    async def run(self) -> judge.Findings:
        """Let everybody work while things go wrong; then heal, wait, and judge."""
        archive = await open_archive(self.folder, self.empty) if self.plan.has_past else None
        self.site.processes += [
            ServiceProcess(number, self.engine, self.network, self.trace, archive)
            for number in range(self.plan.services)
        ]
        await self.site.start()
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._play()
        except TimeoutError:
            return {"Liveness": [f"somebody waits for more than {LIMIT_S} s", *self._who_waits()]}
        self.witness.collect()
        findings = judge.judge(self.stage.records, self.witness)
        findings |= self._judge_leases() | self._judge_freezes()
        if archive is not None:
            findings |= await self._judge_past(archive)
        await self.site.stop()
        if archive is not None:
            await archive.end()
        return findings | judge_bytes(self.operator.acts, self.folder, self.engine)

    async def _play(self) -> None:
        loop = asyncio.get_running_loop()
        watchers = [
            loop.create_task(Watcher(self.stage, f"w{number}", prefix).run(), name=f"w{number}")
            for number, prefix in enumerate(("public/", "public/counter/")[: self.plan.watchers])
        ]
        workers = [
            loop.create_task(work, name=f"worker {number}")
            for number, work in enumerate(self._workers())
        ]
        fate = loop.create_task(self._fate(), name="fate")
        operator = loop.create_task(self.operator.run(), name="operator")
        await asyncio.gather(*workers)
        await fate
        await operator
        self.network.heal()
        self.stage.head = await self._settled_head()
        await asyncio.gather(*watchers)

    def _workers(self) -> list[Coroutine[Any, Any, None]]:
        plan, stage = self.plan, self.stage
        return [
            *(Writer(stage, f"a{number}").run() for number in range(plan.writers)),
            *(Locker(stage, f"l{number}").run() for number in range(plan.lockers)),
            *(Agent(stage, self.ghost, name).run() for name in AGENTS[: plan.agents]),
        ]

    async def _settled_head(self) -> int:
        """The head, once what is still under way has arrived."""
        await rest(10.0)
        async with self.stage.board("end") as board:
            while True:
                try:
                    return (await board.head()).revision
                except BlackboardError:
                    await rest(0.2)

    # --- what goes wrong --------------------------------------------------------------------------

    async def _fate(self) -> None:
        """Deeds at random times, of the kinds that the plan has."""
        deeds = {
            "kill": lambda: self.site.bounce(kill=True),
            "restart": self._restart,
            "failover": self._fail_over,
            "failed sync": self._fail_sync,
            "jump": self._jump,
            "trim": self._trim,
            "checkpoint": self.chronicler.checkpoint,
            "restore": self.chronicler.restore,
            "branch": self.chronicler.branch,
        }
        possible = [name for name in deeds if name in self.plan.faults]
        await rest(_BEGIN_S)
        for _ in range(self.plan.deeds if possible else 0):
            await rest(self.dice.random() * _BETWEEN_S)
            name = self.dice.choice(possible)
            self.trace.note(name)
            await deeds[name]()

    async def _restart(self) -> None:
        """The engine's process ends; on the embedded engine that is the service's."""
        if self.plan.engine == "redis":
            self.witness.collect()
            self.engine.restart()
        else:
            await self.site.bounce(kill=False)

    async def _fail_over(self) -> None:
        """A replica that is behind takes over; on the embedded engine the power fails."""
        marked_s = self.loop.time()  # what is swept from here on will be as if it never was
        self.engine.mark()
        await rest(self.dice.random() * _BETWEEN_S)
        self.witness.collect()
        if self.plan.engine == "redis":
            if self.engine.fail_over():
                self.witness.lose(self.loop.time())
                self.site.outages.append((marked_s, self.loop.time()))
            return
        [process] = self.site.processes
        process.kill()
        gone_s = self.loop.time()
        if self.engine.fail_over():
            self.trace.note("power loss")
            self.witness.lose(gone_s)
            gone_s = marked_s
        await self.site.come_back(process)
        self.site.outages.append((gone_s, self.loop.time()))

    async def _fail_sync(self) -> None:
        """A sync fails; somebody restarts the service, after the page cache or the power went."""
        assert isinstance(self.engine, SqliteEngine)
        self.engine.fail_sync()
        await rest(self.dice.random() * _BETWEEN_S)
        if not self.engine.has_failed_sync:
            self.witness.collect()
        [process] = self.site.processes
        process.kill()
        gone_s = self.loop.time()
        fate = self.dice.choice(("kept", "evicted", "power"))
        if fate != "kept" and self.engine.has_failed_sync:
            self.engine.drop_pages(with_power=fate == "power")
            self.trace.note("dropped pages", fate)
        self.engine.mend()
        await self.site.come_back(process)
        self.site.outages.append((gone_s, self.loop.time()))

    async def _jump(self) -> None:
        self.engine.clock.jump(self.dice.choice((-1, 1)) * self.dice.randrange(_DOWN_MS))

    async def _trim(self) -> None:
        """Cut the log as the services do, only more of it."""
        running = [one for one in self.site.processes if one.service is not None]
        if not running:
            return
        service = self.dice.choice(running).service
        assert service is not None
        await Sweeper(service.boards, "0").trim(self.dice.randrange(1, 10))

    def note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Nobody took an exception: that is a bug, wherever it comes from."""
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {_told(error)}")

    # --- the verdict ------------------------------------------------------------------------------

    async def _judge_past(self, archive: Archive) -> judge.Findings:
        async with self.stage.board("end") as board:
            log, branches = self.witness.log(), self.chronicler.branches
            found = await judge_team(board, self.ghost, log, branches)
            acts = self.operator.acts
            return found | (await judge_history(acts, board, archive) if acts.any else {})

    def _judge_freezes(self) -> judge.Findings:
        acts, refused = self.operator.acts, self.stage.records.refused
        found = judge_freezes(acts, self.witness, refused)
        return {"Frozen": found} if found else {}

    def _judge_leases(self) -> judge.Findings:
        swept_ms = DEFAULT.boards.sweep_interval_ms  # until its first sweep it does nothing
        outages = [
            (BEGAN_MS + int(gone_s * 1000), BEGAN_MS + int(back_s * 1000) + swept_ms)
            for gone_s, back_s in self.site.outages
        ]
        clock = self.engine.clock
        found = judge.judge_leases(
            self.stage.records,
            self.witness,
            outages + clock.jumps,
            clock.now_ms(),
            clock.set_back_ms,
        )
        if {"late call", "lost call", "lost answer", "jump"} & self.plan.faults:
            found.pop("L5", None)  # a sweep that had no answer is late
        return found

    def _who_waits(self) -> list[str]:
        return [f"{task.get_name()}" for task in self.loop.tasks.values()]


def simulate(plan: Plan) -> Verdict:
    """Carry a plan out and judge it."""
    with _as_a_kernel_does():
        return _simulate(plan)


@contextlib.contextmanager
def _as_a_kernel_does() -> Iterator[None]:
    """Close what processes left open that were killed; nobody is to be warned of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            let_go()
            # All of a run is young: there was no collection in it. A finalizer may bring back what
            # belongs to it; that is in the next generation then.
            gc.collect(0)
            gc.collect(1)
            if was_enabled:
                gc.enable()


def _simulate(plan: Plan) -> Verdict:
    seed, began_s = plan.seed, time.process_time()
    loop, empty = SimulatedLoop(), empty_archive(_root())
    folder = Path(tempfile.mkdtemp(prefix="run", dir=_root()))
    trace = Trace(bytes(folder))
    try:
        with nature(seed, loop), _quiet():
            asyncio.set_event_loop(loop)
            world = World(plan, folder, trace, loop, empty)
            loop.set_exception_handler(world.note_failure)
            findings = _findings(loop, world)
            verdict = Verdict(plan, findings, trace, len(world.witness.entries), loop.time())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        shutil.rmtree(folder, ignore_errors=True)
    verdict.cpu_s = time.process_time() - began_s
    return verdict


def _findings(loop: SimulatedLoop, world: World) -> judge.Findings:
    """What a run comes to; one that breaks off is a finding itself."""
    try:
        findings = loop.run_until_complete(world.run())
    except Exception as error:  # noqa: BLE001 - it is reported
        world.errors.append(_told(error))
        findings = {}
    _end(loop)
    if world.errors:
        findings["Failure"] = world.errors
    return findings


def _told(error: BaseException | None) -> str:
    """An exception, and where it comes from, the innermost first."""
    if error is None:
        return ""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{error!r} at {where}"


def _end(loop: SimulatedLoop) -> None:
    """Cancel what is left, as `asyncio.run` does."""
    for _ in range(5):
        left = list(loop.tasks.values())
        if not left:
            break
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())


@lru_cache
def _root() -> Path:
    """The folder of this process, in memory where that is possible."""
    memory = Path("/dev/shm")
    root = tempfile.mkdtemp(prefix="simulation-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return Path(root)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What services log while everything goes wrong is part of the plan."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
