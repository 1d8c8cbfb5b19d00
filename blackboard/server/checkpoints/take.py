"""Taking checkpoints, and telling which there are.

A checkpoint is one entry, `system/checkpoints/<name>`; its revision is the cut. Its manifest is
written, and signed, by whoever archives that revision.

Invariants
- a name is given once: a checkpoint is never moved, and the same request gets the same answer.
- taking one costs one log entry, whatever the size of the board.
"""

from collections.abc import Sequence
from typing import Any

from blackboard.core.checkpoints import (
    BEFORE_RESTORE,
    CHECKPOINTS,
    Checkpoint,
    CheckpointWish,
    Stored,
    check_checkpoint,
    checkpoint_key,
)
from blackboard.core.checkpoints import Barrier as Answers
from blackboard.core.commit import ABSENT, Committed, Entry, KeyAt, Put
from blackboard.errors import (
    BarrierMissed,
    Conflict,
    Corrupt,
    LimitExceeded,
    NoSuchCheckpoint,
    OutcomeUnknown,
)
from blackboard.server.boards import Host
from blackboard.server.checkpoints.barrier import Barrier
from blackboard.server.checkpoints.checkpoints_manifest import check_manifest
from blackboard.server.checkpoints.reader import Past
from blackboard.server.system import commit_as_system
from blackboard.types import CHECKPOINTS_MAX, LIST_ENTRIES_MAX, Key
from blackboard.wire.codec import decode_value, encode_value


class Checkpoints:
    """The checkpoints of the boards of a host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._past = Past(host)

    async def take(self, board: str, wish: CheckpointWish, by: str) -> Checkpoint:
        """Take a checkpoint in the name of `by`; the same request again gets the same answer.

        Errors: Conflict when the name is taken; BarrierMissed; LimitExceeded when there are
        CHECKPOINTS_MAX, or its manifest would be too large.
        """
        wish.check()
        found = await self._asked_before(board, wish)
        if found is not None:
            return found
        await self._check_room(board)
        if wish.barrier_ms is None:
            return await self._put(board, wish, by, None)
        async with Barrier(self._host, board, wish.barrier_ms) as barrier:
            answers = await barrier.answers()
            if answers.not_fresh and not wish.stale_ok:
                raise BarrierMissed(list(answers.not_fresh), wish.barrier_ms)
            return await self._put(board, wish, by, answers)

    async def _put(
        self, board: str, wish: CheckpointWish, by: str, answers: Answers | None
    ) -> Checkpoint:
        key = checkpoint_key(wish.name)
        record = encode_value(_record(wish, by, answers))
        archive = self._host.archive
        if archive is not None and wish.kind != BEFORE_RESTORE:  # nothing shall prevent a restore
            await check_manifest(self._host.store, archive, board, wish.name, record)
        try:
            committed: Committed = await commit_as_system(
                self._host, board, [Put(key, record)], [KeyAt(key, ABSENT)], wish.note
            )
        except (Conflict, OutcomeUnknown):
            found = await self._asked_before(board, wish)
            if found is None:
                raise
            return found
        return Checkpoint(
            board,
            wish.name,
            committed.revision,
            committed.time_ms,
            wish.kind,
            by,
            wish.note,
            answers,
        )

    async def _asked_before(self, board: str, wish: CheckpointWish) -> Checkpoint | None:
        """The checkpoint that this very request took. Errors: Conflict if another one did."""
        key = checkpoint_key(wish.name)
        reading = await self._host.store.read(board, [key])
        if not reading.entries:
            return None
        found = checkpoint_of(board, reading.entries[0])
        if _request_of(reading.entries[0]) != wish.request:
            revision = found.revision
            raise Conflict(
                key, ABSENT, revision, by=found.by, at_revision=revision, head=reading.revision
            )
        return found

    async def _check_room(self, board: str) -> None:
        count = len(await self.entries(board))
        if count >= CHECKPOINTS_MAX:
            raise LimitExceeded("CHECKPOINTS_MAX", count + 1, CHECKPOINTS_MAX)

    # --- which there are --------------------------------------------------------------------------

    async def entries(self, board: str) -> list[Entry]:
        """The entries that are checkpoints, the oldest first."""
        found: list[Entry] = []
        after: Key | None = None
        while True:
            page = await self._host.store.list(
                board, CHECKPOINTS, after=after, limit=LIST_ENTRIES_MAX
            )
            found += page.entries
            after = page.next_key
            if after is None:
                return sorted(found, key=lambda entry: entry.mod_revision)

    async def all(self, board: str) -> list[Checkpoint]:
        """All checkpoints, the oldest first."""
        pinned = {stored.name for stored in await self.stored(board) if stored.pinned}
        return [
            checkpoint_of(board, entry, pinned=_name_of(entry) in pinned)
            for entry in await self.entries(board)
        ]

    async def stored(self, board: str) -> Sequence[Stored]:
        """What the archive has of them; nothing without an archive."""
        archive = self._host.archive
        return () if archive is None else await archive.checkpoints(board)

    async def sealed(self, board: str, name: str) -> tuple[Checkpoint, Stored]:
        """A checkpoint with its manifest, once the archive has sealed it.

        Errors: NoSuchCheckpoint; Unavailable while the archive is behind.
        """
        reading = await self._host.store.read(board, [checkpoint_key(check_checkpoint(name))])
        if not reading.entries:
            raise NoSuchCheckpoint(board, name)
        await self._past.reach(board, reading.entries[0].mod_revision)
        for stored in await self.stored(board):
            if stored.name == name:
                entry = reading.entries[0]
                return checkpoint_of(board, entry, pinned=stored.pinned), stored
        raise NoSuchCheckpoint(board, name)

    async def pin(self, board: str, name: str, *, pinned: bool) -> None:
        """Keep a checkpoint from being pruned, or no longer. Errors: NoSuchCheckpoint."""
        await self.sealed(board, name)
        await self._past.archive.pin(board, name, pinned=pinned)


def _record(wish: CheckpointWish, by: str, answers: Answers | None) -> dict[str, Any]:
    barrier = answers and {
        "asked": answers.asked,
        "delivered": list(answers.delivered),
        "not_fresh": list(answers.not_fresh),
        "left": list(answers.left),
    }
    return {
        "kind": wish.kind,
        "by": by,
        "note": wish.note,
        "request": wish.request,
        "barrier": barrier,
    }


def checkpoint_of(board: str, entry: Entry, *, pinned: bool = False) -> Checkpoint:
    """The checkpoint that `entry` is. Errors: Corrupt."""
    told = decode_value(entry.value)
    try:
        barrier = told["barrier"] and Answers(
            told["barrier"]["asked"],
            *(tuple(told["barrier"][name]) for name in ("delivered", "not_fresh", "left")),
        )
        return Checkpoint(
            board,
            _name_of(entry),
            entry.mod_revision,
            entry.time_ms,
            told["kind"],
            told["by"],
            told["note"],
            barrier,
            pinned,
        )
    except (KeyError, TypeError) as error:
        raise Corrupt(what=entry.key, reason=f"no checkpoint: {error!r}") from error


def _name_of(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]


def _request_of(entry: Entry) -> str:
    return str(decode_value(entry.value).get("request"))
