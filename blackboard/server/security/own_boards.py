"""The service's own boards, which its archive keeps: the revocations and the audit.

An engine that lost them would accept revoked tokens again. So before the first request is served,
and every ENGINE_CHECK_INTERVAL_MS, these boards are compared with the archive, and one commit puts
back what the engine lost.

Invariants
- No token is accepted before the comparison succeeded. While the archive is unavailable at a start,
  all are refused (`Unavailable`).
- Records since the loss stay, after those from before it.
- Expired records do not come back, nor revocations whose tokens have expired.
"""

import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Final

from blackboard.archive.base import Archive, archived_pages
from blackboard.core.access import ACCESS_BOARD, AUDIT_BOARD, OWN_BOARDS_ARCHIVED
from blackboard.core.checkpoints import Lost, Point
from blackboard.core.commit import (
    ENGINE,
    RESTORE,
    Commit,
    Committed,
    Delete,
    Entry,
    Epoch,
    Head,
    Op,
    PutBack,
)
from blackboard.core.path import item_key
from blackboard.engines.base import pages_of
from blackboard.errors import BlackboardError, Compacted, HeadMoved, StaleEpoch, Unavailable
from blackboard.limits import LOG_ENTRIES_MAX, RESTORE_CHANGES_MAX
from blackboard.server.archiver import Archiver
from blackboard.server.commit_queue import salted, system_id
from blackboard.server.continuity import go_above
from blackboard.server.host import Host
from blackboard.server.security.revocations import is_over
from blackboard.units import Key, Milliseconds
from blackboard.wire.codec import prepare

log = logging.getLogger(__name__)
_TRIES: Final = 5
"""Attempts to compare a board, when there were commits in the meantime."""
_HELD_BACK: Final = (
    "the revocations cannot be compared with the archive: no token is accepted until that is done"
)
_NOTE: Final = "put back from the archive"
Entries = Mapping[Key, Entry]


async def prune_audit(archive: Archive) -> int:
    """Remove from the archive what the audit does not hold any more; returns how many versions.

    Its state at the last loss of the engine stays: `OwnBoards` compares it. Errors: Unavailable.
    """
    mark = await archive.mark(AUDIT_BOARD)
    if mark is None:
        return 0
    lost = await archive.lost(AUDIT_BOARD)
    keep = () if lost is None else (lost.through,)
    return (await archive.prune(AUDIT_BOARD, keep, mark.revision)).versions


