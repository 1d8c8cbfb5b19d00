"""Automatic checkpoints: after a number of revisions or seconds, and at shutdown.

Several services of one engine derive the same name for a checkpoint (from its range of revisions,
or of time), so that only one of them takes it.

Invariants
- A board without changes gets no checkpoint.

The module also prunes checkpoints. Invariants:
- Pinned checkpoints, and those at which a board branched off, are never pruned. With
  `RetentionPolicy.named`, neither are those that people named.
- A checkpoint that is kept can be read, restored and branched as before.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from blackboard.core.access import is_reserved
from blackboard.core.checkpoints import (
    AUTOMATIC,
    CHECKPOINTS,
    NAMED,
    SHUTDOWN,
    Checkpoint,
    CheckpointRequest,
    Pruned,
    PrunedRows,
    RetentionPolicy,
    checkpoint_key,
    named_by_time,
)
from blackboard.core.commit import Delete, Head, KeyAt
from blackboard.errors import (
    BlackboardError,
    Compacted,
    Conflict,
    FutureRevision,
    InvalidRequest,
    NoSuchBoard,
)
from blackboard.limits import INTEGER_MAX, OPERATIONS_MAX
from blackboard.server.boards import Boards, OpenBoard
from blackboard.server.checkpoints.reader import HistoryReader
from blackboard.server.checkpoints.take import Checkpoints
from blackboard.units import Milliseconds, Revision
from blackboard.wire.codec import SYSTEM_AGENT

_DAY_MS: Final = 24 * 3600 * 1000
_NOTE: Final = "pruned"


def check_policy(policy: RetentionPolicy) -> None:
    """Errors: InvalidRequest for a number that is none, negative or too large for a time."""
    for name in ("last", "days", "history_ms", "history_bytes"):
        number = getattr(policy, name)
        if type(number) is not int and (not name.startswith("history") or number is not None):
            raise InvalidRequest(name, f"a {type(number).__name__} here: write a whole number")
        if number is not None and number < 0:
            raise InvalidRequest(field=name, reason=f"{number} is negative")
        if number is not None and number > INTEGER_MAX:
            raise InvalidRequest(field=name, reason=f"it is more than {INTEGER_MAX}")


def kept_by(
    policy: RetentionPolicy, checkpoints: Sequence[Checkpoint], now_ms: Milliseconds
) -> set[str]:
    """The names of the checkpoints that `policy` keeps; `checkpoints` are sorted, oldest first."""
    kept = {c.name for c in checkpoints if c.pinned or (policy.named and c.kind == NAMED)}
    # Not below 0: a slice counts a negative start from the end, and `-last` would keep all for 0.
    newest = max(0, len(checkpoints) - policy.last)
    kept |= {c.name for c in checkpoints[newest:]}
    # They are sorted, so the last one of each day stays in the dictionary.
    newest_of_day = {c.time_ms // _DAY_MS: c.name for c in checkpoints}
    today = now_ms // _DAY_MS
    kept |= {name for day, name in newest_of_day.items() if day > today - policy.days}
    return kept


class Retention:
    """Prunes the checkpoints of a board."""

    def __init__(self, board: OpenBoard) -> None:
        self._board = board
        self._past = HistoryReader(board)
        self._checkpoints = Checkpoints(board)

    async def prune(self, policy: RetentionPolicy, *, dry_run: bool = False) -> Pruned:
        """Remove what `policy` does not keep. With `dry_run`, only report what that is.

        Errors: InvalidRequest; Unavailable while the archive is behind. After any error, each
        checkpoint is either complete or gone; a repeated call removes the rest.
        """
        check_policy(policy)
        head = await self._board.head()
        await self._past.reach(head.revision)
        checkpoints = await self._checkpoints.present()
        kept = kept_by(policy, checkpoints, head.time_ms)
        branched = await self._branched_off()
        kept |= {c.name for c in checkpoints if c.revision in branched}
        doomed = [c for c in checkpoints if c.name not in kept]
        if not dry_run:
            await self._forget_left_over(checkpoints, head.revision)
            doomed = await self._remove(doomed)
        removed = {c.name for c in doomed}
        left = tuple(c.name for c in checkpoints if c.name not in removed)
        if policy.history_ms is None and policy.history_bytes is None:
            return Pruned(tuple(c.name for c in doomed), left)
        gone = await self._forget_history(policy, removed, dry_run=dry_run)
        return Pruned(tuple(c.name for c in doomed), left, gone.versions, gone.value_bytes)

    async def _forget_left_over(self, present: Sequence[Checkpoint], head: Revision) -> None:
        """Remove manifests up to `head` whose checkpoints are gone: those of a pruning that ended
        in between."""
        there = {(c.name, c.revision) for c in present}
        for stored in await self._checkpoints.stored():
            is_kept = stored.lost or stored.pinned or stored.revision > head
            if not is_kept and (stored.name, stored.revision) not in there:
                archive = self._past.archive
                await archive.forget(self._board.name, stored.name, stored.revision)

    async def _remove(self, doomed: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Remove checkpoints, except those that were pinned or taken again meanwhile; returns those
        that are gone."""
        gone: list[Checkpoint] = []
        for start in range(0, len(doomed), OPERATIONS_MAX):
            # Read again just before: others pin, prune and take checkpoints all the time.
            there = {c.name: c for c in await self._checkpoints.present() if not c.pinned}
            some = [c for c in doomed[start : start + OPERATIONS_MAX] if c == there.get(c.name)]
            conditions = [KeyAt(checkpoint_key(c.name), c.revision) for c in some]
            ops = [Delete(checkpoint_key(c.name)) for c in some]
            if not some:
                continue
            # Before the manifests: an entry without one would be an unreadable checkpoint.
            with contextlib.suppress(Conflict):  # the next pruning removes what is left of them
                await self._board.commit_as_system(ops, conditions, _NOTE)
                for each in some:
                    await self._past.archive.forget(self._board.name, each.name, each.revision)
                gone += some
        return gone

    async def _forget_history(
        self, policy: RetentionPolicy, removed: Collection[str], *, dry_run: bool
    ) -> PrunedRows:
        name, archive = self._board.name, self._past.archive
        head = await self._board.head()
        await self._past.reach(head.revision)
        below: Revision = 0
        if policy.history_ms is not None:
            below = await archive.before_time(name, head.time_ms - policy.history_ms)
        if policy.history_bytes is not None:
            below = max(below, await archive.since_bytes(name, policy.history_bytes))
        # After the head: those that are taken from here on are above it, and need nothing below.
        keep = [c.revision for c in await self._checkpoints.present() if c.name not in removed]
        return await archive.prune(name, keep, min(below, head.revision), dry_run=dry_run)

    async def _branched_off(self) -> set[Revision]:
        """Revisions at which other boards branched off."""
        found = set()
        for name in await self._past.archive.boards():
            mark = await self._past.archive.mark(name)
            origin = None if mark is None else mark.origin
            if origin is not None and origin.board == self._board.name:
                found.add(origin.revision)
        return found


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Automatic:
    """When to take automatic checkpoints, and which of them to keep; None = never."""

    every_revisions: int | None = None
    every_ms: Milliseconds | None = None
    at_shutdown: bool = False
    keep: RetentionPolicy = field(default_factory=lambda: RetentionPolicy(last=100, days=30))

    @property
    def repeats(self) -> bool:
        """Whether checkpoints are taken while the service runs, not only at shutdown."""
        return self.every_revisions is not None or self.every_ms is not None


