"""Freezes and thaws boards for admins. What a frozen board refuses: core/freeze.py."""

from typing import Final

from blackboard.core.commit import ABSENT, Delete, KeyAt, Put
from blackboard.core.freeze import FROZEN_KEY, Freeze, freeze_in
from blackboard.errors import Conflict, Unavailable
from blackboard.limits import NOTE_BYTES_MAX
from blackboard.server.boards import Boards, commit_as_system
from blackboard.wire.codec import encode_value

_TRIES: Final = 5
"""How often somebody else may freeze or thaw the board between a look at it and the commit."""


async def frozen(host: Boards, board: str) -> Freeze | None:
    """The freeze of `board`; None if it is not frozen."""
    reading = await host.store.read(board, [FROZEN_KEY])
    for entry in reading.entries:
        return freeze_in(entry.value, entry.time_ms, entry.mod_revision)
    return None


async def freeze(host: Boards, board: str, by: str, note: str) -> Freeze:
    """Freeze `board`; one that is frozen stays as it is, and its freeze is returned.

    Errors: Unavailable; OutcomeUnknown: ask again, which does no harm.
    """
    put = Put(FROZEN_KEY, encode_value({"by": by, "note": note}))
    for _ in range(_TRIES):
        found = await frozen(host, board)
        if found is not None:
            return found
        try:
            told = _told(f"frozen by {by}", note)
            done = await commit_as_system(host, board, [put], [KeyAt(FROZEN_KEY, ABSENT)], told)
        except Conflict:
            continue
        return Freeze(by, note, done.time_ms, done.revision)
    raise Unavailable(f"board {board}", "others freeze and thaw it all the time")


async def thaw(host: Boards, board: str, by: str, note: str) -> Freeze | None:
    """Thaw `board`; returns the freeze that this ended, None if there was none.

    Errors: Unavailable; OutcomeUnknown: ask again, which does no harm.
    """
    for _ in range(_TRIES):
        found = await frozen(host, board)
        if found is None:
            return None
        stands = KeyAt(FROZEN_KEY, found.revision)
        try:
            told = _told(f"thawed by {by}", note)
            await commit_as_system(host, board, [Delete(FROZEN_KEY)], [stands], told)
        except Conflict:
            continue
        return found
    raise Unavailable(f"board {board}", "others freeze and thaw it all the time")


def _told(what: str, note: str) -> str:
    """What the log keeps as the note of the commit."""
    text = f"{what}: {note}" if note else what
    return text.encode()[:NOTE_BYTES_MAX].decode(errors="ignore")
