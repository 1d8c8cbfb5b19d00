"""What a watcher gets, and when: positions, the table of states, and the rule for each log entry.

The six promises (etcd's, by the same names; tests/guarantees/ has a checker for each)
- Ordered: revisions arrive in increasing order. Unique: none arrives twice.
- Atomic: all visible changes of a revision arrive together. Reliable: none is left out.
- Resumable: a watch from a position continues exactly there, or gets the reason why it cannot.
- Bookmarkable: a progress mark for revision r comes after everything up to r.

Invariants of Cursor
- `position.revision` never decreases, and everything up to it was delivered or is not visible.
- a cancelled cursor stays cancelled.
"""

from enum import StrEnum

from msgspec import Struct

from blackboard.core.commit import RESTORE, Head, LogEntry
from blackboard.errors import Compacted, FutureRevision, InvalidRequest, RolledBack
from blackboard.units import Revision


class Position(Struct, frozen=True, gc=False):
    """The position of a reader in the log: after `revision`, whose log entry has `digest`.

    As text it is the resume token: `<epoch>:<revision>:<first 16 hex digits of the digest>`; the
    digest may be empty (a position that was read as a head, not as an entry).
    """

    epoch: str
    revision: Revision
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.epoch}:{self.revision}:{self.digest}"

    @staticmethod
    def parse(token: str) -> "Position":
        """Read a resume token. Errors: InvalidRequest."""
        epoch, _, rest = token.partition(":")
        revision, _, digest = rest.partition(":")
        # It comes back in answers: half of a surrogate pair has no encoding. REVISION_MAX has 16
        # digits, so a longer number is no revision.
        is_text = bool(epoch) and token.isascii() and len(token) <= 200
        if not is_text or not revision.isdecimal() or len(revision) > 16:
            raise InvalidRequest(field="position", reason=f"{token!r} is not a resume token")
        return Position(epoch, int(revision), digest)

    @staticmethod
    def of(entry: LogEntry, epoch: str) -> "Position":
        """The position directly after `entry`."""
        return Position(epoch, entry.revision, entry.digest[:8].hex())


class WatchState(StrEnum):
    """Where a watcher gets its changes from."""

    UNSYNCED = "unsynced"
    """behind: it reads the log at its own pace"""
    SYNCED = "synced"
    """current: it gets what the hub has just read"""
    CANCELLED = "cancelled"
    """ended: it got the reason, and gets nothing more"""


class WatchEvent(StrEnum):
    """What can happen to a watcher."""

    CAUGHT_UP = "caught up"
    FELL_BEHIND = "fell behind"
    ENDED = "ended"


TRANSITIONS: dict[tuple[WatchState, WatchEvent], WatchState] = {
    (WatchState.UNSYNCED, WatchEvent.CAUGHT_UP): WatchState.SYNCED,
    (WatchState.UNSYNCED, WatchEvent.FELL_BEHIND): WatchState.UNSYNCED,
    (WatchState.UNSYNCED, WatchEvent.ENDED): WatchState.CANCELLED,
    (WatchState.SYNCED, WatchEvent.CAUGHT_UP): WatchState.SYNCED,
    (WatchState.SYNCED, WatchEvent.FELL_BEHIND): WatchState.UNSYNCED,
    (WatchState.SYNCED, WatchEvent.ENDED): WatchState.CANCELLED,
    (WatchState.CANCELLED, WatchEvent.CAUGHT_UP): WatchState.CANCELLED,
    (WatchState.CANCELLED, WatchEvent.FELL_BEHIND): WatchState.CANCELLED,
    (WatchState.CANCELLED, WatchEvent.ENDED): WatchState.CANCELLED,
}


class Cursor:
    """One watcher's position in the log. It decides whether the history is still the one that the
    watcher has seen."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.state = WatchState.UNSYNCED

    def on(self, event: WatchEvent) -> WatchState:
        """Move along the table; returns the new state."""
        self.state = TRANSITIONS[self.state, event]
        return self.state

    def pass_entry(self, entry: LogEntry) -> None:
        """Move past `entry`, the next one in the log after the position.

        Errors: RolledBack when the entry begins an epoch without revisions that this watcher has
        already seen (except for a restore, whose entry lists what it undoes). The cursor is then
        cancelled and does not move.
        """
        assert entry.revision > self.position.revision, (entry.revision, self.position)
        epoch = self.position.epoch
        if entry.epoch is not None:
            survived = entry.epoch.from_revision
            if entry.epoch.cause != RESTORE and self.position.revision > survived:
                self.on(WatchEvent.ENDED)
                seen = self.position.revision
                raise RolledBack(seen, entry.epoch.id, survived, entry.revision)
            epoch = entry.epoch.id
        self.position = Position.of(entry, epoch)


def check_start(head: Head, position: Position) -> None:
    """Check that the log can be read from `position`, as far as the head shows.

    Errors: Compacted when the log no longer reaches back; FutureRevision when the position is ahead
    of the head in the same epoch, RolledBack when it is ahead in another one.
    """
    if position.revision > head.revision:
        if position.epoch == head.epoch.id:
            # No revision of an epoch is ever lost, so this one was never given out.
            raise FutureRevision(position.revision, head.revision)
        raise _rolled_back(head, position)
    check_reach(head, position.revision)


def check_reach(head: Head, after: Revision) -> None:
    """Errors: Compacted when the entry after `after` is gone, FutureRevision above the head."""
    if after > head.revision:
        raise FutureRevision(after, head.revision)
    if after < head.oldest - 1:
        raise Compacted(after, head.oldest)


def check_digest(head: Head, position: Position, entry: LogEntry) -> None:
    """Check that `entry`, found at the position's revision, is the one that the position names.

    Errors: RolledBack. This detects an engine that lost commits and issued their revisions again.
    """
    if position.digest and not entry.digest.hex().startswith(position.digest):
        raise _rolled_back(head, position)


def _rolled_back(head: Head, position: Position) -> RolledBack:
    # The head knows only its own epoch; if there were others in between, less may have survived.
    survived = min(head.epoch.from_revision, position.revision)
    return RolledBack(position.revision, head.epoch.id, survived, head.revision)
