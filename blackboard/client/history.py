"""The past of a board, as people and agents use it: the part of `Board` that travels in time.

    await board.checkpoint("before-plan", note="all three agents agree")
    ...
    for change in (await board.diff("before-plan")).changes:
        print(change)
    await board.restore("before-plan")                      # this board, for everybody
    other = await board.branch("cheaper", "before-plan")    # or a new one, beside it

A moment is a revision, the name of a checkpoint, "now", or a `datetime`. What you see of the past
is what you may read now.
"""

import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from blackboard.client.diff import Diff, KeyChange
from blackboard.client.documents.documents_past import document_at
from blackboard.client.export import Exported, export_board
from blackboard.client.link import Link
from blackboard.client.views import Entry, Listing, Version
from blackboard.client.writer import Writer
from blackboard.core.checkpoints import (
    AUTOMATIC,
    NAMED,
    NOW,
    ORIGIN_KEY,
    BranchWish,
    Checkpoint,
    CheckpointWish,
    DiffRequest,
    Instant,
    Moment,
    Origin,
    Policy,
    Pruned,
    Restored,
    RestoreWish,
    Shown,
    Verified,
    check_checkpoint,
    named_by_time,
)
from blackboard.core.commit import Epoch
from blackboard.core.documents.keys import document_of
from blackboard.core.path import check_name
from blackboard.errors import InvalidRequest
from blackboard.types import (
    CHECKPOINTS_PAGE_MAX,
    DIFF_KEYS_MAX,
    HISTORY_VERSIONS_MAX,
    LIST_ENTRIES_MAX,
    REVISION_MAX,
    Key,
    Milliseconds,
    Revision,
)
from blackboard.wire.codec import decode_value

When = Moment | datetime
"""A moment as people write it: 4711, "before-plan", "now", or a `datetime`."""


