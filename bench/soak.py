"""A mixed load for many minutes: does a service that runs grow, leak or become slow?

    python -m bench.soak --minutes 30
    python -m bench.soak --minutes 30 --engine redis

A `blackboard serve` of its own, with its archive, and in this process everybody who uses it, at a
pace that leaves the machine room: writers, readers, watchers (some of which come and go), replicas
of documents, contenders for locks, checkpoints and their pruning. What they touch is bounded, so
that whatever grows is ours: keys are written over, a document is edited for two minutes and then
deleted, the log is trimmed to `--log-kept` entries and the archive to a minute of history.

Every minute the service's memory, descriptors and files and the p99 of its commits are noted; a
third of the run is warm-up, and a line is laid through the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from bench.figures import quantile
from bench.ours import serve_ours
from bench.peers import serve_redis
from bench.rows import LOOPBACK, Endpoint
from bench.servers import Lab, Server
from blackboard import Conflict, LeaseHeld, Unavailable, connect
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core.checkpoints import RetentionPolicy

BOARD = "soak"
KEYS = 1_000
WRITERS, READERS, WATCHERS, LOCKERS, REPLICAS = 8, 4, 16, 4, 2
TEXT_LENGTH_MAX = 2_000
DOCUMENTS, DOCUMENT_S = 3, 120.0
"""A document never forgets that something was deleted: one is edited so long, then comes the next.
That which was edited before is deleted meanwhile, when surely nobody has it open any more."""
LOG_KEPT = 20_000
"""Small enough that the log, and what engines remember of removed keys for as long, are at their
limit before the warm-up ends."""
CHECKPOINT_S, PRUNE_S, COMING_AND_GOING_S = 10.0, 60.0, 5.0
KEPT = RetentionPolicy(last=20, days=0, named=False, history_ms=60_000)
WARM_UP = 1 / 3
"""Of the run: caches, rings and free pages fill up first."""
MIB = 1024 * 1024

Act = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Window:
    """What was noted at the end of a few seconds."""

    seconds: float
    commits: int
    deliveries: int
    p50_ms: float
    p99_ms: float
    rss_mib: float
    descriptors: int
    files_mib: dict[str, float]


@dataclass(slots=True)
class Noted:
    """What everybody notes."""

    took_ms: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line with the least squares; 0 for fewer than two different x."""
    if not points:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return 0.0
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


