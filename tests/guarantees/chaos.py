"""One round of chaos: a stage, everybody's traffic, a nemesis, and the judgement at the end.

The round is held to Linearizable, Exactly once, Atomic, Ordered, No lost update, the six of a
watch, Private, the leases' L1 to L4 and L6 (Fenced), Restored whole, and the archive's own check.
L5, which is about time, is left to test_leases.py: here, time is what is taken away.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import anyio

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.commit import ENGINE, LogEntry
from tests.guarantees import checkers, lease_checkers
from tests.guarantees.chaos_traffic import ChaosRecorder
from tests.guarantees.history import History
from tests.guarantees.lease_history import Acquired, LeaseHistory, Relied, moments
from tests.guarantees.lease_record import acquired_of, miscounted, relied_of, whole_log
from tests.guarantees.lease_worker import BOARD as LEASES
from tests.guarantees.nemesis import PATIENCE_S, Nemesis
from tests.guarantees.rollback import Loss, announced, explained, losses, surviving
from tests.guarantees.stage import CLUSTER, MAIN, Scene, Stage
from tests.waiting import wait_until

WRITERS = ("ada", "bob", "eve", "joe")
WATCHED = ("", "public/pair/", "public/own/", "public/counter/")
READERS = 2
CHECKERS = (
    *checkers.GUARANTEES,
    *(name for name in lease_checkers.LEASE_GUARANTEES if name != "L5"),
    "Announced",
    "Explained",
    "Private",
    "Restored whole",
    "Verified",
)
"""What every round is held to."""
_ALWAYS = [(0, 2**60)]


@dataclass
class Round:
    """One run on one stage; `violations` is empty if every promise was kept."""

    scene: Scene
    seed: int
    seconds: float
    faults: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    history: History = field(default_factory=History)
    commits: int = 0
    """Acknowledged ones of everybody."""
    lost: int = 0
    """Acknowledged writes that a promotion rolled back; all of them were announced."""
    violations: dict[str, list[str]] = field(default_factory=dict)

    async def play(self, say: Callable[[str], None]) -> None:
        """Build the stage, break it for `seconds`, judge. `say` gets the progress."""
        async with Stage(self.scene) as stage:
            nemesis = Nemesis(stage, self.seed)
            recorder = ChaosRecorder(self.seed)
            self.history = recorder.history
            await _Cast(stage, recorder).act(
                nemesis, self.seconds, lambda: self._progress(say, nemesis)
            )
            self.faults, self.failed = dict(nemesis.faults), dict(nemesis.failed)
            with anyio.fail_after(PATIENCE_S):
                await self._judge(stage, nemesis, recorder)

    def forget(self) -> None:
        """Let go of the history; the figures stay."""
        self.history = History()

    def _progress(self, say: Callable[[str], None], nemesis: Nemesis) -> None:
        writes = len(self.history.writes)
        where = f"{self.scene.engine}, seed {self.seed}"
        say(f"{where}: {nemesis.faults.total()} faults, {writes:,} commits asked for")

    async def _judge(self, stage: Stage, nemesis: Nemesis, recorder: ChaosRecorder) -> None:
        async with stage.connect(access.operator(), 0) as client:
            await recorder.read_all(client.board(MAIN))
            recorder.look_for_leaks()
            self._judge_main(nemesis, recorder)
            await self._judge_leases(stage, nemesis, client.board(LEASES))
            for name in (MAIN, LEASES):
                verified = await client.board(name).verify()
                self._note("Verified", [str(finding) for finding in verified.findings])

    def _judge_main(self, nemesis: Nemesis, recorder: ChaosRecorder) -> None:
        history = recorder.history
        kept = surviving(history)
        self.lost = len(history.writes) - len(kept.writes)
        self.commits += sum(write.outcome == "done" for write in history.writes)
        for name, found in checkers.check(kept).items():
            self._note(name, found)
        self._note("Announced", announced(history))
        self._note("Explained", explained(history, self._kept(nemesis, MAIN, losses(history))))
        self._note("Private", recorder.leaks)

    async def _judge_leases(self, stage: Stage, nemesis: Nemesis, board: Board) -> None:
        workers = stage.workers + stage.retired
        statuses = await asyncio.gather(*(one.finish(PATIENCE_S) for one in stage.workers))
        self._note("L3", [f"a worker ended with {status}" for status in statuses if status])
        log = await whole_log(board)
        history = _lease_history(
            log,
            [one for worker in workers for one in acquired_of(worker)],
            [one for worker in workers for one in relied_of(worker)],
            self._kept(nemesis, LEASES, engine_losses(log)),
        )
        self.commits += sum(one.outcome == "done" for one in history.relied)
        for name, found in lease_checkers.check(history).items():
            self._note(name, found)
        self._note("Restored whole", miscounted(log))

    def _kept(self, nemesis: Nemesis, board: str, seen: list[Loss]) -> list[int]:
        """What promotions left. A cluster promotes when it wants to: every epoch may be one."""
        if self.scene.engine == CLUSTER:
            return [loss.kept for loss in seen]
        return nemesis.kept[board]

    def _note(self, name: str, found: list[str]) -> None:
        if found:
            self.violations.setdefault(name, []).extend(found)


def engine_losses(log: list[LogEntry]) -> list[Loss]:
    """What each epoch that the engine began may have lost; restores lose nothing."""
    begun = [entry for entry in log if entry.epoch is not None and entry.epoch.cause == ENGINE]
    return [Loss(e.epoch.from_revision, e.revision) for e in begun if e.epoch is not None]


def _lease_history(
    log: list[LogEntry], acquired: list[Acquired], relied: list[Relied], kept: list[int]
) -> LeaseHistory:
    """What is to be checked: without what promotions rolled back that left revisions `kept`."""
    gone = [loss for loss in engine_losses(log) if loss.kept in kept]

    def counts(revision: int) -> bool:
        return not any(loss.has(revision) for loss in gone)

    return LeaseHistory(
        moments(log),
        [one for one in acquired if counts(one.fence)],
        [one for one in relied if one.outcome != "done" or counts(one.revision)],
        _ALWAYS,
        log[-1].time_ms if log else 0,
    )


@dataclass
class _Cast:
    """Writers, readers and watchers, each through one of the doors."""

    stage: Stage
    recorder: ChaosRecorder
    end: int | None = None
    """The last revision, once all writers are done."""

    async def act(self, nemesis: Nemesis, seconds: float, tell: Callable[[], None]) -> None:
        """Work while `nemesis` reigns for `seconds`, and come to an end in peace."""
        async with AsyncExitStack() as clients:

            async def board(agent: str, number: int) -> Board:
                connected = self.stage.connect(access.agent(agent), number)
                return (await clients.enter_async_context(connected)).board(MAIN)

            writing = [await board(name, i) for i, name in enumerate(WRITERS)]
            reading = [await board("reader", i) for i in range(READERS)]
            watching = [await board("watcher", i) for i in range(len(WATCHED))]
            async with anyio.create_task_group() as others:
                for one in reading:
                    others.start_soon(self.recorder.read_on, one, self._is_over)
                for one, prefix in zip(watching, WATCHED, strict=True):
                    others.start_soon(self.recorder.watch_on, one, prefix, lambda: self.end)
                async with anyio.create_task_group() as writers:
                    for one, name in zip(writing, WRITERS, strict=True):
                        writers.start_soon(self.recorder.write_on, one, name)
                    await wait_until(self._has_begun, timeout_s=PATIENCE_S)
                    await nemesis.reign(seconds, tell)
                    self.recorder.over.set()
                others.cancel_scope.deadline = anyio.current_time() + PATIENCE_S
                self.end = (await writing[0].head()).revision
            assert not others.cancel_scope.cancelled_caught, "watchers did not reach the end"

    async def _has_begun(self) -> bool:
        """Whether both boards have a commit, so that there is something to break."""
        async with self.stage.connect(access.operator(), 0) as client:
            return {MAIN, LEASES} <= set(await client.boards())

    def _is_over(self) -> bool:
        return self.end is not None
