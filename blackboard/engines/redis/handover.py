"""Log entries of this process's own commits, handed to its own reader of the log.

A reader that waits for the log's next entry is woken by every commit. If the commit came from this
process, its entry is already here, and the reader takes it without a call to the server.

Invariants
- An entry is handed over only after its commit was answered, at the level that was asked for.
- It is made of the bytes that the log has, by the function that reads the log.
- A reader gets an entry only if it has everything before it: its position is where the last page
  of this board ended, and the revisions follow without a gap. Otherwise it reads the log.
- Only commits of the epoch in which the last page was read are kept. A restore, which begins an
  epoch, and an entry that is too large are read from the log.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import anyio
import msgpack
from msgspec.structs import replace

from blackboard.core.commit import Head, LogEntry, LogPage
from blackboard.limits import HANDOVER_BYTES_MAX, HANDOVER_WAIT_MS
from blackboard.units import Milliseconds, Revision
from blackboard.wire.codec import Prepared, decode_entry

COMMITTED: Final = 1
"""The kind of an outcome in a reply of commit.lua: a commit that has a log entry."""
_ABANDONED_S: Final = 1.0
"""A reader that has not come back for so long is gone. One that follows a board comes back at
once."""


class _Written(NamedTuple):
    """What the log has of one commit."""

    time_ms: Milliseconds
    prepared: Prepared
    results: bytes

    def entry(self, revision: Revision) -> LogEntry:
        """As `read_log_page` reads it. Errors: Corrupt."""
        prepared = self.prepared
        return decode_entry(revision, self.time_ms, prepared.body, prepared.large, self.results)


class Handover:
    """What this process committed to one board since its reader read the log."""

    def __init__(self) -> None:
        self._head: Head | None = None
        """The board as of the end of the last page; None = the next page is read from the log."""
        self._written: dict[Revision, _Written] = {}
        self._bytes = 0
        self._in_flight = 0
        self._landed: asyncio.Event | None = None
        self._readers = 0
        self._left_s = 0.0

    @property
    def is_abandoned(self) -> bool:
        """Whether its reader has gone."""
        return not self._readers and anyio.current_time() - self._left_s > _ABANDONED_S

    def continues(self, after: Revision) -> bool:
        """Whether the last page ended at `after`, with the newest entry of the log."""
        return self._head is not None and self._head.revision == after

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While its reader waits."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            self._left_s = anyio.current_time()

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """While a batch of commits is on its way; `note` its reply before it ends."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._landed is not None:
                self._landed.set()

    def note(self, batch: Sequence[Prepared], reply: Sequence[Any]) -> None:
        """Keep what a reply of commit.lua says was logged."""
        if self._head is None:
            return
        _, time_ms, *outcomes = reply
        for prepared, (kind, revision, *results) in zip(batch, outcomes, strict=True):
            if kind == COMMITTED and revision > self._head.revision:
                # Where nothing was computed, the reply has no results, and the log has their
                # number.
                packed = results[0] if results else msgpack.packb(len(prepared.commit.ops))
                self._keep(revision, _Written(time_ms, prepared, packed))

    def _keep(self, revision: Revision, written: _Written) -> None:
        commit, head = written.prepared.commit, self._head
        if head is None or commit.begins is not None or commit.epoch != head.epoch.id:
            return
        self._bytes += written.prepared.size
        self._written[revision] = written
        # All of it: to keep a part would leave a gap, which only the log can fill.
        if self._bytes > HANDOVER_BYTES_MAX:
            self.forget()

    def take(self, after: Revision, limit: int) -> LogPage | None:
        """The entries that follow `after`, at most `limit`; None if the log must be read."""
        head = self._head
        entries: list[LogEntry] = []
        if head is None or head.revision != after:
            return None
        while len(entries) < limit:
            written = self._written.pop(after + 1, None)
            if written is None:
                break
            after += 1
            self._bytes -= written.prepared.size
            entries.append(written.entry(after))
        if not entries:
            return None
        last, kept = entries[-1], head.log_entries + len(entries)
        self._head = replace(head, revision=after, time_ms=last.time_ms, log_entries=kept)
        return LogPage(self._head, tuple(entries))

    def read(self, page: LogPage) -> None:
        """Go on from a page that was read from the log, if it reached the head."""
        head = page.head
        # The log has more, so what is kept here does not follow on this page.
        if page.entries and page.entries[-1].revision != head.revision:
            self.forget()
            return
        self.check(head)
        self._head = head
        self._written = {r: each for r, each in self._written.items() if r > head.revision}
        self._bytes = sum(each.prepared.size for each in self._written.values())

    def check(self, head: Head) -> None:
        """Forget everything if the board is in another epoch than at the last page."""
        if self._head is not None and self._head.epoch.id != head.epoch.id:
            self.forget()

    async def settle(self, after: Revision) -> None:
        """The log has an entry after `after`. If it may be one of a batch whose reply is about to
        arrive, wait for that, at most HANDOVER_WAIT_MS."""
        if not self._in_flight or self._head is None or after + 1 in self._written:
            return
        # For all that wait now, and for nobody later: once set, it would end the next wait at once.
        landed = self._landed = self._landed or asyncio.Event()
        # Bounded, because the entry may be of another process: then the log is read.
        with anyio.move_on_after(HANDOVER_WAIT_MS / 1000):
            await landed.wait()
        if self._landed is landed:
            self._landed = None

    def forget(self) -> None:
        """Keep nothing: the next page is read from the log."""
        self._head = None
        self._written = {}
        self._bytes = 0


class Handovers:
    """The handovers of the boards whose logs are followed in this process."""

    def __init__(self) -> None:
        self._of: dict[str, Handover] = {}

    def to_reader(self, board: str) -> Handover:
        """The handover to a reader of `board` that waits."""
        return self._of.setdefault(board, Handover())

    def from_writer(self, board: str) -> Handover | None:
        """The handover of a batch on `board`; None when nobody follows it here."""
        found = self._of.get(board)
        if found is not None and found.is_abandoned:
            del self._of[board]
            return None
        return found

    def check(self, board: str, head: Head) -> None:
        """Hand over nothing of another epoch than that of `head`, as the server has it."""
        found = self._of.get(board)
        if found is not None:
            found.check(head)

    def forget(self, board: str) -> None:
        """Hand over nothing that was committed to `board` until now."""
        found = self._of.get(board)
        if found is not None:
            found.forget()
