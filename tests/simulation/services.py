"""The processes of services in a simulated run: real, but for the engine, network and clock."""

import asyncio
import contextlib
import contextvars
import random
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from websockets.frames import Close

from blackboard.archive.base import Archive
from blackboard.archive.sql import SqlArchive, archive_url
from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.errors import BlackboardError
from blackboard.integrity.signing import Seal, make_key
from blackboard.server.http.handshake import Handshake, OriginPolicy
from blackboard.server.service import Service
from tests.simulation.engines import BOARD, Engine, Process
from tests.simulation.loop import SimulatedLoop, owner, rest
from tests.simulation.network import Line, Network
from tests.simulation.trace import Trace

RESTART_S: Final = 0.5
_KEY: Final = "signing_key"


class _Gate(Handshake):
    async def ready(self) -> None:
        """Nobody has a token that could be revoked: they are not looked at twice a second."""


def _let_in(token: str) -> Principal:
    """Everybody may do everything here; a token is the name of who comes."""
    return access.operator(token)


class ServiceProcess:
    """One process: it is started, killed or stopped, and started again under another name."""

    def __init__(
        self, number: int, engine: Engine, network: Network, trace: Trace, archive: Archive | None
    ) -> None:
        self.number = number
        self.process = Process("")
        self.service: Service | None = None
        self._gate: Handshake | None = None
        self._engine = engine
        self._network = network
        self._trace = trace
        self._archive = archive
        self._lines: list[Line] = []
        self._lives = 0

    async def start(self) -> None:
        """Begin to answer. Errors: BlackboardError when the engine does not let it."""
        self._lives += 1
        self.process = Process(f"s{self.number}.{self._lives}")
        await self._within(self._start())
        self._network.doors[self.process.name] = self._accept
        self._trace.note("started", self.process.name)

    async def _start(self) -> None:
        store = await self._engine.store(self.process)
        service = Service(store, archive=self._archive)
        await service.__aenter__()
        await service.boards.use(BOARD)  # only boards that are open are swept
        self.service, self._gate = service, _Gate(service, _let_in, OriginPolicy())

    def kill(self) -> None:
        """End it as the kernel does: nothing of it is heard of any more."""
        self._trace.note("kill", self.process.name)
        self._network.doors.pop(self.process.name, None)
        for line in self._lines:
            line.server.is_dead = True
            line.cut()
        self._lines.clear()
        self._engine.kill(self.process)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.cancel_tasks_of(self.process)
        self.service = None

    async def stop(self) -> None:
        """End it in good order: connections get a notice, and waiting work is done."""
        self._trace.note("stop", self.process.name)
        self._network.doors.pop(self.process.name, None)
        service, self.service = self.service, None
        for line in self._lines:
            line.end(Close(1012, "the service stops"))
        self._lines.clear()
        if service is not None:
            await self._within(service.__aexit__(None, None, None))

    async def _within(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` as this process."""
        await asyncio.get_running_loop().create_task(work, context=self._context())

    def _context(self) -> contextvars.Context:
        context = contextvars.copy_context()
        context.run(owner.set, self.process)
        return context

    def _accept(self, line: Line) -> None:
        self._lines = [one for one in self._lines if not one.is_broken]
        self._lines.append(line)
        asyncio.get_running_loop().create_task(self._serve(line), context=self._context())

    async def _serve(self, line: Line) -> None:
        assert self._gate is not None
        end = line.server
        await self._gate(end.scope, end.receive, end.send)


class Site:
    """All services of a run, over one engine."""

    def __init__(self, processes: list[ServiceProcess], dice: random.Random) -> None:
        self.processes = processes
        self._dice = dice
        self.outages: list[tuple[float, float]] = []
        """Stretches of the loop's time in which a service was not there."""

    async def start(self) -> None:
        """Start all of them."""
        for process in self.processes:
            await self.come_back(process)

    async def bounce(self, *, kill: bool) -> None:
        """End one of those that run, and start it again after a while."""
        running = [process for process in self.processes if process.service is not None]
        if not running:
            return
        one = self._dice.choice(running)
        gone_s = asyncio.get_running_loop().time()
        if kill:
            one.kill()
        else:
            await one.stop()
        await rest(self._dice.random() * RESTART_S)
        await self.come_back(one)
        self.outages.append((gone_s, asyncio.get_running_loop().time()))

    async def come_back(self, one: ServiceProcess) -> None:
        """Start a process again, as its supervisor does."""
        while one.service is None:
            with contextlib.suppress(BlackboardError):
                await one.start()
                return
            await rest(RESTART_S)

    async def stop(self) -> None:
        """Stop all of them."""
        for process in self.processes:
            await process.stop()


def empty_archive(folder: Path) -> Path:
    """A folder with an empty archive, made once: tables take long to make, and so do not belong
    into a run."""
    empty = folder / "empty"
    if not empty.exists():
        empty.mkdir()
        (empty / _KEY).write_text(f"{'5a' * 32}\n")
        asyncio.run(_make_tables(empty))
    return empty


async def _make_tables(folder: Path) -> None:
    await (await open_archive(folder)).end()


class LentArchive(SqlArchive):
    """The one archive of all processes of a world: none of them closes it for the others, who may
    be in the middle of something."""

    async def aclose(self) -> None:
        """A process that stops is done with it."""

    async def end(self) -> None:
        """Close it."""
        await super().aclose()


async def open_archive(folder: Path, copy_of: Path | None = None) -> LentArchive:
    """The archive in `folder`, which begins as a copy of another one."""
    if copy_of is not None:
        for name in ("archive.db", _KEY):
            shutil.copy(copy_of / name, folder / name)
    seal = Seal(make_key(folder / _KEY))
    return await LentArchive.open(archive_url(folder), blobs=str(folder / "blobs"), sealer=seal)
