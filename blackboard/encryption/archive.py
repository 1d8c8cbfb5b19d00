"""An archive that stores ciphertext and returns plain values.

A branch shares the history of its origin, so its older values are decrypted with the data keys of
that board.
"""

import dataclasses
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from blackboard.archive.base import Archive, Pause, let_others_run
from blackboard.core.checkpoints import (
    Difference,
    Facts,
    Lost,
    Mark,
    Point,
    PrunedRows,
    RedactedRows,
    StoredCheckpoint,
    Version,
)
from blackboard.core.commit import FORWARD, Change, Entry, Head, ListOptions, LogEntry, Reading
from blackboard.core.history import Tally
from blackboard.core.path import Ranges
from blackboard.encryption.data_keys import DataKeys
from blackboard.encryption.places import Places
from blackboard.encryption.store import Opener
from blackboard.integrity.digest_check import Opened, sealed_form
from blackboard.integrity.envelope import is_sealed
from blackboard.limits import LOG_ENTRIES_MAX
from blackboard.units import Key, Milliseconds, Prefix, Revision


class SealedArchive:
    """An `Archive` in front of one that stores ciphertext; see there for each method.

    Methods that read also raise Corrupt: when a value cannot be decrypted, is not encrypted where
    all are, or (in the log) is not in the place for which it was encrypted.
    """

    def __init__(self, raw: Archive, keys: DataKeys, places: Places) -> None:
        self.raw = raw
        self._opener = Opener(keys)
        self._places = places
        places.past = self._logged

    async def _logged(
        self, board: str, after: Revision, upto: Revision
    ) -> "tuple[Sequence[str], Sequence[LogEntry]]":
        """As `Past` of places.py."""
        # From the archive behind: the log of this one is checked by `Places`, which asks here.
        found = await self.raw.log(board, after, until=upto, limit=LOG_ENTRIES_MAX)
        return await self._family(board), found

    async def mark(self, board: str) -> Mark | None:
        """As `Archive.mark`."""
        return await self.raw.mark(board)

    async def mark_at(self, at: Point) -> Mark:
        """As `Archive.mark_at`."""
        return await self.raw.mark_at(at)

    async def boards(self) -> Sequence[str]:
        """As `Archive.boards`."""
        return await self.raw.boards()

    async def ends(self) -> Mapping[str, Revision]:
        """As `Archive.ends`."""
        return await self.raw.ends()

    async def holds(self, board: str) -> bool:
        """As `Archive.holds`."""
        return await self.raw.holds(board)

    async def lost(self, board: str) -> Lost | None:
        """As `Archive.lost`."""
        return await self.raw.lost(board)

    async def digest_at(self, at: Point) -> bytes | None:
        """As `Archive.digest_at`."""
        return await self.raw.digest_at(at)

    async def take(self, board: str, owner: str, ttl_ms: Milliseconds) -> int | None:
        """As `Archive.take`."""
        return await self.raw.take(board, owner, ttl_ms)

    async def give_up(self, board: str, fence: int) -> None:
        """As `Archive.give_up`."""
        await self.raw.give_up(board, fence)

    async def join(
        self,
        board: str,
        fence: int,
        head: Head,
        pages: AsyncIterator[Reading],
        *,
        items: Sequence[tuple[Prefix, int]] = (),
        apart: bool = False,
    ) -> Mark:
        """As `Archive.join`; decrypted values are stored as their ciphertext."""

        async def sealed() -> AsyncIterator[Reading]:
            async for page in pages:
                yield replace(page, entries=tuple(sealed_entry(entry) for entry in page.entries))

        return await self.raw.join(board, fence, head, sealed(), items=items, apart=apart)

    async def branch(self, board: str, origin: Point) -> Mark:
        """As `Archive.branch`."""
        return await self.raw.branch(board, origin)

    async def append(
        self,
        board: str,
        fence: int,
        after: Revision,
        entries: Sequence[LogEntry],
        pause: Pause = let_others_run,
    ) -> Mark:
        """As `Archive.append`; decrypted values are stored as their ciphertext."""
        sealed = [_sealed(entry) for entry in entries]
        return await self.raw.append(board, fence, after, sealed, pause)

    @property
    def leaves_values(self) -> bool:
        """As `Archive.leaves_values`."""
        return self.raw.leaves_values

    async def copy_values(
        self, board: str, below: Revision | None = None, *, if_shared: bool = False
    ) -> None:
        """As `Archive.copy_values`."""
        await self.raw.copy_values(board, below, if_shared=if_shared)

    async def refers(self, board: str) -> bool:
        """As `Archive.refers`."""
        return await self.raw.refers(board)

    async def fill(self, board: str, found: Sequence[tuple[Revision, Key, bytes]]) -> None:
        """As `Archive.fill`; decrypted values are stored as their ciphertext."""
        await self.raw.fill(board, [(at, key, sealed_form(value)) for at, key, value in found])

    async def settle(self, board: str) -> Revision:
        """As `Archive.settle`."""
        return await self.raw.settle(board)

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, at: Point, keys: Sequence[Key]) -> Reading:
        """As `Archive.read`. Errors: also Corrupt, when a value cannot be decrypted."""
        return await self._opened(at.board, await self.raw.read(at, keys))

    async def items(
        self, at: Point, *, unless: Point | None = None
    ) -> Sequence[tuple[Prefix, int]]:
        """As `Archive.items`."""
        return await self.raw.items(at, unless=unless)

    async def history(
        self,
        at: Point,
        key: Key,
        *,
        before: Revision | None = None,
        after: Revision | None = None,
        author: str | None = None,
        limit: int,
    ) -> Sequence[Version]:
        """As `Archive.history`."""
        read = partial(self.raw.history, at, key, before=before, after=after)
        found = await read(author=author, limit=limit)
        return [dataclasses.replace(v, entry=await self._entry(at.board, v.entry)) for v in found]

    async def differences(
        self,
        a: Point,
        b: Point,
        within: Prefix | Ranges = "",
        *,
        after: Key | None = None,
        limit: int,
    ) -> Sequence[Difference]:
        """As `Archive.differences`: a value that was encrypted again counts as different."""
        found = await self.raw.differences(a, b, within, after=after, limit=limit)
        return [
            Difference(
                d.key, await self._entry(a.board, d.before), await self._entry(b.board, d.after)
            )
            for d in found
        ]

    async def log(
        self, board: str, after: Revision, *, until: Revision, limit: int
    ) -> Sequence[LogEntry]:
        """As `Archive.log`."""
        found = await self.raw.log(board, after, until=until, limit=limit)
        family = await self._family(board)
        await self._places.check_archived(family, found)
        return await self._opener.log(family, found)

    async def count(self, board: str, within: Ranges, tally: Tally) -> Revision:
        """As `Archive.count`: names and authors are not encrypted."""
        return await self.raw.count(board, within, tally)

    async def at_time(self, board: str, time_ms: Milliseconds) -> Revision:
        """As `Archive.at_time`."""
        return await self.raw.at_time(board, time_ms)

    async def before_time(self, board: str, time_ms: Milliseconds) -> Revision:
        """As `Archive.before_time`."""
        return await self.raw.before_time(board, time_ms)

    async def facts_at(self, at: Point) -> Facts:
        """As `Archive.facts_at`: the digests are those of the ciphertext."""
        return await self.raw.facts_at(at)

    async def digests_at(self, at: Point) -> Mapping[str, bytes] | None:
        """As `Archive.digests_at`: those of the ciphertext."""
        return await self.raw.digests_at(at)

    async def sums_at(self, at: Point, namespaces: Sequence[str]) -> Mapping[str, int]:
        """As `Archive.sums_at`: those of the ciphertext."""
        return await self.raw.sums_at(at, namespaces)

    async def checkpoints(self, board: str) -> Sequence[StoredCheckpoint]:
        """As `Archive.checkpoints`."""
        return await self.raw.checkpoints(board)

    async def pin(self, board: str, name: str, *, pinned: bool) -> None:
        """As `Archive.pin`."""
        await self.raw.pin(board, name, pinned=pinned)

    async def forget(self, board: str, name: str, revision: Revision) -> None:
        """As `Archive.forget`."""
        await self.raw.forget(board, name, revision)

    async def since_bytes(self, board: str, history_bytes: int) -> Revision:
        """As `Archive.since_bytes`."""
        return await self.raw.since_bytes(board, history_bytes)

    async def prune(
        self, board: str, keep: Sequence[Revision], below: Revision, *, dry_run: bool = False
    ) -> PrunedRows:
        """As `Archive.prune`."""
        return await self.raw.prune(board, keep, below, dry_run=dry_run)

    async def family(self, board: str) -> Sequence[str]:
        """As `Archive.family`."""
        return await self.raw.family(board)

    async def redact(
        self,
        board: str,
        key: Key,
        upto: Mapping[str, Revision],
        pause: Pause = let_others_run,
    ) -> RedactedRows:
        """As `Archive.redact`."""
        return await self.raw.redact(board, key, upto, pause)

    async def scrub(self) -> str:
        """As `Archive.scrub`."""
        return await self.raw.scrub()

    async def remove(self, board: str, keep: Collection[str] = ()) -> bool:
        """As `Archive.remove`."""
        return await self.raw.remove(board, keep)

    async def sweep(self) -> None:
        """As `Archive.sweep`."""
        await self.raw.sweep()

    async def verify(self, at: Point) -> AsyncIterator[str]:
        """As `Archive.verify`. It needs no key, so it also covers erased values."""
        async for finding in self.raw.verify(at):
            yield finding

    async def aclose(self) -> None:
        """As `Archive.aclose`."""
        await self.raw.aclose()

    async def list(
        self,
        at: Point,
        within: Prefix | Ranges,
        *,
        after: Key | None = None,
        limit: int,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> Reading:
        """As `Archive.list`."""
        found = await self.raw.list(
            at, within, after=after, limit=limit, reverse=reverse, keys_only=keys_only
        )
        return found if keys_only else await self._opened(at.board, found)

    async def children(
        self,
        at: Point,
        within: Ranges,
        prefix: Prefix,
        *,
        after: Key | None = None,
        limit: int,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """As `Archive.children`. Errors: also Corrupt."""
        read = partial(self.raw.children, at, within, prefix, after=after)
        found = await read(limit=limit, options=options)
        return found if options.keys_only else await self._opened(at.board, found)

    async def _opened(self, board: str, reading: Reading) -> Reading:
        # Before the family is looked up, which takes a query for each of its boards.
        if not any(map(self._concerns, reading.entries)):
            return reading
        family = await self._family(board)
        for entry in reading.entries:
            await self._places.check_past(family, entry)
        return replace(reading, entries=await self._opener.entries(family, reading.entries))

    def _concerns(self, entry: Entry) -> bool:
        return is_sealed(entry.value) or self._places.seals(entry.key)

    async def _entry(self, board: str, entry: Entry | None) -> Entry | None:
        if entry is None or not self._concerns(entry):
            return entry
        family = await self._family(board)
        await self._places.check_past(family, entry)
        return await self._opener.entry(family, entry)

    async def _family(self, board: str) -> "Sequence[str]":
        """A board and its origins, whose keys its history may need."""
        found = [board]
        while (mark := await self.raw.mark(found[-1])) is not None:
            found += [mark.called] if mark.called else []
            # A board may branch off a board that branched off an earlier one of its own name.
            if mark.origin is None or mark.origin.board in found:
                break
            found.append(mark.origin.board)
        return found


def sealed_entry(entry: Entry) -> Entry:
    """An entry in its stored form."""
    if not isinstance(entry.value, Opened):
        return entry
    return replace(entry, value=entry.value.sealed)


def _sealed(entry: LogEntry) -> LogEntry:
    return replace(entry, changes=tuple(_sealed_change(change) for change in entry.changes))


def _sealed_change(change: Change) -> Change:
    return change if change.value is None else replace(change, value=sealed_form(change.value))
