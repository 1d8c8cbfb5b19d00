"""Checks that an encrypted value is in the place for which it was encrypted.

The header of a value names its board, its commit, the account behind it, and a revision shortly
before. The log says which commit wrote it. So an attacker with write access to an engine, but
without the master key, cannot put an old value back, swap items, or put a plain value where all are
encrypted: that is Corrupt. docs/security.md says what such an attacker can do.

A restore puts values back that were encrypted for other commits: its own commit lists them,
encrypted, in `RESTORED`. Values from before the switch are accepted unchecked.

Invariants
- Of several commits with one id, the first after `Place.after` counts, and no copy of it.
- A value of the state is compared with the log, or, if the log no longer reaches back to it and the
  value is not new, with the archive. A value that neither reaches is accepted unchecked.
- Results are cached, so the log is read once for each value.

The switch to encryption says up to which revision plain values, or values in an old form, are
accepted. When encryption is switched on, the newest revision of each board that is there is
recorded beside the data keys, wrapped by the master key. Private values from before may be plain;
later values, and those on later boards, must not be. The public namespace has a switch of its own.

The records are data keys that encrypt no value: for a switch
`system/keys/~sealed/~switch/<scope>/<id>`, and for each board `system/keys/~sealed/~until/<id of
the switch>/<board>/<revision>/<id>`.

Invariants of the switch
- The record of a switch is written after those of its boards, which do not count without it.
- Of two concurrent switches, the stricter one counts.
- The record of a removed board goes with its data keys, when no branch needs its history any more.
"""

import contextlib
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from blackboard.core.checkpoints import RESTORES
from blackboard.core.commit import (
    RESTORE,
    Append,
    Commit,
    CommitId,
    Committed,
    Entry,
    LogEntry,
    Op,
    Put,
    PutBack,
    signature,
)
from blackboard.core.redaction import REDACTED
from blackboard.encryption.data_keys import SWITCH, SWITCHES, UNTIL, DataKey, DataKeys
from blackboard.engines.base import Store
from blackboard.errors import Compacted, Corrupt, FutureRevision, Unavailable
from blackboard.integrity.envelope import (
    APPEND,
    KEY_ID_BYTES,
    PUT,
    Header,
    Place,
    header_of,
    is_sealed,
    open_sealed,
    seal,
)
from blackboard.limits import DEFAULT, LOG_ENTRIES_MAX, SEALED_SEARCH_MAX, Limits
from blackboard.units import Key, Revision
from blackboard.wire.codec import decode_value, encode_value

RESTORED: Final = f"{RESTORES}/~sealed"
"""The key at which the commit of a restore lists the encrypted values that it puts back."""
_TAG_BYTES: Final = 16
_HASH_BYTES: Final = 12
_ALWAYS: Final = ("private", "inbox")
_RECENT: Final = 1_024
"""Cached commit ids per board: those that are in flight at once."""
_NEAR: Final = 256
"""Largest gap between revisions that are read in one page: reading it costs as much as a second
query."""
_BOARDS: Final = 64
"""Boards with cached ids."""

Past = Callable[[str, Revision, Revision], Awaitable[tuple[Sequence[str], Sequence[LogEntry]]]]
"""Archived log entries of a board after one revision up to another, and the names of the boards
that they come from."""