class OwnBoards:
    """Maintains the own boards of a service with an archive."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._looked_s = float("-inf")

    async def begin(self) -> None:
        """Compare them before the first request is served; if that fails, no token is accepted
        until `look` succeeds."""
        try:
            await self.look()
        except BlackboardError as error:
            log.error("%s (%s). Check the archive; the service tries again", _HELD_BACK, error)
            self._host.revocations.hold_back(_HELD_BACK)

    async def look_again(self) -> None:
        """As `look`, if it is due: it failed, or was ENGINE_CHECK_INTERVAL_MS ago."""
        past_s = time.monotonic() - self._looked_s
        interval_s = self._host.limits.boards.engine_check_interval_ms / 1000
        if self._host.revocations.is_held_back or past_s >= interval_s:
            await self.look()

    async def look(self) -> None:
        """Put back what the engine lost of them, and have them archived from here on.

        Errors: Unavailable; Corrupt.
        """
        if self._host.archiver is None:
            return
        self._looked_s = time.monotonic()
        for board in OWN_BOARDS_ARCHIVED:
            await self._look(board, self._host.archiver)
        if self._host.revocations.is_held_back:
            await self._host.revocations.catch_up()  # it knows the records from before
            self._host.revocations.hold_back("")

    async def _look(self, board: str, archiver: Archiver) -> None:
        if await archiver.archive.holds(board):
            lost = await self._lost(board, archiver.archive)
            if lost is not None:
                await self._put_back(board, archiver.archive, lost)
        elif not await self._host.store.exists(board):
            return
        if not self._host.draining:
            archiver.follow(board)

    async def _lost(self, board: str, archive: Archive) -> Lost | None:
        """The last loss of the engine, whether or not it is archived yet."""
        found = await go_above(self._host.store, archive, board)
        if found is not None:
            return found
        mark = await archive.mark(board)
        try:
            after = 0 if mark is None else mark.revision
            page = await self._host.store.log(board, after, limit=LOG_ENTRIES_MAX)
        except Compacted:
            return await archive.lost(board)
        for entry in page.entries:
            begun = entry.epoch
            if begun is not None and begun.cause == ENGINE and begun.from_revision < after:
                return Lost(begun.from_revision, after, entry.revision)
        return await archive.lost(board)

    async def _put_back(self, board: str, archive: Archive, lost: Lost) -> None:
        """Errors: Unavailable when others commit all the time; as `Archive.list`."""
        # Read once, whatever is committed meanwhile: archived revisions do not change.
        then = await self._archived(board, archive, lost)
        for _ in range(_TRIES):
            head = await self._host.store.open(board)
            now = await self._present(board, head)
            if now is None:
                continue
            ops = tuple(merged(board, then, now, time.time_ns() // 1_000_000))
            if not ops:
                return
            outcome = await self._commit(board, head, ops, lost)
            if isinstance(outcome, Committed):
                log.warning("board %s: %d records were put back from the archive", board, len(ops))
                return
        raise Unavailable(what=f"board {board}", reason="it changes while records are put back")

    async def _commit(
        self, board: str, head: Head, ops: tuple[Op, ...], lost: Lost
    ) -> Committed | HeadMoved | StaleEpoch:
        number, at = head.epoch.number + 1, head.revision + 1
        begins = Epoch(number, secrets.token_hex(8), RESTORE, lost.through, at)
        commit = Commit(
            system_id(), head.epoch.id, ops, note=_NOTE, begins=begins, known=head.revision
        )
        (outcome,) = await self._host.store.commit(board, [prepare(salted(commit))])
        if isinstance(outcome, Committed | HeadMoved | StaleEpoch):
            return outcome
        raise outcome

    async def _archived(self, board: str, archive: Archive, lost: Lost) -> dict[Key, Entry]:
        found: dict[Key, Entry] = {}
        async for page in archived_pages(archive, Point(board, lost.through)):
            found.update((entry.key, entry) for entry in page.entries)
        return found

    async def _present(self, board: str, head: Head) -> dict[Key, Entry] | None:
        """The content of the engine's board as of `head`; None when that has moved."""
        found: dict[Key, Entry] = {}
        async for page in pages_of(self._host.store, board, ""):
            if page.revision != head.revision:
                return None
            found.update((entry.key, entry) for entry in page.entries)
        return found


def merged(board: str, then: Entries, now: Entries, now_ms: Milliseconds) -> Iterator[Op]:
    """The operations that put the archived entries `then` back on a board with the entries
    `now`."""
    lasting = {
        key: entry
        for key, entry in then.items()
        if (entry.expires_at_ms is None or entry.expires_at_ms > now_ms)
        and not (board == ACCESS_BOARD and is_over(entry, now_ms))
    }
    if board == ACCESS_BOARD:  # newer records about the same subject take precedence
        missing = (entry for key, entry in lasting.items() if key not in now)
        yield from (PutBack(e.key, e.value, e.expires_at_ms) for e in missing)
    else:
        yield from _listed(lasting, now)


def _listed(then: Entries, now: Entries) -> Iterator[Op]:
    """As `merged`, for a list: items since the loss are placed after those from before."""
    changed = [e for key, e in then.items() if key not in now or now[key].value != e.value]
    if not changed:
        return
    since = [e for key, e in now.items() if key not in then or then[key].value != e.value]
    # Each item since the loss takes two operations: one for its new place, one for the old.
    room = max(0, RESTORE_CHANGES_MAX - 2 * len(since))
    # The newest ones, if one commit has no room for all.
    for entry in changed[-room:] if room else []:
        item = _index(entry.key)
        yield PutBack(entry.key, entry.value, entry.expires_at_ms, item)
    # Above every number that either side has used.
    following = max(_index(key) for key in (*then, *now)) + 1
    for item, entry in enumerate(since, following):
        prefix = entry.key.rpartition("/")[0]
        yield PutBack(item_key(prefix, item), entry.value, entry.expires_at_ms, item)
        if entry.key not in then:
            yield Delete(entry.key)


def _index(key: Key) -> int:
    return int(key.rpartition("/")[2])
