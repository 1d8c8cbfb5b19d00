"""Whether a board continues where its archive ends, and the remedy if it does not.

An engine may come back with less than it acknowledged: an older copy of its file was restored, its
journal is missing, or a server was emptied. Then the archive has revisions that the engine does not
have. They stay in the archive, and the board continues above them in a new epoch, so that none of
them is ever issued again.

Nothing here changes the archive: `server/archiver.py` archives the new epoch like any other entry.
"""

import logging
from typing import Final

from blackboard.archive.base import Archive
from blackboard.core.access import is_reserved
from blackboard.core.checkpoints import Lost, Mark, Point
from blackboard.core.commit import ENGINE, Head, LogEntry
from blackboard.engines.base import Store
from blackboard.errors import Compacted, Unavailable
from blackboard.units import Revision

log = logging.getLogger(__name__)
_TRIES: Final = 5
"""Attempts to check a board that changes during the check."""
_MARKERS: Final = 64
"""Epochs without a commit that are skipped on the way back; a service that restarts often makes
many."""


async def go_above(store: Store, archive: Archive, board: str) -> Lost | None:
    """Make sure that the board continues above all of its archived revisions.

    Returns the loss: each time, until the archive has the epoch that began above it. None: nothing
    was lost.
    Errors: Unavailable, Corrupt.
    """
    for _ in range(_TRIES):
        mark = await archive.mark(board)  # read first: what is archived was committed before
        head = await store.open(board)
        if mark is None or _is_at_its_beginning(head, mark):
            return None
        # The engine has more, as it should; but it may have noticed a loss by itself.
        if mark.revision < head.revision:
            found = _noticed_before(head, mark)
            if found is not None:
                log.warning("%s", loss_message(board, found, leaves_values=archive.leaves_values))
            return found
        try:
            shared = await last_shared(store, archive, board, head.revision)
        except Compacted:
            # What both have cannot be told: an epoch above costs little, and repeats nothing.
            shared = None
        if shared == mark.revision:
            return None
        above = mark.revision
        new = await store.begin_epoch(board, head, above=above)
        # If not, the head had moved, and no epoch was begun.
        if new.revision > above:
            lost = Lost(head.revision if shared is None else shared, above, new.revision)
            log.warning("%s", loss_message(board, lost, leaves_values=archive.leaves_values))
            return lost
    raise Unavailable(what=f"board {board}", reason="it changes while it is compared")


def _noticed_before(head: Head, mark: Mark) -> Lost | None:
    """The loss for which the engine itself began an epoch that is not archived yet."""
    begun = head.epoch
    if begun.cause != ENGINE or not begun.from_revision < mark.revision < begun.revision:
        return None
    return Lost(begun.from_revision, mark.revision, begun.revision)


def _is_at_its_beginning(head: Head, mark: Mark) -> bool:
    """Whether board and archive are both at the beginning of the same epoch: an import is archived
    from there on, without the commit that began it."""
    begun = head.revision == head.epoch.revision == mark.revision
    return begun and head.epoch.id == mark.epoch.id


async def last_shared(
    store: Store, archive: Archive, board: str, revision: Revision
) -> Revision | None:
    """The last revision, up to `revision`, that is the same in the engine's log and in the archive;
    None if they are different histories.

    Epochs that only record a restart of the engine are skipped.
    Errors: Compacted when the archive cannot tell; Unavailable.
    """
    for _ in range(_MARKERS):
        if not revision:
            return 0
        entry = await _entry_at(store, board, revision)
        archived = await archive.digest_at(Point(board, revision))
        # A log is cut behind its archive, so what it no longer has is taken to be the same there.
        if entry is None or archived == entry.digest:
            return revision
        if entry.epoch is None or entry.epoch.cause != ENGINE:
            return None
        revision = entry.epoch.from_revision
    return None


async def _entry_at(store: Store, board: str, revision: Revision) -> LogEntry | None:
    """The log entry at a revision; None if the log no longer has it."""
    try:
        page = await store.log(board, revision - 1, limit=1)
    except Compacted:
        return None
    found = page.entries[:1]
    return found[0] if found and found[0].revision == revision else None


def loss_message(board: str, lost: Lost, *, leaves_values: bool) -> str:
    """The message about a loss; `leaves_values` as `Archive.leaves_values`."""
    what = f"the engine lost revisions {lost.survived + 1} to {lost.through}, which the archive has"
    if is_reserved(board):  # server/security/own_boards.py restores these
        return f"board {board}, the service's own: {what}; its records are put back from there"
    if leaves_values:
        what += ", but for longer values"
        return f"board {board}: {what}; a backup brings them back (docs/howto/recover.md)"
    return f"board {board}: {what}; `blackboard recover {board}` brings them back"
