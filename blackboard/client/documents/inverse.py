"""Restores a document: its content goes back, its history goes forward.

Putting a CRDT's earlier bytes back would not work: connected peers still have the later edits, and
would merge them in again. So a restore adds an *inverse update*, which undoes the later edits. It
is computed on a copy at the earlier state, which catches up while an undo manager listens, and then
undoes everything. Peers apply it like any other edit.

Every inverse update leaves a mark, a client of its own that wrote something and removed it: a peer
whose state has the mark has seen the restore. Deletions alone would not show in a peer's state.

Source: y-partyserver's `unstable_replaceDocument`, over all roots; exact in 7,500 random histories,
and converging on Yjs (tests/unit/client/documents/test_inverse.py repeats it).

The content of a document at a moment, and its last author, are read here as well, for comparisons.
"""

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from pycrdt import Array, Doc, Map, Text, UndoManager

from blackboard.client.documents import layout as storage
from blackboard.client.documents.replica import DamagedError, guarded
from blackboard.client.documents.shared_types import plain
from blackboard.client.link import Transport
from blackboard.client.views import Entry
from blackboard.core.checkpoints import Moment
from blackboard.core.commit import Delete, Entry as Kept, Op, PutBack
from blackboard.core.documents import update as crdt
from blackboard.core.path import document_prefix, range_below
from blackboard.errors import Corrupt, InvalidRequest, Unavailable
from blackboard.limits import LIST_ENTRIES_MAX
from blackboard.units import Key, Revision
from blackboard.wire.codec import decode_value

_MARK_ROOT = "~restore"
# Everything that the copy takes over is one step of undo, however long it takes.
_FOR_EVER_MS = 10**9
_MARKS = 2**31
"""A mark is drawn from so many numbers, so that no client has the same one."""


def restored(
    key: Key,
    then: Mapping[Key, bytes],
    now: Mapping[Key, bytes],
    authors: Mapping[Key, str],
) -> tuple[Op, ...]:
    """The operations that restore the document at `key` from `now` to `then`.

    Both have every entry below the document's prefix with its encoded value: at the restored
    moment, and at the revision that the restore follows. `authors` has the signatures of those who
    wrote the entries of `then` that are not there now. Blocks while it computes: 20 ms for 10,000
    edits, 0.2 s for 50,000.

    Errors: Corrupt when an entry is not what was written.
    """
    # Without a document now, there are no later edits to undo: its entries come back as they were.
    if not _has_document(key, now):
        gone = [Delete(path) for path in now if path not in then]
        # Reports of overlaps expire. What is put back here does not, and nothing would remove them.
        kept = {path: value for path, value in then.items() if not storage.is_report(key, path)}
        back = (PutBack(path, value) for path, value in sorted(kept.items()))
        return (*gone, *back, *_marked(key, kept, authors))
    try:
        update, mark = inverse(_state_of(key, then), _state_of(key, now))
    except DamagedError as error:
        raise Corrupt(what=f"document {key}", reason=str(error)) from error
    if mark is None:
        return ()
    owners = _owners(_stored(key, then), authors) if authors else {}
    return storage.put_back_update(key, update, mark, owners)


def _marked(key: Key, then: Mapping[Key, bytes], authors: Mapping[Key, str]) -> tuple[Op, ...]:
    """The operations that leave a mark, and nothing else, in a document that comes back as it was:
    those who have it open elsewhere know later edits, too. Of entries that are no document, such
    as erased ones, it leaves none."""
    try:
        stored = _stored(key, then)
    except Corrupt:
        return ()
    if not (stored.items or stored.base.keys):
        return ()
    doc: Doc[Any] = Doc(client_id=_next_mark(stored))
    mark = doc.get(_MARK_ROOT, type=Map)
    mark["seen"] = True
    del mark["seen"]
    owners = _owners(stored, authors)
    return storage.put_back_update(key, doc.get_update(), doc.client_id, owners)


def _owners(stored: storage.StoredDocument, authors: Mapping[Key, str]) -> dict[int, str]:
    """Whose the clients of a document are that comes back as entries of who restores it."""
    found = dict(stored.base.owners)
    for item in stored.items:
        author = authors.get(item.keys[0])
        if author is not None:
            with suppress(InvalidRequest):  # it is left out wherever the document is loaded
                for client in crdt.read_update(item.update).reached():
                    found.setdefault(client, author)
        found |= item.owners
    return found


def _next_mark(stored: storage.StoredDocument) -> int:
    """A new mark. Entries that come back together are read in the order of their keys: this one is
    greater than the marks among them, so that it is the last."""
    marks = [item.mark for item in stored.items if item.mark]
    return max(marks, default=0) + 1 + secrets.randbelow(_MARKS)