class Timeline:
    """What a `Board` does with its past. Errors of all: NoSuchCheckpoint for a name that nobody
    gave, FutureRevision above the head, Compacted for what was pruned, AccessDenied; Unavailable
    while the archive is behind; OutcomeUnknown of what changes something and may have been done."""

    name: str

    def __init__(self, link: Link, name: str) -> None:
        self.name = name
        self._link = link
        self._writer = Writer(link, name)

    # --- reading, now and then --------------------------------------------------------------------

    async def get(self, key: Key, default: Any = None, *, at: When | None = None) -> Any:
        """The value at `key`, or `default` when it is absent. Errors: AccessDenied.

        With `at` (a revision, the name of a checkpoint, a `datetime`), as it was then.
        """
        entry = await self.entry(key, at=at)
        return default if entry is None else entry.value

    async def entry(self, key: Key, *, at: When | None = None) -> Entry | None:
        """The entry at `key` with its revisions and author, or None when it is absent."""
        return (await self.entries([key], at=at)).get(key)

    async def entries(self, keys: Sequence[Key], *, at: When | None = None) -> dict[Key, Entry]:
        """Up to READ_KEYS_MAX entries, all as of one revision; absent keys are left out."""
        reading = await self._link.read(self.name, keys, at=moment_of(at))
        self._writer.saw(reading.revision, "" if at is not None else reading.epoch)
        return {entry.key: Entry.of(entry) for entry in reading.entries}

    async def list(
        self,
        pattern: str,
        *,
        after: Key | None = None,
        limit: int = LIST_ENTRIES_MAX,
        at: When | None = None,
    ) -> Listing:
        """A page of the entries that match `pattern` (`public/plan/**`), in key order."""
        reading = await self._link.list(
            self.name, pattern, after=after, limit=limit, at=moment_of(at)
        )
        self._writer.saw(reading.revision, "" if at is not None else reading.epoch)
        entries = tuple(Entry.of(entry) for entry in reading.entries)
        return Listing(reading.revision, entries, reading.next_key)

    async def scan(self, pattern: str, *, at: When | None = None) -> AsyncIterator[Entry]:
        """All entries that match, page by page; two pages may be of different revisions.

        With `at`, all are as they were then.
        """
        after: Key | None = None
        while True:
            page = await self.list(pattern, after=after, at=at)
            for entry in page.entries:
                yield entry
            after = page.next_key
            if after is None:
                return
            at = at and page.revision

    # --- checkpoints ------------------------------------------------------------------------------

    async def checkpoint(
        self,
        name: str | None = None,
        *,
        note: str = "",
        barrier_ms: Milliseconds | None = None,
        stale_ok: bool = False,
    ) -> Checkpoint:
        """Name the present revision: one consistent cut of everything on the board.

        It stops nobody and costs one log entry, whatever the size of the board. Without a `name`
        it gets one from the time, and pruning treats it as an automatic one.

        With `barrier_ms`, every attached agent first brings in what it knows (see `attach`), for
        at most that long. Errors: BarrierMissed when one did not, unless `stale_ok`: then the
        checkpoint says who. Conflict when the name is taken: a checkpoint is never moved.
        Cancellation: it may have been taken.
        """
        request = secrets.token_hex(8)
        kind = AUTOMATIC if name is None else NAMED
        named = name or named_by_time(datetime.now(UTC), request)
        wish = CheckpointWish(named, request, note, barrier_ms, stale_ok, kind)
        taken = await self._link.checkpoint(self.name, wish)
        self._writer.saw(taken.revision)
        return taken

    async def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All checkpoints of the board, the oldest first."""
        found: list[Checkpoint] = []
        after: Revision = 0
        while True:
            page = await self._link.checkpoints(self.name, after=after, limit=CHECKPOINTS_PAGE_MAX)
            found += page
            if len(page) < CHECKPOINTS_PAGE_MAX:
                return tuple(found)
            after = page[-1].revision

    async def show(self, name: str) -> Shown:
        """A checkpoint with its manifest, as far as you may see it; waits until it is sealed."""
        return await self._link.manifest(self.name, name)

    async def pin(self, name: str) -> None:
        """Keep a checkpoint from being pruned."""
        await self._link.pin(self.name, name, pinned=True)

    async def unpin(self, name: str) -> None:
        """Let a checkpoint be pruned again."""
        await self._link.pin(self.name, name, pinned=False)

    async def prune(self, policy: Policy | None = None, *, dry_run: bool = False) -> Pruned:
        """Remove the checkpoints, and the history, that `policy` does not keep.

        What a pin or a branch needs always stays. With `dry_run`: only say what would go.
        """
        return await self._link.prune(self.name, policy or Policy(), dry_run=dry_run)

    # --- restore, branch --------------------------------------------------------------------------

    async def restore(self, to: When, *, note: str = "") -> Restored:
        """Make the content of the board what it was at `to`: public, private, inboxes, all at once.

        It is one new revision under a new epoch. Every lease ends, and every writer is told
        StaleEpoch (cause "restore") until it refreshes; nothing of the abandoned future gets in any
        more. That future stays readable, up to the checkpoint that is taken before. This very board
        need not be refreshed; a step on it that is under way is refused all the same.

        Errors: LimitExceeded when more than RESTORE_CHANGES_MAX keys changed since (a branch has no
        such limit); Corrupt when the archive does not hold what was sealed. Whatever is raised but
        OutcomeUnknown, nothing changed; after that, the entry `system/restores/<its request>` tells
        for a day whether it was done.
        Cancellation: the board is restored, or it is not.
        """
        wish = RestoreWish(_moment(to), secrets.token_hex(8), note)
        restored = await self._link.restore(self.name, wish)
        # Nobody is asked where the board is now: that could fail, and the restore took effect.
        self._take(restored.epoch, restored.revision)
        return restored

    def _take(self, epoch: Epoch, revision: Revision) -> None:
        """Go on in `epoch`, from `revision`."""
        self._writer.take(epoch, revision)

    async def rewind(
        self,
        *,
        to: Revision | None = None,
        at: datetime | None = None,
        before: Revision | None = None,
        note: str = "",
    ) -> Restored:
        """As `restore`: to a revision, to a point in time, or to just before a revision."""
        given = [when for when in (to, at, before) if when is not None]
        if len(given) != 1:
            raise InvalidRequest(field="rewind", reason="one of to, at, before is needed")
        (when,) = given
        if before is None:
            return await self.restore(when, note=note)
        if before < 1:
            raise InvalidRequest(field="before", reason=f"nothing was before revision {before}")
        return await self.restore(before - 1, note=note)

    async def branch(self, new: str, at: When = NOW, *, note: str = "") -> Self:
        """A new board that begins as this one was at `at`; `note` says what it is to try out.

        The two are independent afterwards. The past of this board is readable through the new one.
        Errors: InvalidRequest when there is a board of that name; Corrupt when the archive does not
        hold what was sealed. A branch exists whole, or not.
        """
        wish = BranchWish(check_name(new, "board"), _moment(at), secrets.token_hex(8), note)
        await self._link.branch(self.name, wish)
        return type(self)(self._link, new)

    async def origin(self) -> Origin | None:
        """Where this board branched off, or was exported; None if it began empty."""
        reading = await self._link.read(self.name, [ORIGIN_KEY])
        if not reading.entries:
            return None
        told = decode_value(reading.entries[0].value)
        return Origin(told["board"], told["revision"], told["by"], told["note"], told["request"])

    # --- looking back -----------------------------------------------------------------------------

    async def diff(
        self,
        a: When,
        b: When = NOW,
        *,
        other: str | None = None,
        pattern: str = "**",
        limit: int = DIFF_KEYS_MAX,
    ) -> Diff:
        """What became different between moments `a` and `b`, by key, as far as you may read it.

        With `other`, `b` is a moment of that board, which must be of the same family of branches.
        At most `limit` keys; `Diff.more` says whether there are others. A document is one change,
        at its key: its values are what it says by root, and texts are compared as texts.
        """
        found: list[KeyChange] = []
        request = DiffRequest(_moment(a), _moment(b), other, pattern)
        revisions, document = (0, 0), None
        async for page in self._pages(request):
            revisions = (page.a, page.b)
            for change in page.changes:
                last, document = document, document_of(change.key)
                if document is None:
                    found.append(change)
                elif document != last:
                    found += await self._document_change(document, page, other)
            if len(found) > limit:
                break
        return Diff(*revisions, tuple(found[:limit]), len(found) > limit)

    async def _document_change(
        self, key: Key, page: Diff, other: str | None
    ) -> tuple[KeyChange, ...]:
        """What became different in a document, if that is more than how it is kept."""
        before = await document_at(self._link, self.name, key, page.a)
        after = await document_at(self._link, other or self.name, key, page.b)
        if before is not None and after is not None and before.value == after.value:
            return ()
        return (KeyChange(key, before, after),)

    async def differences(
        self, a: When, b: When = NOW, *, other: str | None = None, pattern: str = "**"
    ) -> AsyncIterator[KeyChange]:
        """As `diff`, one by one in key order, without a limit; documents as they are kept."""
        async for page in self._pages(DiffRequest(_moment(a), _moment(b), other, pattern)):
            for change in page.changes:
                yield change

    async def _pages(self, request: DiffRequest) -> AsyncIterator[Diff]:
        while True:
            page = await self._link.differences(self.name, request)
            more = page.next_key is not None
            yield Diff(page.a, page.b, tuple(map(KeyChange.of, page.differences)), more)
            if not more:
                return
            # The revisions of the first page: "now" moves on while we read.
            request = DiffRequest(
                page.a, page.b, request.other, request.pattern, page.next_key, request.limit
            )

    async def history(
        self, key: Key, *, before: Revision | None = None, limit: int = HISTORY_VERSIONS_MAX
    ) -> tuple[Version, ...]:
        """What `key` held, the newest first; at most `limit`, `before` continues.

        A branch tells its parent's part of the history too, and so does a restored board that of
        the abandoned future.
        """
        found = await self._link.history(self.name, key, before=before, limit=limit)
        return tuple(
            Version(v.key, v.revision, v.time_ms, v.author, Entry.of(v.entry) if v.entry else None)
            for v in found
        )

    async def verify(self, at: When = NOW) -> Verified:
        """Check everything that is kept up to `at`: hash chain, digests, signatures.

        Errors: none for damage; `Verified.findings` names it.
        """
        return await self._link.verify(self.name, _moment(at))

    # --- files ------------------------------------------------------------------------------------

    async def export(self, name: str, file: str | Path, *, overwrite: bool = False) -> Exported:
        """Write checkpoint `name` into `file`, whole: every namespace, and its sealed manifest.

        The file appears when it is complete and on the disk; whatever ends the export before that
        leaves none. `Client.import_board` reads it.
        Errors: InvalidRequest when `file` exists, unless with `overwrite`: then a regular file is
        replaced, at once and as a whole, and nothing else (no device, no link, also to a file);
        when it cannot be written. Corrupt when the archive does not hold what was sealed.
        """
        return await export_board(self._link, self.name, name, Path(file), overwrite=overwrite)


def moment_of(when: When | None) -> Moment | None:
    """As the service knows it; None = the present. Errors: InvalidRequest."""
    return None if when is None else _moment(when)


def _moment(when: When) -> Moment:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidRequest(field="at", reason=f"{when} has no time zone")
        time_ms = int(when.timestamp() * 1000)
        if time_ms < 0:
            raise InvalidRequest(field="at", reason=f"{when} is before 1970")
        return Instant(time_ms)
    if type(when) is bool or not isinstance(when, int | str | Instant):
        raise InvalidRequest(field="at", reason=f"a {type(when).__name__} is no moment")
    if isinstance(when, str):
        return when if when == NOW else check_checkpoint(when)
    if isinstance(when, int) and not 0 <= when <= REVISION_MAX:
        raise InvalidRequest(field="at", reason=f"no revision: it is not in 0..{REVISION_MAX}")
    return when
