"""The copy of a document on which edits are tried before they are committed.

It holds committed edits and those in flight. Whenever it may hold more, it is dropped, and created
again for the next edit; readers need none.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from blackboard.client.documents.layout import StoredDocument
from blackboard.client.documents.replica import DamagedError, Replica, check_harmless
from blackboard.core.documents import update as crdt
from blackboard.core.documents.compare import differing, known_from
from blackboard.core.documents.update import Id, Pairs, Update
from blackboard.errors import DocumentRefused, InvalidRequest
from blackboard.limits import DOCUMENT_BYTES_MAX, DOCUMENT_UPDATE_BYTES_MAX
from blackboard.units import Key

_FOUR_BYTES: Final = re.compile(rb"[\xf0-\xf4][\x80-\xbf]{3}")
"""The UTF-8 form of a surrogate pair's character, or a byte that looks like it."""


class EditStaging:
    """Tries edits of the document at `key`, on top of `live()` and the edits in flight, which
    `flying` yields."""

    def __init__(self, key: Key, live: Callable[[], Replica], flying: Iterable[bytes]) -> None:
        self._key = key
        self._live = live
        self._flying = flying
        self._copy: Replica | None = None
        self._pairs = Pairs()
        self.bytes = 0
        """The units of the document, or a few more."""

    async def begin(self, stored: StoredDocument) -> None:
        """Begin with a loaded document. Its surrogate pairs are read in a thread: 6 us for each
        insertion."""
        updates = [stored.base.state, *(item.update for item in stored.items)]
        self.bytes = sum(map(len, updates))
        found = [update for update in updates if _FOUR_BYTES.search(update)]
        if found:
            self._pairs = await asyncio.to_thread(_pairs_of, found)

    def read(self, data: bytes) -> Update:
        """Parse an edit. Errors: DocumentRefused."""
        if len(data) > DOCUMENT_UPDATE_BYTES_MAX:
            raise self.refused("too_large", f"an update of {len(data)} bytes")
        try:
            return crdt.read_update(data)
        except InvalidRequest as error:
            raise self.refused("malformed", error.reason) from error

    def news(self, update: Update) -> Mapping[int, int]:
        """As `Update.news`. Errors: DocumentRefused when it builds on what is missing."""
        clocks = self._made().clocks
        gap = update.gap(clocks)
        if gap is not None:
            raise self.refused("gap", crdt.missing(gap).reason)
        if self._pairs.cut_by(update, clocks) is not None:
            raise self.refused("malformed", "it cuts a character in two")
        return update.news(clocks)

    def other_than_known(self, data: bytes, update: Update) -> Id | None:
        """A known unit of which the edit has a different version; None if there is none.

        Cost: what the clients concerned have written since is encoded and read, once.
        """
        copy = self._made()
        since = known_from(update.structs, copy.clocks)
        if not since:
            return None
        known = copy.update_since(crdt.write_state({**copy.clocks, **since}))
        return differing(data, known, copy.clocks)

    def take(self, data: bytes, update: Update) -> tuple[bytes, Update]:
        """Try an edit that was read as `update`; returns what is new in it.

        Errors: DocumentRefused; the edit is not in the copy.
        """
        copy = self._made()
        try:
            before = dict(copy.clocks)
            news = copy.apply(data, update)
            if news != data:  # otherwise the library has just encoded all of it
                check_harmless(data)
                copy.update_since(crdt.write_state(before))
            if news not in (data, crdt.EMPTY_UPDATE):
                check_harmless(news)
                update = crdt.read_update(news)
        except (DamagedError, InvalidRequest) as error:
            # The library may have applied a part of it.
            self.forget()
            raise self.refused("malformed", str(error)) from error
        if news != crdt.EMPTY_UPDATE:
            self._check_size(len(news))
            self._pairs.add(update.pairs)
        return news, update

    def _check_size(self, more: int) -> None:
        self.bytes += more
        if self.bytes <= DOCUMENT_BYTES_MAX:
            return
        # The sum also counts what was deleted or repeated. The true size is found by encoding
        # everything, so it is asked only when the sum is too large.
        self.bytes = len(self._made().update_since())
        if self.bytes > DOCUMENT_BYTES_MAX:
            size = self.bytes
            self.forget()
            self.bytes = len(self._made().update_since())
            raise self.refused("too_large", f"it would have {size} bytes")

    def trust(self, update: bytes) -> None:
        """Apply an update of another process, on which later edits build."""
        self.bytes += len(update)
        self._note(update)
        if self._copy is None:
            return
        try:
            self._copy.apply(update)
        except (InvalidRequest, DamagedError):
            self.forget()

    def forget(self) -> None:
        """Drop the copy, which may hold more than is being committed."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None
            self._pairs.keep_below(self._live().clocks)

    def refused(self, cause: str, reason: str) -> DocumentRefused:
        """The error for a refused edit."""
        return DocumentRefused(self._key, cause, reason)

    def _made(self) -> Replica:
        if self._copy is None:
            self._copy = Replica(self._live().update_since(), listening=True)
            # Later edits of a peer build on those that it has sent, committed or not.
            for update in self._flying:
                self._copy.apply(update)
                self._note(update)
        return self._copy

    def _note(self, update: bytes) -> None:
        if _FOUR_BYTES.search(update):
            self._pairs.add(crdt.read_update(update).pairs)


def _pairs_of(updates: Iterable[bytes]) -> Pairs:
    pairs = Pairs()
    for update in updates:
        # Such an update was left out when the document was loaded.
        with contextlib.suppress(InvalidRequest):
            pairs.add(crdt.read_update(update).pairs)
    return pairs