def inverse(then: Iterable[bytes], now: Iterable[bytes]) -> tuple[bytes, int | None]:
    """The update that restores a document of the updates `now` to `then`, and its mark.

    The mark is None when there is nothing to undo. Errors: DamagedError.
    """
    return guarded(lambda: _inverse(_loaded(then), _loaded(now)))


def _inverse(copy: "Doc[Any]", live: "Doc[Any]") -> tuple[bytes, int | None]:
    # The type of a root is not in the encoding, and for undoing it does not matter.
    roots = {*copy.keys(), *live.keys()}
    undo = UndoManager(
        scopes=[copy.get(name, type=Map) for name in sorted(roots)],
        capture_timeout_millis=_FOR_EVER_MS,
    )
    copy.apply_update(live.get_update(copy.get_state()))
    if not undo.can_undo():
        return b"", None
    while undo.can_undo():
        undo.undo()
    mark = copy.get(_MARK_ROOT, type=Map)
    mark["seen"] = True
    del mark["seen"]
    return copy.get_update(live.get_state()), copy.client_id


def content(key: Key, entries: Mapping[Key, bytes]) -> dict[str, Any]:
    """The content of the document at `key` by root: the string of a text, plain values of others.

    `entries` as for `restored`. The type of a root follows from its content; an empty one is left
    out. Errors: Corrupt, DamagedError.
    """
    return guarded(lambda: _content(_loaded(_state_of(key, entries))))


def digest_of(state: bytes) -> str:
    """SHA-256, in hexadecimal, of the content of a document with that state: of `content` as JSON
    in UTF-8 with sorted keys and no spaces, bytes as {"$bytes": hexadecimal}. The bytes of the
    update cannot be used: they depend on the history. Errors: DamagedError.
    """
    found = guarded(lambda: _content(_loaded([state])))
    text = json.dumps(
        found, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_as_json
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _as_json(value: bytes) -> dict[str, str]:
    return {"$bytes": value.hex()}


def _content(doc: "Doc[Any]") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in sorted(doc.keys()):
        for kind in (Text, Array, Map):
            value = plain(doc.get(name, type=kind))
            if value:
                found[name] = value
                break
    return found


def _loaded(updates: Iterable[bytes]) -> "Doc[Any]":
    doc: Doc[Any] = Doc()
    for update in updates:
        doc.apply_update(update)
    return doc


def _has_document(key: Key, entries: Mapping[Key, bytes]) -> bool:
    first, last = range_below(document_prefix(key))
    return any(first <= path < last for path in entries)


def _stored(key: Key, entries: Mapping[Key, bytes]) -> storage.StoredDocument:
    values = {
        path: Entry(path, decode_value(value), 0, 0, "", 0) for path, value in entries.items()
    }
    return storage.read_document(key, values)


def _state_of(key: Key, entries: Mapping[Key, bytes]) -> list[bytes]:
    """The updates whose sum a document is, as its entries hold them."""
    stored = _stored(key, entries)
    return [stored.base.state, *(item.update for item in stored.items)]


_READS_MAX = 8
"""Attempts to read a document of several pages consistently. Eight failures in a row mean that the
edits never pause."""


async def document_at(link: Transport, board: str, key: Key, at: Moment | None) -> Entry | None:
    """The document at `key` as an entry whose value is its content by root; None if there was none.

    `at` None is the present: a document that is edited between two pages of it is read again, up to
    `_READS_MAX` times. Takes memory and time for all of it.
    Errors: as of `Transport.list`; Corrupt; Unavailable when it was edited each time.
    """
    for _ in range(_READS_MAX):
        found, revisions = await _parts_of(link, board, key, at)
        if not found:
            return None
        if len(revisions) == 1 or at is not None:
            return _assembled(key, found)
    raise Unavailable(what=f"document {key}", reason="it is edited faster than it can be read")


async def _parts_of(
    link: Transport, board: str, key: Key, at: Moment | None
) -> tuple[dict[Key, Kept], set[Revision]]:
    """The entries of a document, and the revisions of the pages."""
    found: dict[Key, Kept] = {}
    revisions: set[Revision] = set()
    after: Key | None = None
    while True:
        reading = await link.list(
            board, f"{document_prefix(key)}/**", after=after, limit=LIST_ENTRIES_MAX, at=at
        )
        found |= {entry.key: entry for entry in reading.entries}
        revisions.add(reading.revision)
        after = reading.next_key
        if after is None:
            return found, revisions


def _assembled(key: Key, found: dict[Key, Kept]) -> Entry:
    last = max(found.values(), key=lambda entry: entry.mod_revision)
    try:
        value = content(key, {path: entry.value for path, entry in found.items()})
    except DamagedError as error:
        raise Corrupt(what=f"document {key}", reason=str(error)) from error
    first = min(found.values(), key=lambda entry: entry.create_revision)
    return Entry(
        key,
        value,
        last.mod_revision,
        first.create_revision,
        last.author,
        last.time_ms,
        created_ms=first.created_ms,
    )