class Places:
    """The places of values in one engine."""

    def __init__(
        self, raw: Store, keys: DataKeys, *, public: bool, limits: Limits = DEFAULT
    ) -> None:
        self.switch = Switch(keys)
        self.past: Past | None = None
        """None without an archive."""
        self._raw = raw
        self._public = public
        self._compared_max = limits.encryption.sealed_compared_max
        self._known: OrderedDict[tuple[str, Key], tuple[Revision, bytes, str]] = OrderedDict()
        self._epochs: dict[str, str] = {}
        self._ids: OrderedDict[str, OrderedDict[Revision, CommitId]] = OrderedDict()

    @property
    def scopes(self) -> Sequence[str]:
        """What is encrypted: PRIVATE, and PUBLIC if configured."""
        return (PRIVATE, PUBLIC) if self._public else (PRIVATE,)

    def seals(self, path: str) -> bool:
        """Whether values at a key, or below a prefix, are encrypted."""
        first = path.partition("/")[0]
        return first in _ALWAYS or (self._public and first == "public")

    # --- values in the clear ----------------------------------------------------------------------

    async def check_plain(self, boards: Sequence[str], key: Key, revision: Revision) -> None:
        """Errors: Corrupt when a plain value, written at `revision` of one of `boards`, is where
        all are encrypted."""
        if self.seals(key) and not await self._is_old(boards, key, revision):
            reason = f"it is not sealed, at revision {revision}"
            raise Corrupt(what=f"value of {key}", reason=reason)

    async def _is_old(self, boards: Sequence[str], key: Key, revision: Revision) -> bool:
        """Whether a value was written before everything was encrypted."""
        scope = PRIVATE if key.startswith(_ALWAYS) else PUBLIC
        for board in boards:
            # A branch has the history of its origin, which may be plain up to an end of its own.
            end = await self.switch.end(board, scope)
            if end is None or revision <= end:
                return True
        return False

    # --- the log ----------------------------------------------------------------------------------

    async def check_log(self, board: str, entries: Sequence[LogEntry]) -> None:
        """Errors: Corrupt when a value in consecutive log entries is not in its place."""
        for entry in entries:
            await self._check_first(board, entry, await self._check([board], entry))
            self._note_id(board, entry)
            for change in entry.changes:
                if change.value is not None and is_sealed(change.value):
                    known = self._known.get((board, change.key))
                    # The log may be read far behind what is known of the key.
                    if known is None or known[0] < entry.revision:
                        self._note(board, change.key, entry.revision, change.value, entry.signed)

    async def check_archived(self, boards: Sequence[str], entries: Iterable[LogEntry]) -> None:
        """As `check_log`, for archived entries of `boards`."""
        for entry in entries:
            await self._check(boards, entry, is_archived=True)

    async def _check(
        self, boards: Sequence[str], entry: LogEntry, *, is_archived: bool = False
    ) -> dict[Key, Header]:
        """The headers of the values that were encrypted for this commit. Errors: Corrupt."""
        headers: dict[Key, Header] = {}
        for change in entry.changes:
            if change.value is None:
                continue
            if not is_sealed(change.value):
                # A redaction leaves its plain marker in the archive; the engine's log is cut.
                if not (is_archived and change.value == REDACTED):
                    await self.check_plain(boards, change.key, entry.revision)
            elif not await self._is_old(boards, change.key, entry.revision):
                headers[change.key] = header_of(change.value, f"value of {change.key}")
        foreign = [key for key in headers if not _is_own(boards, entry, headers[key])]
        if foreign:
            await self._check_restored(boards[0], entry, foreign, is_archived=is_archived)
        own = {key: header for key, header in headers.items() if key not in foreign}
        _check_order(entry, own)
        return own

    async def _check_restored(
        self, board: str, entry: LogEntry, keys: Sequence[Key], *, is_archived: bool
    ) -> None:
        """Errors: Corrupt unless `entry` is a restore that lists the values at `keys`.

        A pruned archive may no longer have that list.
        """
        is_restore = entry.epoch is not None and entry.epoch.cause == RESTORE
        if is_archived and is_restore:
            return
        committed = await self._committed_hashes(board, entry) if is_restore else frozenset()
        values = {change.key: change.value for change in entry.changes}
        for key in keys:
            if _hash(key, values[key] or b"") not in committed:
                raise _misplaced(key, entry.revision)

    async def _committed_hashes(self, board: str, entry: LogEntry) -> frozenset[bytes]:
        found = [change.value for change in entry.changes if change.key == RESTORED]
        sealed = decode_value(found[0]) if found and found[0] is not None else None
        if not isinstance(sealed, bytes):
            return frozenset()
        header = header_of(sealed, RESTORED)
        key = await self.switch.key(header.key_id)
        if key is None or key.cipher is None or header.place is None:
            return frozenset()
        # The list is good for one revision: copied into another restore, it would admit old values.
        if (header.commit, header.place) != (entry.id, Place(board, entry.revision - 1)):
            return frozenset()
        return _split(open_sealed(key.cipher, header, RESTORED, sealed))

    async def _check_first(self, board: str, entry: LogEntry, headers: dict[Key, Header]) -> None:
        """Errors: Corrupt when the values were encrypted for an earlier commit with the same id."""
        # Most commits encrypt all values after one revision: then one search covers them.
        found = {h.place.after: key for key, h in headers.items() if h.place}
        for after, key in found.items():
            if entry.id in await self._ids_between(board, after, entry.revision):
                raise _misplaced(key, entry.revision)

    async def _ids_between(
        self, board: str, after: Revision, before: Revision
    ) -> Sequence[CommitId]:
        """Ids of the commits between two revisions, of SEALED_SEARCH_MAX revisions at most."""
        upto = min(before, after + 1 + SEALED_SEARCH_MAX)
        recent = self._ids.get(board, OrderedDict())
        ids = [recent[each] for each in range(after + 1, upto) if each in recent]
        if len(ids) >= upto - after - 1:
            return ids
        ids = []
        while after + 1 < upto:
            page = await self._logged(board, after, upto - 1)
            ids += [entry.id for entry in page if entry.revision < upto]
            for entry in page:
                self._note_id(board, entry)
            if not page:
                break
            after = page[-1].revision
        return ids

    async def _logged(self, board: str, after: Revision, upto: Revision) -> Sequence[LogEntry]:
        """Some log entries after `after`; none when neither log nor archive has them."""
        try:
            limit = min(upto - after, LOG_ENTRIES_MAX)
            return (await self._raw.log(board, after, limit=limit)).entries
        except FutureRevision:
            return ()
        except Compacted:
            return (await self._archived(board, after, upto))[1]

    async def _archived(
        self, board: str, after: Revision, upto: Revision
    ) -> tuple[Sequence[str], Sequence[LogEntry]]:
        if self.past is None:
            return (board,), ()
        try:
            return await self.past(board, after, upto)
        # What neither log nor archive reaches is accepted unchecked: see the invariants.
        except (Compacted, FutureRevision, Unavailable):
            return (board,), ()

    async def check_past(self, boards: Sequence[str], entry: Entry) -> None:
        """Errors: Corrupt when an archived entry is not what was written. Its header is checked
        first, and only if that names another time, the archive's log."""
        if entry.value == REDACTED:
            return
        if not is_sealed(entry.value):
            await self.check_plain(boards, entry.key, entry.mod_revision)
        elif not await self._is_old(boards, entry.key, entry.mod_revision):
            header = header_of(entry.value, f"value of {entry.key}")
            if not _is_near(boards, entry, header) and header.commit.incarnation:
                await self._compare_archived(boards[0], entry)

    # --- the state --------------------------------------------------------------------------------

    def saw_epoch(self, board: str, epoch: str) -> None:
        """Record the epoch of a board. A new one clears the cache, because commits may be lost or
        undone."""
        if self._epochs.get(board) != epoch:
            self._epochs[board] = epoch
            for place in [place for place in self._known if place[0] == board]:
                del self._known[place]

    async def check_entries(self, board: str, entries: Iterable[Entry]) -> None:
        """Errors: Corrupt when a value is not what its commit wrote, when its author differs (if
        the entry names one), or when a later value was seen there; Unavailable."""
        entries = tuple(entries)
        logged: dict[Revision, LogEntry] = {}
        if await self.switch.end(board, PRIVATE) is not None:
            logged = await self._fetch(board, entries)
        for entry in entries:
            if not is_sealed(entry.value):
                await self.check_plain([board], entry.key, entry.mod_revision)
            elif await self.switch.end(board, PRIVATE) is not None:
                known = self._known.get((board, entry.key))
                # The tag stands for the ciphertext: other bytes that end in it cannot be decrypted.
                found = entry.mod_revision, entry.value[-_TAG_BYTES:], entry.author
                # Perhaps this page was read before what is known by now.
                if known is not None and known[0] > entry.mod_revision:
                    await self._check_late(board, entry)
                elif known is None or known != (*found[:2], entry.author or known[2]):
                    await self._compare(board, entry, logged.get(entry.mod_revision))
                    self._note(board, entry.key, entry.mod_revision, entry.value, entry.author)

    async def _fetch(self, board: str, entries: Sequence[Entry]) -> dict[Revision, LogEntry]:
        """Log entries to compare many values with: neighbouring ones in one page. Others are read
        one by one."""
        wanted = sorted(
            {e.mod_revision for e in entries if is_sealed(e.value) and not self._has(board, e)}
        )
        found: dict[Revision, LogEntry] = {}
        while len(wanted) > 1:
            first = last = wanted.pop(0)
            while wanted and wanted[0] - last <= _NEAR and wanted[0] - first < LOG_ENTRIES_MAX:
                last = wanted.pop(0)
            after = first - 1
            # `_compare` reads these revisions one by one, and judges what is missing.
            with contextlib.suppress(Compacted, FutureRevision):
                while after < last and (page := await self._part(board, after, last)):
                    found |= {each.revision: each for each in page}
                    for each in page:
                        self._note_id(board, each)
                    after = page[-1].revision
        return found

    async def _part(self, board: str, after: Revision, last: Revision) -> Sequence[LogEntry]:
        return (await self._raw.log(board, after, limit=last - after)).entries

    def _has(self, board: str, entry: Entry) -> bool:
        known = self._known.get((board, entry.key))
        return known is not None and known[0] == entry.mod_revision

    async def _compare(self, board: str, entry: Entry, logged: LogEntry | None = None) -> None:
        at = entry.mod_revision
        try:
            page: Sequence[LogEntry] = [logged] if logged else await self._part(board, at - 1, at)
        except FutureRevision:
            page = ()
        except Compacted:
            if await self._needs_archive(board, entry):
                await self._compare_archived(board, entry)
            return
        found = page[0] if page and page[0].revision == at else None
        if found is None or not _wrote(found, entry):
            await self._check_still(board, entry)
            reason = f"revision {at} did not write it there"
            raise Corrupt(what=f"value of {entry.key}", reason=reason)
        own = await self._check([board], found)
        await self._check_first(board, found, {k: h for k, h in own.items() if k == entry.key})

    async def _compare_archived(self, board: str, entry: Entry) -> None:
        """As `_compare`, with the archive."""
        at = entry.mod_revision
        boards, page = await self._archived(board, at - 1, at)
        found = page[0] if page and page[0].revision == at else None
        if found is not None and _wrote(found, entry):
            await self._check(boards, found, is_archived=True)
            return
        header = header_of(entry.value, f"value of {entry.key}")
        after = header.place.after if header.place else at
        if found is not None or header.commit in await self._ids_between(board, after, at):
            raise _misplaced(entry.key, at)

    async def _needs_archive(self, board: str, entry: Entry) -> bool:
        """Whether a value that the log no longer reaches may have been replaced by an older one.

        A value that was encrypted right before its revision was not. Plain values that a board
        began with were encrypted when it began.
        """
        if await self._is_old([board], entry.key, entry.mod_revision):
            return False
        header = header_of(entry.value, f"value of {entry.key}")
        if header.place is None:
            return header.commit.incarnation != ""
        return entry.mod_revision - header.place.after > SEALED_SEARCH_MAX

    async def _check_still(self, board: str, entry: Entry) -> None:
        """Errors: Unavailable when the board was replaced in the meantime, as by an import."""
        now = (await self._raw.read(board, [entry.key])).entries
        if [(e.value, e.mod_revision) for e in now] != [(entry.value, entry.mod_revision)]:
            raise Unavailable(what=f"board {board}", reason="it changed while it was read")

    async def _check_late(self, board: str, entry: Entry) -> None:
        """Errors: Corrupt when an entry is still there although a later one was already seen."""
        now = (await self._raw.read(board, [entry.key])).entries
        if any(each.mod_revision <= entry.mod_revision for each in now):
            reason = f"it is older than what was committed after revision {entry.mod_revision}"
            raise Corrupt(what=f"value of {entry.key}", reason=reason)
        await self._compare(board, entry)

    def _note(self, board: str, key: Key, revision: Revision, value: bytes, author: str) -> None:
        self._known[board, key] = revision, value[-_TAG_BYTES:], author
        self._known.move_to_end((board, key))
        if len(self._known) > self._compared_max:
            self._known.popitem(last=False)

    def note_own(self, board: str, commit: Commit, done: Committed) -> None:
        """Record a commit of this process, so that its values need no check with the log: counters
        are read right after they are written."""
        for op, result in zip(commit.ops, done.results, strict=False):
            if isinstance(op, Put | Append) and is_sealed(op.value):
                key = op.key if isinstance(op, Put) else str(result)
                self._note(board, key, done.revision, op.value, commit.author)

    def _note_id(self, board: str, entry: LogEntry) -> None:
        ids = self._ids.setdefault(board, OrderedDict())
        self._ids.move_to_end(board)
        ids[entry.revision] = entry.id
        ids.move_to_end(entry.revision)
        if len(ids) > _RECENT:
            ids.popitem(last=False)
        if len(self._ids) > _BOARDS:
            self._ids.popitem(last=False)

    # --- restores ---------------------------------------------------------------------------------

    async def telling(
        self, board: str, commit: Commit, revision: Revision, ops: Sequence[Op]
    ) -> tuple[PutBack, ...]:
        """The additional entry of a restore that becomes `revision`: which of the values that its
        `ops` put back were encrypted before."""
        name, puts = commit.id, [op for op in ops if isinstance(op, PutBack)]
        held = [(op.key, op.value) for op in puts if op.value is not None]
        kept = [
            (path, value)
            for path, value in held
            if is_sealed(value) and header_of(value, path).commit != name
        ]
        key = await self.switch.key()
        if not kept or key is None or key.cipher is None:
            return ()
        hashes = b"".join(_hash(path, value) for path, value in kept)
        header = Header(key.id, PUT, name, Place(board, revision - 1))
        value = encode_value(seal(key.cipher, header, RESTORED, hashes))
        # It is needed as long as the record of the restore itself, which the same commit puts.
        ends = [op.expires_at_ms or 0 for op in puts if op.key.startswith(RESTORES + "/")]
        return (PutBack(RESTORED, value, max(ends, default=0) or None),)