class AutomaticCheckpoints:
    """Takes automatic checkpoints of the boards that a process has open."""

    def __init__(self, boards: Boards, settings: Automatic) -> None:
        self._boards = boards
        self._settings = settings
        self._last: dict[str, tuple[Revision, Milliseconds]] = {}
        """Of each open board, and of closed ones that changed since: the revision and the time of
        their last checkpoint, or when they were first seen."""
        self._taken: set[OpenBoard] = set()

    async def look(self) -> None:
        """Take the checkpoints that are due. A failure on one board is logged, and tried again
        later."""
        for board in self._teams():
            try:
                head = await board.head()
                name = self._due(board, head)
                if name is None:
                    continue
                since, time_ms = self._last[board.name]
                if await _is_changed(board, since):
                    await self._take(board, name, head, AUTOMATIC)
                else:
                    # Only checkpoints came. The time still runs from the last one that was taken.
                    self._last[board.name] = (head.revision, time_ms)
            except BlackboardError as error:
                log.warning("board %s: no automatic checkpoint: %s", board.name, error)

    async def tidy(self) -> None:
        """Prune the boards that got a checkpoint since the last call."""
        for board in list(self._taken):
            try:
                await Retention(board).prune(self._settings.keep)
                self._taken.discard(board)
            except NoSuchBoard:
                self._taken.discard(board)
                self._last.pop(board.name, None)
            except BlackboardError as error:
                log.warning("board %s: its checkpoints were not pruned: %s", board.name, error)

    async def at_shutdown(self) -> None:
        """Take a last checkpoint of each board that changed since its last one, within
        DRAIN_TIMEOUT_MS."""
        if not self._settings.at_shutdown:
            return
        timeout_ms = self._boards.host.limits.service.drain_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.gather(*[self._at_end(board) for board in self._teams()])
        except TimeoutError:
            log.warning("not all boards have a checkpoint at shutdown: it takes too long")

    async def _at_end(self, board: OpenBoard) -> None:
        try:
            head = await board.head()
            taken = await Checkpoints(board).entries()
            if await _is_changed(board, max((entry.mod_revision for entry in taken), default=0)):
                name = named_by_time(datetime.now(UTC), secrets.token_hex(2))
                await self._take(board, f"shutdown-{name}", head, SHUTDOWN)
        except BlackboardError as error:
            log.warning("board %s: no checkpoint at shutdown: %s", board.name, error)

    async def before_closing(self, board: OpenBoard) -> Milliseconds | None:
        """A board that nobody uses is closed: take its last checkpoint, if that is wanted at
        shutdown. Returns when its next one is due."""
        if is_reserved(board.name):
            return None
        if self._settings.at_shutdown:
            await self._at_end(board)
        revision, time_ms = self._last.get(board.name, (0, 0))
        if not self._settings.repeats or not await _is_changed(board, revision):
            self._last.pop(board.name, None)
            return None
        every_ms = self._settings.every_ms
        return None if every_ms is None else min(time_ms, _now_ms()) + every_ms

    def _teams(self) -> list[OpenBoard]:
        return [board for board in self._boards if not is_reserved(board.name)]

    def _due(self, board: OpenBoard, head: Head) -> str | None:
        """The name of the checkpoint that is due; None if there is none."""
        now_ms = _now_ms()
        revision, time_ms = self._last.setdefault(board.name, (head.revision, now_ms))
        if time_ms > now_ms:  # the clock was put back
            time_ms = now_ms
            self._last[board.name] = (revision, time_ms)
        every, every_ms = self._settings.every_revisions, self._settings.every_ms
        if every is not None and head.revision - revision >= every:
            return f"auto-r{head.revision // every * every}"
        if every_ms is not None and now_ms - time_ms >= every_ms and head.revision > revision:
            began = datetime.fromtimestamp(now_ms // every_ms * every_ms / 1000, UTC)
            return f"auto-{began:%Y-%m-%dT%H.%M.%S.%fZ}"
        return None

    async def _take(self, board: OpenBoard, name: str, head: Head, kind: str) -> None:
        spec = CheckpointRequest(name, secrets.token_hex(8), kind=kind)
        revision = head.revision
        try:
            revision = (await Checkpoints(board).take(spec, SYSTEM_AGENT)).revision
            self._taken.add(board)
        except Conflict:
            pass  # another service was faster
        self._last[board.name] = (revision, _now_ms())


async def _is_changed(board: OpenBoard, since: Revision) -> bool:
    """Whether anything was committed since, apart from checkpoints and their removal: those alone
    are no reason for another one, which would be removed in its turn."""
    try:
        page = await board.log(since)
    except (Compacted, FutureRevision):  # much was, or this is another board of that name
        return True
    entries = page.entries
    is_whole = not entries or entries[-1].revision == page.head.revision
    return not is_whole or any(
        entry.epoch is not None or not all(c.key.startswith(CHECKPOINTS) for c in entry.changes)
        for entry in entries
    )


def _now_ms() -> Milliseconds:
    return time.time_ns() // 1_000_000
