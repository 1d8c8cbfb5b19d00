"""The updates of a document since its base, and when it is time to compact them into it.

Loading a document is applying its base, which the library does at once, and then each update, which
is read first: byte for byte that takes nine times as long. So the tail is kept short in number and
in bytes. Beside a large base it may be longer: a compaction writes all of the base anew.
"""

import secrets

from blackboard.client.documents import layout as storage
from blackboard.client.documents.layout import Base
from blackboard.client.views import Revised
from blackboard.client.writer import Wish, Writer
from blackboard.core.documents.keys import base_key
from blackboard.types import DOCUMENT_TAIL_BYTES, DOCUMENT_TAIL_UPDATES, Key, Revision

_NOTE = "compacted"
_BASE_SHARE = 8
"""A tail of this part of the base at least: what is written for it is as many times as much."""


class Tail:
    """The updates of the document at `key` by their own keys, oldest first."""

    def __init__(self, key: Key, base_bytes: int = 0) -> None:
        self.base_bytes = base_bytes
        """Size of the base, as far as it was seen here."""
        self._key = key
        self._found: dict[Key, tuple[Revision, int]] = {}
        self._bytes = 0

    def add(self, path: Key, revision: Revision, size: int) -> None:
        """Note one piece of an update: `size` bytes, committed at `revision`."""
        self._found[path] = revision, size
        self._bytes += size

    def drop(self, path: Key) -> None:
        """It is gone."""
        _, size = self._found.pop(path, (0, 0))
        self._bytes -= size

    @property
    def is_due(self) -> bool:
        """Whether it is time to compact."""
        bytes_max = max(DOCUMENT_TAIL_BYTES, self.base_bytes // _BASE_SHARE)
        return len(self._found) >= DOCUMENT_TAIL_UPDATES or self._bytes >= bytes_max

    def is_lost(self, revised: Revised) -> bool:
        """Whether something of the document went without a new base that has it."""
        base = base_key(self._key)
        gone = any(c.kind == "delete" and c.key in self._found for c in revised.changes)
        kept = any(c.kind == "put" and c.key == base for c in revised.changes)
        lost = any(c.kind == "delete" and c.key == base for c in revised.changes)
        return lost or (gone and not kept)

    async def compact(self, writer: Writer, new: Base, *, old: Base, revision: Revision) -> None:
        """Commit `new`, the document as of `revision`, in place of `old` and what is noted now.

        Errors: those of `Board.commit`, a Conflict when somebody else was first; the document is
        what it was.
        """
        keys = [(path, at) for path, (at, _) in self._found.items()][: storage.TAIL_DELETED_MAX]
        generation = f"{revision:016}-{secrets.token_hex(4)}"
        made = storage.compaction(self._key, new, generation, old=old, keys=keys)
        for ops in made.pieces:
            await writer.commit(Wish(ops, note=_NOTE), with_held=False)
        await writer.commit(Wish(made.ops, made.conditions, note=_NOTE), with_held=False)
        self.base_bytes = len(new.state)