def _is_own(boards: Sequence[str], entry: LogEntry, header: Header) -> bool:
    """Whether a value was encrypted for the commit of a log entry."""
    place = header.place
    if place is None or header.commit != entry.id:
        return False
    return place.board in boards and place.account == entry.account


def _is_near(boards: Sequence[str], entry: Entry, header: Header) -> bool:
    """Whether a value was encrypted by the entry's author shortly before its revision."""
    place = header.place
    if place is None or place.board not in boards:
        return False
    is_then = 0 < entry.mod_revision - place.after <= SEALED_SEARCH_MAX
    return is_then and entry.author == signature(header.commit.agent, place.account)


def _check_order(entry: LogEntry, headers: dict[Key, Header]) -> None:
    """Errors: Corrupt when items are in another order than their commit appended them."""
    last: dict[str, int] = {}
    # Indexes of items have ten digits, so keys in order are items in order.
    for key in sorted(key for key, header in headers.items() if header.kind == APPEND):
        prefix, place = key.rpartition("/")[0], headers[key].place
        number = place.number if place else 0
        if number <= last.get(prefix, -1):
            raise _misplaced(key, entry.revision)
        last[prefix] = number


def _wrote(logged: LogEntry, entry: Entry) -> bool:
    """Whether a commit put the value of an entry, and has the entry's author, if it names one."""
    if entry.author not in ("", logged.signed):
        return False
    return any(c.key == entry.key and c.value == entry.value for c in logged.changes)