class Load:
    """Everybody who uses the service; `run` until cancelled."""

    def __init__(self, endpoint: Endpoint, rate: float, noted: Noted, seed: int) -> None:
        self._url = f"ws://{LOOPBACK}:{endpoint.port}"
        self._token = endpoint.token
        self._rate = rate
        self._noted = noted
        self._dice = random.Random(seed)
        self._checkpoints = 0

    async def run(self) -> None:
        """Use the service until cancelled. What fails is counted, and tried again."""
        async with AsyncExitStack() as stack:
            boards = [await self._board(stack) for _ in range(4)]
            agents = [boards[n % 4].as_agent(f"writer-{n}") for n in range(WRITERS)]
            async with asyncio.TaskGroup() as tasks:
                for board in agents:
                    tasks.create_task(self._write(board))
                for number in range(READERS):
                    tasks.create_task(self._read(boards[number % 4]))
                for _ in range(WATCHERS - 2):
                    tasks.create_task(self._watch(boards[0]))
                for _ in range(2):
                    tasks.create_task(self._come_and_go())
                for number in range(LOCKERS):
                    tasks.create_task(self._lock(boards[number % 4].as_agent(f"locker-{number}")))
                for number in range(REPLICAS):
                    tasks.create_task(self._edit(boards[number], is_keeper=number == 0))
                tasks.create_task(self._keep_time(boards[3]))

    async def _board(self, stack: AsyncExitStack) -> Board:
        client: Client = await stack.enter_async_context(connect(self._url, token=self._token))
        return client.board(BOARD)

    async def _again(self, what: str, act: Act) -> None:
        """Do it, and count how that went."""
        try:
            await act()
        except (Conflict, LeaseHeld) as error:
            self._noted.counts[error.code] += 1
        except Unavailable as error:
            self._noted.failures[f"{what}: {error}"] += 1
            await asyncio.sleep(1)
        else:
            self._noted.counts[what] += 1

    async def _pause(self, per_second: float) -> None:
        await asyncio.sleep(self._dice.expovariate(per_second))

    async def _write(self, board: Board) -> None:
        while True:
            await self._pause(self._rate / WRITERS)
            began_s = time.perf_counter()
            await self._again("commit", self._some_write(board))
            self._noted.took_ms.append((time.perf_counter() - began_s) * 1000)

    def _some_write(self, board: Board) -> Act:
        dice, key = self._dice, f"public/k/{self._dice.randrange(KEYS)}"
        value = dice.randbytes(dice.choice((30, 300, 300, 3_000)))
        kinds: list[Act] = [
            lambda: board.put(key, value),
            lambda: board.put(key, value, ttl_ms=5_000),
            lambda: board.increment(f"public/count/{dice.randrange(10)}"),
            lambda: board.delete(key),
            lambda: board.put(f"private/{board.agent}/{dice.randrange(50)}", value),
        ]
        return dice.choices(kinds, weights=(60, 10, 10, 10, 10))[0]

    async def _read(self, board: Board) -> None:
        while True:
            await self._pause(self._rate / (2 * READERS))
            key = f"public/k/{self._dice.randrange(KEYS)}"
            if self._dice.random() < 0.95:
                await self._again("read", partial(board.get, key))
            else:
                await self._again("list", lambda: board.list("public/count/**"))

    async def _watch(self, board: Board) -> None:
        async with board.watch("public/**") as watch:
            async for revised in watch:
                self._noted.counts["delivery"] += len(revised.changes)

    async def _come_and_go(self) -> None:
        """A watcher whose connection ends again and again, and which resumes."""
        position: str | None = None
        while True:
            async with AsyncExitStack() as stack:
                board = await self._board(stack)
                watch = await stack.enter_async_context(board.watch("public/**", after=position))
                try:
                    async with asyncio.timeout(COMING_AND_GOING_S):
                        async for revised in watch:
                            self._noted.counts["delivery"] += len(revised.changes)
                except TimeoutError:
                    position = str(watch.position)
            self._noted.counts["reconnection"] += 1

    async def _lock(self, board: Board) -> None:
        async def hold() -> None:
            async with board.lock("public/plan", timeout_ms=5_000):
                await board.increment("public/held")

        while True:
            await self._pause(2)
            await self._again("lock", hold)

    async def _edit(self, board: Board, *, is_keeper: bool) -> None:
        """One document after the other; all replicas go on to the next at the same time."""
        while True:
            turn = _turn()
            await self._again("document", partial(self._edit_one, board, turn))
            if is_keeper:
                old = f"{_document(turn - 1)}/~doc"
                await self._again("deletion", partial(board.delete_prefix, old))

    async def _edit_one(self, board: Board, turn: int) -> None:
        async with board.document(_document(turn)) as memo:
            text = memo.text()
            while _turn() == turn:
                await self._pause(5)
                if len(text) > TEXT_LENGTH_MAX:
                    text.delete(0, TEXT_LENGTH_MAX // 2)
                text.insert(self._dice.randrange(len(text) + 1), "So be it. ")
                self._noted.counts["edit"] += 1

    async def _keep_time(self, board: Board) -> None:
        """A checkpoint every few seconds, of which only the last ones are kept."""
        pruned_s = time.monotonic()
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            self._checkpoints += 1
            name = f"c{self._checkpoints}"
            await self._again("checkpoint", partial(board.checkpoint, name))
            if time.monotonic() - pruned_s >= PRUNE_S:
                await self._again("prune", lambda: board.prune(KEPT))
                pruned_s = time.monotonic()


def _turn() -> int:
    """Which document it is time for."""
    return int(time.monotonic() / DOCUMENT_S)


def _document(turn: int) -> str:
    return f"public/memo-{turn % DOCUMENTS}"


class Sampler:
    """Looks at the service's process and files."""

    def __init__(self, servers: Sequence[Server], folder: Path, noted: Noted) -> None:
        self._servers, self._folder, self._noted = servers, folder, noted
        self._began_s = time.monotonic()
        self.windows: list[Window] = []

    def sample(self) -> Window:
        """One window more."""
        took_ms, self._noted.took_ms = self._noted.took_ms, []
        window = Window(
            seconds=time.monotonic() - self._began_s,
            commits=self._noted.counts["commit"],
            deliveries=self._noted.counts["delivery"],
            p50_ms=quantile(took_ms, 0.5),
            p99_ms=quantile(took_ms, 0.99),
            rss_mib=self._servers[0].rss_bytes() / MIB,
            descriptors=sum(1 for _ in Path(f"/proc/{self._servers[0].pid}/fd").iterdir()),
            files_mib={name: size / MIB for name, size in file_bytes(self._folder).items()},
        )
        self.windows.append(window)
        return window


def file_bytes(folder: Path) -> Counter[str]:
    """Bytes of the files below a folder, by what they are of."""
    found: Counter[str] = Counter()
    for path in folder.rglob("*"):
        try:
            size = path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # it was there a moment ago
            continue
        if "appendonly" in str(path):
            found["redis"] += size
        elif "blobs" in path.parts:
            found["blobs"] += size
        elif "archive" in path.name:
            found["archive"] += size
        elif "boards" in path.parts:
            found["boards"] += size
    return found


def table(windows: Sequence[Window], noted: Noted) -> str:
    """What came out, for docs/sizing.md."""
    warm = [w for w in windows if w.seconds >= windows[-1].seconds * WARM_UP]
    first, last = warm[: max(1, len(warm) // 4)], warm[-max(1, len(warm) // 4) :]
    rows = {
        "resident memory MiB": [(w.seconds, w.rss_mib) for w in warm],
        "descriptors": [(w.seconds, float(w.descriptors)) for w in warm],
        "commit p50 ms": [(w.seconds, w.p50_ms) for w in warm],
        "commit p99 ms": [(w.seconds, w.p99_ms) for w in warm],
    }
    rows |= {
        f"files of {kind} MiB": [(w.seconds, w.files_mib.get(kind, 0.0)) for w in warm]
        for kind in sorted({kind for w in warm for kind in w.files_mib})
    }
    lines = ["| | first quarter | last quarter | slope per hour |", "| --- | ---: | ---: | ---: |"]
    for name, points in rows.items():
        early, late = points[: len(first)], points[-len(last) :]
        means = [sum(y for _, y in part) / len(part) for part in (early, late)]
        cells = f"{means[0]:.2f} | {means[1]:.2f} | {slope(points) * 3600:+.2f}"
        lines.append(f"| {name} | {cells} |")
    lines.append("")
    lines.append(f"{windows[-1].seconds / 60:.1f} minutes: " + _listed(noted.counts))
    lines.append("failures: " + (_listed(noted.failures) or "none"))
    return "\n".join(lines)


def series(windows: Sequence[Window]) -> str:
    """Every window, warm-up included: memory, descriptors and latency, a line of numbers each."""
    lines = {
        "resident MiB": [f"{w.rss_mib:.0f}" for w in windows],
        "descriptors": [f"{w.descriptors}" for w in windows],
        "commit p99 ms": [f"{w.p99_ms:.0f}" for w in windows],
    }
    return "\n".join(f"{name}: {' '.join(values)}" for name, values in lines.items())


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))


async def soak(given: argparse.Namespace) -> tuple[list[Window], Noted]:
    """Run the load and note; RuntimeError when a part of the load ended."""
    noted = Noted()
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), fetch=False)
        try:
            servers, endpoint = await _serve(lab, given.engine, given.log_kept)
            sampler = Sampler(servers, Path(folder), noted)
            load = asyncio.create_task(Load(endpoint, given.rate, noted, given.seed).run())
            deadline_s = time.monotonic() + given.minutes * 60
            while time.monotonic() < deadline_s:
                await asyncio.wait([load], timeout=given.sample_s)
                if load.done():
                    await load
                    raise RuntimeError("the load ended")
                print(json.dumps(asdict(sampler.sample())), file=sys.stderr, flush=True)
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
        finally:
            lab.close()
    return sampler.windows, noted


