"""Checkpoints that nobody asks for: every so many revisions, every so many seconds, at shutdown.

Several services of one engine agree on a name (that of the stretch of revisions, or of time), so
that one of them takes each checkpoint.

Invariants
- a board on which nothing happened gets none.
"""

import logging
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from blackboard.core.access import is_reserved
from blackboard.core.checkpoints import (
    AUTOMATIC,
    SHUTDOWN,
    CheckpointWish,
    Policy,
    named_by_time,
)
from blackboard.core.commit import Head
from blackboard.errors import BlackboardError, Conflict
from blackboard.server.boards import Host
from blackboard.server.checkpoints.retention import Retention
from blackboard.server.checkpoints.take import Checkpoints
from blackboard.types import Milliseconds, Revision
from blackboard.wire.codec import SYSTEM_AGENT

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Automatic:
    """When to take checkpoints without being asked, and which of those to keep; None = never."""

    every_revisions: int | None = None
    every_ms: Milliseconds | None = None
    at_shutdown: bool = False
    keep: Policy = field(default_factory=lambda: Policy(last=100, days=30))

    @property
    def repeats(self) -> bool:
        """Whether any are taken while the service runs."""
        return self.every_revisions is not None or self.every_ms is not None


class AutomaticCheckpoints:
    """Takes them on the boards that a process has open."""

    def __init__(self, host: Host, settings: Automatic) -> None:
        self._host = host
        self._settings = settings
        self._checkpoints = Checkpoints(host)
        self._last: dict[str, tuple[Revision, Milliseconds]] = {}
        self._taken: set[str] = set()

    async def look(self) -> None:
        """Take those that are due. What fails on one board is logged, and tried again."""
        for board in self._boards():
            try:
                head = await self._host.store.open(board)
                name = self._due(board, head)
                if name is not None:
                    await self._take(board, name, head, AUTOMATIC)
            except BlackboardError as error:
                log.warning("board %s: no automatic checkpoint: %s", board, error)

    async def tidy(self) -> None:
        """Prune the boards that got one since the last time."""
        for board in sorted(self._taken):
            try:
                await Retention(self._host).prune(board, self._settings.keep)
                self._taken.discard(board)
            except BlackboardError as error:
                log.warning("board %s: its checkpoints were not pruned: %s", board, error)

    async def at_shutdown(self) -> None:
        """Take the last ones, of boards on which something happened."""
        if not self._settings.at_shutdown:
            return
        for board in self._boards():
            try:
                head = await self._host.store.open(board)
                if head.revision > self._last.get(board, (0, 0))[0]:
                    name = named_by_time(datetime.now(UTC), secrets.token_hex(2))
                    await self._take(board, f"shutdown-{name}", head, SHUTDOWN)
            except BlackboardError as error:
                log.warning("board %s: no checkpoint at shutdown: %s", board, error)

    def _boards(self) -> list[str]:
        return [board for board in self._host.boards() if not is_reserved(board)]

    def _due(self, board: str, head: Head) -> str | None:
        """The name of the checkpoint that is due; None = none is."""
        now_ms = _now_ms()
        revision, time_ms = self._last.setdefault(board, (head.revision, now_ms))
        every, every_ms = self._settings.every_revisions, self._settings.every_ms
        if every is not None and head.revision - revision >= every:
            return f"auto-r{head.revision // every * every}"
        if every_ms is not None and now_ms - time_ms >= every_ms and head.revision > revision:
            began = datetime.fromtimestamp(now_ms // every_ms * every_ms / 1000, UTC)
            return f"auto-{began:%Y-%m-%dT%H.%M.%S.%fZ}"
        return None

    async def _take(self, board: str, name: str, head: Head, kind: str) -> None:
        wish = CheckpointWish(name, secrets.token_hex(8), kind=kind)
        revision = head.revision
        try:
            revision = (await self._checkpoints.take(board, wish, SYSTEM_AGENT)).revision
            self._taken.add(board)
        except Conflict:
            pass  # another service was faster
        self._last[board] = (revision, _now_ms())


def _now_ms() -> Milliseconds:
    return time.time_ns() // 1_000_000