def _misplaced(key: Key, revision: Revision) -> Corrupt:
    reason = f"it was sealed for another place than that of revision {revision}"
    return Corrupt(what=f"value of {key}", reason=reason)


def _hash(key: Key, value: bytes) -> bytes:
    # Over the key too: two values that a restore puts back must not change places.
    return hashlib.sha256(key.encode() + b"\0" + value).digest()[:_HASH_BYTES]


def _split(hashes: bytes) -> frozenset[bytes]:
    return frozenset(
        hashes[start : start + _HASH_BYTES] for start in range(0, len(hashes), _HASH_BYTES)
    )


# --- the switch to encryption ---------------------------------------------------------------------


PRIVATE: Final = "private"
PUBLIC: Final = "public"


@dataclass(frozen=True, slots=True)
class _Found:
    """The content of the records."""

    table: Mapping[bytes, DataKey]
    switches: Mapping[str, tuple[bytes, ...]]
    ends: Mapping[tuple[bytes, str], Revision]


@dataclass
class Switch:
    """The records of one engine, read through its data keys."""

    keys: DataKeys
    _found: _Found = field(default_factory=lambda: _Found({}, {}, {}))

    async def is_on(self, scope: str) -> bool:
        """Whether it was switched on for a scope, PRIVATE or PUBLIC."""
        return scope in (await self._look()).switches

    async def turn_on(self, scope: str, ends: Mapping[str, Revision]) -> None:
        """Record that values in a scope are encrypted after the revisions `ends`, by board; on
        other boards from their beginning. Errors: Unavailable, with nothing changed."""
        switch = secrets.token_bytes(KEY_ID_BYTES)
        records = [
            (f"{UNTIL}{switch.hex()}/{board}/{end}", secrets.token_bytes(KEY_ID_BYTES))
            for board, end in ends.items()
            if end > 0
        ]
        await self.keys.switch([*records, (SWITCH + scope, switch)])

    async def end(self, board: str, scope: str) -> Revision | None:
        """The newest revision of a board from before the switch; 0 if there was none; None if it
        was never switched on."""
        found = await self._look()
        switches = found.switches.get(scope)
        if switches is None:
            return None
        return min(found.ends.get((switch, board), 0) for switch in switches)

    async def key(self, key_id: bytes | None = None) -> DataKey | None:
        """The key of a switch, which proves that a service with the master key made it; by default
        the newest one. None if there is none."""
        found = await self._look()
        ids = found.switches.get(PRIVATE, ())
        wanted = key_id if key_id is not None else ids[-1] if ids else b""
        return found.table[wanted] if wanted in ids else None

    async def _look(self) -> _Found:
        table = await self.keys.table(SWITCHES)
        if table is not self._found.table:
            self._found = _read(table)
        return self._found


def _read(table: Mapping[bytes, DataKey]) -> _Found:
    switches: dict[str, tuple[bytes, ...]] = {}
    ends: dict[tuple[bytes, str], Revision] = {}
    for key in sorted(table.values(), key=lambda key: key.order):
        if key.cipher is None:  # there is no proof that we wrote it
            continue
        if key.namespace.startswith(SWITCH):
            scope = key.namespace.removeprefix(SWITCH)
            switches[scope] = (*switches.get(scope, ()), key.id)
        elif key.namespace.startswith(UNTIL):
            switch, board, end = key.namespace.removeprefix(UNTIL).split("/")
            ends[bytes.fromhex(switch), board] = int(end)
    return _Found(table, switches, ends)
