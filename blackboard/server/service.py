"""The service of one process: its boards, and the tasks that keep them tidy.

All state is in the engine, so any number of services may run over one Redis.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from blackboard.archive.base import Archive
from blackboard.backup.place import BackupPlace
from blackboard.client.cancellation import finish, heed_cancellation
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.engines.base import EngineFacts, Store
from blackboard.errors import BlackboardError
from blackboard.limits import DEFAULT, Limits
from blackboard.server.backups.follow import BackupFollower
from blackboard.server.boards import Boards
from blackboard.server.checkpoints.redact import Redactions
from blackboard.server.checkpoints.schedule import Automatic, AutomaticCheckpoints
from blackboard.server.documents.awareness import Publishing, pubsub_of
from blackboard.server.documents.rooms import Documents
from blackboard.server.host import Host, ServiceStatistics
from blackboard.server.overload.rate_limits import Rates
from blackboard.server.requests import RequestHandler
from blackboard.server.security.own_boards import OwnBoards
from blackboard.server.sweeper import Sweeper

if TYPE_CHECKING:  # loaded only where lock masters are configured
    from blackboard.engines.redis.redlock import LockMasters

log = logging.getLogger(__name__)


class Service:
    """Serves the boards of `store`. Use as a context manager; leaving it closes the store too.

    Log entries beyond `limits.boards.log_kept_revisions` are compacted away, once they are in the
    `archive`, if there is one. With `lock_masters` a lease is granted only if a majority of them
    agrees. Both are closed too. `automatic` says when automatic checkpoints are taken; `rates` are
    the rate limits of each principal.
    Errors on entering: EngineRefused, Unavailable; InvalidRequest when two lock masters are the
    same server.
    """

    def __init__(
        self,
        store: Store,
        *,
        lock_masters: "LockMasters | None" = None,
        archive: Archive | None = None,
        automatic: Automatic | None = None,
        rates: Rates | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self.host = Host(
            store, lock_masters, archive=archive, rates=rates or Rates(), limits=limits
        )
        self.boards = Boards(self.host)
        engine = pubsub_of(store)
        publishing = None if engine is None else Publishing(engine, limits)
        self.host.documents = Documents(self.link, publishing, limits)
        self._limits = limits
        self._automatic = automatic or Automatic()
        self._checkpoints = AutomaticCheckpoints(self.boards, self._automatic)
        if self._automatic.repeats or self._automatic.at_shutdown:
            self.boards.before_closing = self._checkpoints.before_closing
        self._sweeper = Sweeper(self.boards, secrets.token_hex(8))
        self._own_boards = OwnBoards(self.host)
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Service":
        try:
            await self.host.look()
            await self._own_boards.begin()
        except BaseException:
            # Otherwise the data directory would stay in use.
            await self.aclose()
            raise
        self.host.note_start()
        sweeper = self._sweeper

        kept = self._limits.boards.log_kept_revisions
        sweep_ms = self._limits.boards.sweep_interval_ms
        check_ms = self._limits.boards.engine_check_interval_ms

        async def trim() -> None:
            await sweeper.trim_due(kept)

        async def tend_own() -> None:
            await sweeper.tend_own(kept)

        self._tasks = [
            asyncio.create_task(_every(sweep_ms, sweeper.sweep, sweep_ms // 4), name="sweeper"),
            asyncio.create_task(_every(sweep_ms, sweeper.sweep_failed), name="second sweeper"),
            # By themselves: an archive that hangs holds them up.
            asyncio.create_task(_every(sweep_ms, self.boards.close_unused), name="unused boards"),
            asyncio.create_task(_every(sweep_ms, self.boards.open_due), name="due boards"),
            asyncio.create_task(_every(sweep_ms, trim), name="log trimmer"),
            asyncio.create_task(_every(check_ms, tend_own), name="own sweeper"),
            asyncio.create_task(_every(check_ms, self.host.look), name="look"),
            asyncio.create_task(_every(sweep_ms, self._own_boards.look_again), name="own boards"),
        ]
        if self._automatic.repeats:
            self._tasks += [
                asyncio.create_task(
                    _every(sweep_ms, self._checkpoints.look), name="automatic checkpoints"
                ),
                asyncio.create_task(_every(check_ms, self._checkpoints.tidy), name="pruning"),
            ]
        for task in self._tasks:
            task.add_done_callback(_report)
        # An earlier service may have been killed after it had recorded a redaction.
        Redactions.of(self.boards).resume()
        self.host.load.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop: carry out the waiting commits, then close store and archive.

        May be called again: each call returns when everything is closed. Cancellation: closing
        continues; the caller waits for it, for at most FINISH_TIMEOUT_MS.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="closing")
        await finish(_ended(self._closing))

    async def _close(self) -> None:
        try:
            self.drain()
            self.host.load.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            # A checkpoint is a commit, so it comes before the boards are closed.
            await self._checkpoints.at_shutdown()
        finally:
            await self.boards.aclose()

    async def follow(self, place: BackupPlace) -> None:
        """Ship the history of all boards to a backup from now on, until this service is closed.

        First, boards that are below the backup begin an epoch above it; if it does not answer
        within BACKUP_START_MS, they do so later.
        """
        host = self.host
        host.backup = BackupFollower(place, host.store, host.archiver, self._limits)
        await host.backup.start()

    def link(self, principal: Principal, permitted: Principal | None = None) -> RequestHandler:
        """A link to the boards for `principal`. Its commits need the token of `permitted` to be
        valid, if that is given: the service itself writes on behalf of somebody then."""
        return RequestHandler(self.boards, principal, permitted)

    def client(
        self, *, agent: str | None = None, close: Callable[[], Awaitable[None]] | None = None
    ) -> Client:
        """A client of this service, without a connection, for the application that runs it.

        It acts as the operator, or with the name and the default rights of `agent`. `close` is
        called by its `aclose`; without it the service keeps running. Errors: InvalidRequest for a
        bad name.
        """
        principal = access.acting_as(access.operator(), agent)
        return Client(self.link(principal), close=close)

    def facts(self) -> EngineFacts:
        """The facts about the engine as of the last check."""
        return self.host.facts()

    def check_serving(self) -> None:
        """Errors: Unavailable while stopping; EngineRefused when the engine would lose data."""
        self.host.check_serving()

    def statistics(self) -> ServiceStatistics:
        """A snapshot of this process's counters."""
        return replace(self.boards.statistics(), sweeper=self._sweeper.statistics())

    def drain(self) -> None:
        """Refuse new requests; waiting commits are still carried out."""
        self.host.draining = True


async def _every(
    interval_ms: int, work: Callable[[], Awaitable[None]], earlier_ms: int = 0
) -> None:
    """Do `work` every `interval_ms`, for ever. A failure is logged, and the work is tried again
    next time.

    Each interval is shortened at random by up to `earlier_ms`, so that services that started
    together do not stay in step.
    """
    while True:
        await asyncio.sleep((interval_ms - random.uniform(0, earlier_ms)) / 1000)
        try:
            await work()
        except BlackboardError as error:
            # Only ours: what nobody foresaw ends the task, and `_report` logs that as critical.
            log.warning("%s: %s", getattr(work, "__qualname__", work), error)
        # A driver may have swallowed the cancellation: then this loop would never end.
        heed_cancellation()


def _report(task: "asyncio.Task[None]") -> None:
    """Log the end of a task. These tasks never end on their own, so that is a bug."""
    if not task.cancelled():
        log.critical("%s ended", task.get_name(), exc_info=task.exception())


async def _ended(task: "asyncio.Task[None]") -> None:
    """Wait for a task that is not cancelled with the caller. Errors: those of the task."""
    await asyncio.shield(task)
