"""One data directory for several processes that each were started by a client of their own.

The first serves it, inside its own process and on a port of this machine; the others connect. When
that process ends, however, one of the others takes over: on the same port if it is free, so that
their connections come back by themselves, and repeat what was not answered.

Invariants
- who serves is decided by the lock `mcp.lock` of the directory, which the operating system takes
  from a process that was killed; the engine's own lock still guards the data.
- nothing outlives these processes: there is no process in the background.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from blackboard.client.cancellation import finish
from blackboard.errors import DataDirectoryInUse, InvalidRequest, Unavailable
from blackboard.integrity.private_files import FILE_MODE, read_text

if TYPE_CHECKING:
    from blackboard.server.http.serve import Serving
    from blackboard.server.settings import Settings

ELECTION_S: Final = 0.1
"""How often a process tries to serve: how long the directory is without a service at most."""
RETRY_S: Final = 1.0
"""The pause after a failure to serve, and between looks at a service that is not ours."""
START_S: Final = 30.0
"""How long to wait until the process that serves is ready."""
PORTS: Final = range(7421, 7453)
"""Ports to serve on: next to the usual one, and not among those of outgoing connections."""
NAMES_MAX: Final = 256
"""Processes on one directory that get a name by themselves."""
log = logging.getLogger(__name__)


def announced_url(directory: Path) -> str | None:
    """Where the directory is served, as its owner recorded it; the owner may be gone."""
    try:
        url = json.loads(read_text(directory / "owner.json"))["url"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if isinstance(url, str) else None


class SharedDirectory:
    """A data directory that is served by this process or by another one."""

    def __init__(
        self,
        settings: "Settings",
        greet: "Callable[[Serving], None]",
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        self._settings = settings
        self._greet = greet
        self._retry_s = retry_s
        self._lock = FileLock(settings.data / "mcp.lock", mode=FILE_MODE, thread_local=False)
        self._url: str | None = None
        self._changed = asyncio.Event()
        self._cannot_look = False
        """Whether the last look at the lock failed, which was logged."""
        self.serves = False
        """Whether this process serves it now."""

    @property
    def url(self) -> str:
        """Where it is served."""
        assert self._url is not None
        return self._url

    async def moved(self) -> str:
        """Return when it is served at another address than at the last call; returns that."""
        await self._changed.wait()
        self._changed.clear()
        return self.url

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SharedDirectory"]:
        """Take part; in the block, `url` is known. Errors: why it cannot be served."""
        keeping = asyncio.create_task(self._keep(), name="serving the data directory")
        try:
            await self._joined(keeping)
            yield self
        finally:
            keeping.cancel()
            try:
                # A signal must not cut it short: MCP clients close standard input, and send one
                # two seconds later.
                await finish(_ended(keeping))
            finally:
                # Only now: the next process opens the directory as soon as it gets the lock.
                self._lock.release()

    async def _joined(self, keeping: "asyncio.Task[None]") -> None:
        """Return when it is known where the directory is served. Errors: why it cannot be."""
        known = asyncio.create_task(self.moved())
        waiting: set[asyncio.Task[Any]] = {known, keeping}
        try:
            await asyncio.wait(waiting, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            known.cancel()
        if keeping.done():
            keeping.result()
        if self._url is None:
            reason = f"nobody served it within {START_S:.0f} s"
            raise Unavailable(what=str(self._settings.data), reason=reason)

    # --- the election -----------------------------------------------------------------------------

    async def _keep(self) -> None:
        while not self._is_elected():
            self._use(announced_url(self._settings.data))
            await asyncio.sleep(ELECTION_S)
        while True:
            try:
                await self._serve()
            except DataDirectoryInUse as owner:  # of somebody who takes no part: `blackboard serve`
                if owner.url is None and self._url is None:
                    raise
                self._use(owner.url)
            except Exception as error:
                # Of any kind: this process has the lock, so no other one would serve instead.
                if self._url is None:
                    raise
                log.warning("the boards cannot be served: %s", str(error) or type(error).__name__)
            await asyncio.sleep(self._retry_s)

    def _is_elected(self) -> bool:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            self._cannot_look = False
            return False
        except OSError as error:
            # It may pass, such as too many open files: meanwhile another process serves.
            if self._url is None:
                raise
            if not self._cannot_look:
                log.warning("cannot take part in serving %s: %s", self._settings.data, error)
            self._cannot_look = True
            return False
        return True

    def _use(self, url: str | None) -> None:
        if url is not None and url != self._url:
            self._url = url
            self._changed.set()

    async def _serve(self) -> None:
        """Serve until this is cancelled. Errors: DataDirectoryInUse; why it cannot be served."""
        from blackboard.server.http.serve import serve

        for port in self._ports():
            settings = self._settings.model_copy(update={"port": port})
            try:
                await serve(settings, ready=self._ready, signals=False)
            except InvalidRequest as error:
                # A port that is taken is reported as an error of `host`: the next one is tried.
                if error.field != "host" or port == 0:
                    raise
            finally:
                self.serves = False

    def _ready(self, serving: "Serving") -> None:
        self.serves = True
        self._use(serving.url)
        self._greet(serving)

    def _ports(self) -> list[int]:
        """The last port first: the others look for the service there."""
        last = self._url or announced_url(self._settings.data)
        port = urlsplit(last).port if last else None
        # 0 last: the port that the system picks is one that connections can take meanwhile.
        return [*([port] if port else []), *PORTS, 0]


async def _ended(task: "asyncio.Task[None]") -> None:
    await asyncio.wait([task])


@contextmanager
def own_name(directory: Path) -> Iterator[str]:
    """A name for this process that no other one on the directory has: agent-1, agent-2 ..."""
    names = directory / "mcp"
    names.mkdir(mode=0o700, exist_ok=True)
    for number in range(1, NAMES_MAX + 1):
        lock = FileLock(names / f"agent-{number}.lock", mode=FILE_MODE, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        try:
            yield f"agent-{number}"
        finally:
            lock.release()
        return
    reason = f"{NAMES_MAX} agents without a name of their own are running: give --agent"
    raise Unavailable(what=str(directory), reason=reason)