async def _serve(lab: Lab, engine: str, log_kept: int) -> tuple[list[Server], Endpoint]:
    kept = f"BLACKBOARD_LOG_KEPT_REVISIONS={log_kept}"
    if engine == "embedded":
        server, endpoint = await serve_ours(lab, "soaked", (), archive=(kept,))
        return [server], endpoint
    redis = await serve_redis(lab, "redis-of-soaked", "always")
    url = f"redis://{LOOPBACK}:{redis.port}"
    key = lab.folder / "signing_key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    archive = (
        kept,
        f"BLACKBOARD_ARCHIVE=sqlite:///{lab.folder}/archive.db",
        f"BLACKBOARD_BLOBS={lab.folder}/blobs",
        f"BLACKBOARD_SIGNING_KEY={key}",
    )
    server, endpoint = await serve_ours(lab, "soaked", ("--engine", url), archive=archive)
    return [server, redis], endpoint


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--engine", choices=("embedded", "redis"), default="embedded")
    parser.add_argument("--rate", type=float, default=100, help="commits per second, in all")
    parser.add_argument("--log-kept", type=int, default=LOG_KEPT, help="log entries of the board")
    parser.add_argument("--sample-s", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write every window")
    given = parser.parse_args()
    windows, noted = asyncio.run(soak(given))
    if given.json:
        given.json.write_text(json.dumps([asdict(window) for window in windows]))
    print(table(windows, noted))
    print(f"each {given.sample_s:g} s:\n{series(windows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
