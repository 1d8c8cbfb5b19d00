"""Takes and lists checkpoints.

A checkpoint is one entry, `system/checkpoints/<name>`; its revision is the cut. Its manifest is
written and signed by the archiver of that revision.

Invariants
- A name is used once: a checkpoint is never moved, and a repeated request gets the same answer.
- A checkpoint costs one log entry, regardless of the size of the board.

Before it takes a checkpoint, the module checks how large its manifest would be.

A manifest names every namespace and every agent of a board, and holds the agents' declarations. The
archiver makes it only after the checkpoint was accepted, and would also store a manifest larger
than MANIFEST_BYTES_MAX, which no board could import.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from blackboard import telemetry
from blackboard.archive.base import Archive
from blackboard.archive.fold import DECLARED
from blackboard.core import access
from blackboard.core.access import AccessGrant, Right
from blackboard.core.checkpoints import (
    BEFORE_RESTORE,
    CHECKPOINTS,
    BarrierReport as Answers,
    Checkpoint,
    CheckpointInfo,
    CheckpointRequest,
    Cut,
    Facts,
    Point,
    StoredCheckpoint,
    check_checkpoint,
    checkpoint_key,
    declared_key,
)
from blackboard.core.commit import ABSENT, Entry, Epoch, KeyAt, Put
from blackboard.errors import (
    BarrierMissed,
    BlackboardError,
    Conflict,
    Corrupt,
    LimitExceeded,
    NoSuchCheckpoint,
    OutcomeUnknown,
)
from blackboard.integrity.digest_check import sealed_form
from blackboard.integrity.manifest import Manifest, read_manifest
from blackboard.integrity.signing import KEY_BYTES, manifest_of
from blackboard.limits import CHECKPOINTS_MAX, MANIFEST_BYTES_MAX
from blackboard.server.boards import OpenBoard
from blackboard.server.checkpoints.barrier import Barrier
from blackboard.server.checkpoints.reader import HistoryReader
from blackboard.wire.codec import SYSTEM_AGENT, decode_value, encode_value

ROOM_BYTES: Final = 64 * 1024
"""Reserve for agents and namespaces that the archive does not know yet, and for new
declarations."""
_DECLARED_BYTES_MAX: Final = 4 * MANIFEST_BYTES_MAX
"""Bytes of declarations that are read. As JSON, values take at least a quarter of their bytes."""
_HASH: Final = bytes(32)


async def check_manifest(board: OpenBoard, archive: Archive, name: str, record: bytes) -> None:
    """Errors: LimitExceeded when the manifest of checkpoint `name`, whose entry will hold `record`,
    would be too large to be imported.

    Cost: a query of the archive, which knows the namespaces and agents up to its position. While it
    is unavailable, or takes longer than ENGINE_TIMEOUT_MS, nothing is refused.
    """
    try:
        async with asyncio.timeout(board.host.limits.engine.engine_timeout_ms / 1000):
            size = ROOM_BYTES + await _size(board, archive, name, record)
    except (BlackboardError, TimeoutError):
        return
    if size > MANIFEST_BYTES_MAX:
        raise LimitExceeded("MANIFEST_BYTES_MAX", size, MANIFEST_BYTES_MAX, board.name)


async def _size(board: OpenBoard, archive: Archive, name: str, record: bytes) -> int:
    """Bytes of the manifest, if the archive knows all namespaces and agents. The lengths of numbers
    are approximate."""
    mark = await archive.mark(board.name)
    facts = Facts({}, {})
    if mark is not None:
        facts = await archive.facts_at(Point(board.name, mark.revision))
    cut = Cut(
        board=board.name,
        name=name,
        revision=0,
        time_ms=0,
        author=SYSTEM_AGENT,
        epoch=Epoch(1, "") if mark is None else mark.epoch,
        chain=_HASH,
        facts=facts,
        record=record,
        declared=await _declared(board),
        previous=_HASH,
    )
    return len(manifest_of(cut, bytes(KEY_BYTES)))


async def _declared(board: OpenBoard) -> dict[str, bytes]:
    """The declarations of agents, as encoded in the log."""
    found: dict[str, bytes] = {}
    size = 0
    async for page in board.pages(DECLARED):
        for entry in page.entries:
            value = sealed_form(entry.value)
            found[entry.key.rpartition("/")[2]] = value
            size += len(value)
        if size > _DECLARED_BYTES_MAX:
            break
    return found


class Checkpoints:
    """The checkpoints of a board."""

    def __init__(self, board: OpenBoard) -> None:
        self._board = board
        self._past = HistoryReader(board)

    async def take(self, spec: CheckpointRequest, by: str) -> Checkpoint:
        """Take a checkpoint in the name of `by`. A repeated request gets the same answer.

        Errors: Conflict when the name is taken; BarrierMissed; LimitExceeded when there are
        CHECKPOINTS_MAX, or its manifest would be too large.
        """
        spec.check()
        if telemetry.is_on():
            spec = replace(spec, note=spec.note or telemetry.mark())
        found = await self._asked_before(spec)
        if found is not None:
            return found
        # Before agents are asked: a checkpoint that is refused must not hold them up.
        if spec.kind != BEFORE_RESTORE:  # a restore must not fail here
            await self._check_room()
        if spec.barrier_ms is None:
            return await self._put(spec, by, None)
        async with Barrier(self._board, spec.request, spec.barrier_ms) as barrier:
            answers = await barrier.answers()
            if answers.not_fresh and not spec.stale_ok:
                raise BarrierMissed(list(answers.not_fresh), spec.barrier_ms)
            return await self._put(spec, by, answers)

    async def _put(self, spec: CheckpointRequest, by: str, answers: Answers | None) -> Checkpoint:
        key = checkpoint_key(spec.name)
        record = encode_value(_record(spec, by, answers))
        archive = self._board.archive
        if archive is not None and spec.kind != BEFORE_RESTORE:  # a restore must not fail here
            await check_manifest(self._board, archive, spec.name, record)
        try:
            committed = await self._board.commit_as_system(
                [Put(key, record)], [KeyAt(key, ABSENT)], spec.note
            )
        except (Conflict, OutcomeUnknown) as error:
            # It may be this request's own: of an attempt without an answer, or of a copy.
            return await self._find_out(spec, error)
        telemetry.reached(committed.revision)
        return Checkpoint(
            self._board.name,
            spec.name,
            committed.revision,
            committed.time_ms,
            spec.kind,
            by,
            spec.note,
            answers,
        )

    async def _find_out(
        self, spec: CheckpointRequest, failure: Conflict | OutcomeUnknown
    ) -> Checkpoint:
        """The checkpoint of a request whose commit ended with `failure`. Errors: that, if there is
        none; a commit whose outcome is unknown stays unknown if it cannot be looked for."""
        try:
            found = await self._asked_before(spec)
        except Conflict:
            raise
        except BlackboardError as error:
            # Not `error`: Unavailable would say that the checkpoint was certainly not taken.
            raise failure from error
        if found is None:
            raise failure
        return found

    async def _asked_before(self, spec: CheckpointRequest) -> Checkpoint | None:
        """The checkpoint that the same request took. Errors: Conflict if another request took
        it."""
        key = checkpoint_key(spec.name)
        reading = await self._board.read([key])
        if not reading.entries:
            return None
        found = checkpoint_of(self._board.name, reading.entries[0])
        if _request_of(reading.entries[0]) != spec.request:
            revision = found.revision
            raise Conflict(
                key, ABSENT, revision, by=found.by, at_revision=revision, head=reading.revision
            )
        return found

    async def _check_room(self) -> None:
        count = len(await self.entries())
        if count >= CHECKPOINTS_MAX:
            raise LimitExceeded("CHECKPOINTS_MAX", count + 1, CHECKPOINTS_MAX)

    # --- which there are --------------------------------------------------------------------------

    async def entries(self) -> list[Entry]:
        """The entries of checkpoints, oldest first."""
        found = [entry async for entry in self._board.entries(CHECKPOINTS)]
        return sorted(found, key=lambda entry: entry.mod_revision)

    async def all(self) -> list[Checkpoint]:
        """All checkpoints, oldest first, including those that the engine lost and the archive
        has."""
        present = await self.present()
        names = {found.name for found in present}
        gone: dict[str, Checkpoint] = {}
        for lost in await self._past.lost_checkpoints():
            if lost.name not in names:
                # They come newest first, and of one name the newest counts.
                gone.setdefault(lost.name, _lost(lost))
        return sorted([*present, *gone.values()], key=lambda found: found.revision)

    async def present(self) -> list[Checkpoint]:
        """The checkpoints that the engine has, oldest first."""
        pinned = {stored.name for stored in await self.stored() if stored.pinned}
        return [
            checkpoint_of(self._board.name, entry, pinned=_name_of(entry) in pinned)
            for entry in await self.entries()
        ]

    async def stored(self) -> Sequence[StoredCheckpoint]:
        """The archived checkpoints; none without an archive."""
        archive = self._board.archive
        return () if archive is None else await archive.checkpoints(self._board.name)

    async def sealed(self, name: str) -> tuple[Checkpoint, StoredCheckpoint]:
        """A checkpoint with its manifest, once the archive has signed it.

        Errors: NoSuchCheckpoint; Unavailable while the archive is behind.
        """
        reading = await self._board.read([checkpoint_key(check_checkpoint(name))])
        if not reading.entries:
            lost = await self._past.lost_checkpoint(name)
            if lost is None:
                raise NoSuchCheckpoint(self._board.name, name)
            return _lost(lost), lost
        entry = reading.entries[0]
        await self._past.reach(entry.mod_revision)
        for stored in await self.stored():
            # By the revision, too: a lost checkpoint may have had the same name.
            if (stored.name, stored.revision) == (name, entry.mod_revision):
                return checkpoint_of(self._board.name, entry, pinned=stored.pinned), stored
        raise NoSuchCheckpoint(self._board.name, name)

    async def pin(self, name: str, *, pinned: bool) -> None:
        """Protect a checkpoint from pruning, or end the protection. Errors: NoSuchCheckpoint."""
        # The pin is kept in the archive, which may not have the checkpoint yet.
        await self.sealed(name)
        await self._past.archive.pin(self._board.name, name, pinned=pinned)


def _record(spec: CheckpointRequest, by: str, answers: Answers | None) -> dict[str, Any]:
    barrier = answers and {
        "asked": answers.asked,
        "delivered": list(answers.delivered),
        "not_fresh": list(answers.not_fresh),
        "left": list(answers.left),
        "until_cut": True,  # each commit between delivery and cut included the agent's memory
    }
    return {
        "kind": spec.kind,
        "by": by,
        "note": spec.note,
        "request": spec.request,
        "barrier": barrier,
    }


def info_of(
    checkpoint: Checkpoint, stored: StoredCheckpoint, grants: tuple[AccessGrant, ...]
) -> CheckpointInfo:
    """A checkpoint with the part of its manifest that `grants` allow reading. Errors: Corrupt."""
    manifest, readable = Manifest.read(stored.manifest), access.readable(grants)
    return CheckpointInfo(
        checkpoint,
        manifest.epoch,
        manifest.chain.hex(),
        manifest.previous.hex(),
        {
            namespace: found.hex()
            for namespace, found in manifest.digests.items()
            if access.allows_below(grants, Right.READ, namespace)
        },
        {agent: at for agent, at in manifest.steps.items() if agent != SYSTEM_AGENT},
        {
            agent: declared
            for agent, declared in manifest.declared.items()
            if readable(declared_key(agent))
        },
        manifest.key.hex(),
        manifest.memory,
    )


def _lost(stored: StoredCheckpoint) -> Checkpoint:
    """A checkpoint that only the archive has, from its manifest. Errors: Corrupt."""
    record = encode_value(read_manifest(stored.manifest).get("record"))
    revision, time_ms = stored.revision, stored.time_ms
    key = checkpoint_key(stored.name)
    entry = Entry(key, record, revision, revision, SYSTEM_AGENT, time_ms)
    return checkpoint_of(stored.board, entry, pinned=stored.pinned)


def checkpoint_of(board: str, entry: Entry, *, pinned: bool = False) -> Checkpoint:
    """The checkpoint that `entry` records. Errors: Corrupt."""
    record = decode_value(entry.value)
    try:
        barrier = record["barrier"] and Answers(
            record["barrier"]["asked"],
            *(tuple(record["barrier"][name]) for name in ("delivered", "not_fresh", "left")),
        )
        return Checkpoint(
            board,
            _name_of(entry),
            entry.mod_revision,
            entry.time_ms,
            record["kind"],
            record["by"],
            record["note"],
            barrier,
            pinned,
        )
    except (KeyError, TypeError) as error:
        raise Corrupt(what=entry.key, reason=f"no checkpoint: {error!r}") from error


def _name_of(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]


def _request_of(entry: Entry) -> str:
    return str(decode_value(entry.value).get("request"))
