"""Data keys: one for each namespace of each board, stored wrapped in a board of their own.

A record is `system/keys/<board>/<namespace>/<key id>`. The newest key of a namespace that was not
destroyed encrypts; all of them decrypt. Destroying a key leaves its record, so that its values are
known to be erased and not damaged. A branch gets the records of the keys that its values need.

Keys that were made after a switch was recorded (encryption/places.py) are wrapped in a form of
their own. If there is such a key and no record of a switch, the record was removed.

The record of a request to destroy is `system/keys/~erased/~request/<digest>`: a late copy of the
request finds it, and destroys no newer key.

Several processes share the records: each follows the log of that board, and reads the records again
when it meets an unknown key. A record is written again only if it is as it was read, so that a
process that was stopped in between never brings a destroyed key back.

The keys of a board whose records changed are outdated until these records were read again. Until
then none of them encrypts or decrypts: one may have been destroyed.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from blackboard.core.access import KEYS_BOARD
from blackboard.core.checkpoints import check_request
from blackboard.core.commit import (
    Condition,
    Delete,
    Entry,
    KeyAt,
    Op,
    Put,
)
from blackboard.encryption.master_key import Wrapper
from blackboard.engines.base import Scrubs, Store
from blackboard.engines.system_writer import SystemWriter
from blackboard.errors import (
    BlackboardError,
    Conflict,
    Corrupt,
    InvalidRequest,
    NewerFormat,
    Unavailable,
)
from blackboard.integrity.envelope import KEY_BYTES, KEY_ID_BYTES
from blackboard.limits import DEFAULT, LIST_ENTRIES_MAX, LOG_ENTRIES_MAX, Limits
from blackboard.units import Revision
from blackboard.wire.codec import decode_value, encode_value

log = logging.getLogger(__name__)
T = TypeVar("T")

_BELOW: Final = "system/keys"
_FOLLOW_WAIT_MS: Final = 1_000
_RETRY_S: Final = 0.5
SWITCHES: Final = "~sealed"
"""In place of the board, in the records of switches and of the boards that existed before them."""
SWITCH: Final = "~switch/"
"""What the segment in place of the namespace begins with, in the record of a switch."""
UNTIL: Final = "~until/"
"""The same, in the record of a board that existed before a switch."""
_ERASED: Final = "~erased"
"""In place of the board, in the records of requests to destroy keys."""
_REQUEST: Final = "~request"
_DIGEST_BYTES: Final = 16
_TRIES: Final = 5
"""Attempts to write records again that another process changes at the same time."""
_FIRST, _SWITCHED = 1, 2  # forms of wrapped keys: from before a switch, and since
_KEY, _MARK = "wrapped", "mark"  # the field of a wrapped data key, and that of a switch's record


@dataclass(slots=True)
class DataKey:
    """A data key of `namespace`; `cipher` is None once it was destroyed."""

    id: bytes
    namespace: str
    cipher: AESGCM | None
    order: Revision
    seals: int = 0
    form: int = _FIRST


class DataKeys:
    """The data keys of all boards of a raw (not encrypting) store."""

    def __init__(self, raw: Store, wrapper: Wrapper, *, limits: Limits = DEFAULT) -> None:
        self._raw = raw
        self._seals_max = limits.encryption.seals_per_key_max
        self._wrapper = wrapper
        self._tables: dict[str, dict[bytes, DataKey]] = {}
        self._newest: dict[tuple[str, str], DataKey] = {}
        self._making: dict[tuple[str, str], asyncio.Lock] = {}
        self._outdated: dict[str, int] = {}
        """The boards whose records changed since they were read, each with the number of the last
        change that was noticed."""
        self._noticed = 0
        self._is_switched = False
        self._writer = SystemWriter(raw, KEYS_BOARD)
        self._follower: asyncio.Task[None] | None = None
        self.made: Callable[[str, str], None] = lambda board, namespace: None
        """Called with the board and the namespace for which a data key was made."""
        self.scrubbed: Callable[[str], None] = lambda left: None
        """Called after keys were destroyed or rewrapped, with what is left to do until no live file
        holds their old form ("": nothing)."""

    @property
    def master(self) -> str:
        """The id of the master key that wraps now; it reveals nothing about the key."""
        return self._wrapper.name

    # --- asking -----------------------------------------------------------------------------------

    def known(self, board: str, key_id: bytes) -> DataKey | None:
        """A key of a board, if this process knows it."""
        return self._tables.get(board, {}).get(key_id)

    async def find(self, board: str, key_id: bytes) -> DataKey | None:
        """A key of a board; the records are read again when it is unknown or outdated."""
        if board in self._outdated:
            await self._refresh(board)
        found = self.known(board, key_id)
        if found is None:
            await self._load(board)
            found = self.known(board, key_id)
        return found

    async def current(self, board: str, namespace: str) -> DataKey:
        """The key that encrypts in a namespace; it is made when there is none."""
        await self._refresh(board)
        found = self._newest.get((board, namespace))
        if found is not None and found.seals < self._seals_max:
            return found
        # Of the tasks of one process, the first makes the key. Two processes may make one each:
        # both decrypt, and the newer one encrypts.
        lock = self._making.setdefault((board, namespace), asyncio.Lock())
        async with lock:
            found = self._newest.get((board, namespace))
            if found is not None and found.seals < self._seals_max:
                return found
            return await self._make(board, namespace)

    async def table(self, board: str) -> Mapping[bytes, DataKey]:
        """All keys of a board, by id; a new object after a change."""
        await self._refresh(board)
        return self._tables[board]

    async def erased(self, board: str) -> Sequence[str]:
        """Namespaces of a board of which a data key was destroyed, sorted."""
        # Read again: another process may have destroyed one a moment ago.
        await self._load(board)
        return sorted({k.namespace for k in self._tables[board].values() if k.cipher is None})

    async def check(self) -> None:
        """Errors: Corrupt when the master key does not unwrap the data keys, or when they were made
        after a switch whose record is missing."""
        # To open it would make it.
        if KEYS_BOARD not in await self._raw.boards():
            return
        async for entry in self._records(f"{_BELOW}/{SWITCHES}/{SWITCH[:-1]}"):
            # One that unwraps proves both: the master key is right, and the switch is recorded.
            if await self._opens(entry):
                return
        is_one_open = False
        async for entry in self._records(_BELOW):
            # Each may be a request to a key management service, and one proves the master key.
            is_one_open = is_one_open or await self._opens(entry)
            if _read(entry).get("form", _FIRST) != _FIRST:
                raise Corrupt(what=f"{_BELOW}/{SWITCHES}", reason="a record was removed from there")

    async def _opens(self, entry: Entry) -> bool:
        """Whether a record holds a key. Errors: Corrupt when the master key does not unwrap it."""
        record, (_, namespace, key_id) = _read(entry), _place(entry.key)
        if not _is_open(record):
            return False
        await self._unwrap(record, namespace, key_id)
        return True

    # --- changing ---------------------------------------------------------------------------------

    async def _make(self, board: str, namespace: str) -> DataKey:
        key, key_id = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_ID_BYTES)
        form = _SWITCHED if self._is_switched else _FIRST
        record = await self._wrapped(key, namespace, key_id, form)
        # Stored before it encrypts anything: otherwise a crash could lose the key of a value.
        revision = await self._commit([Put(_key(board, namespace, key_id), record)])
        made = DataKey(key_id, namespace, AESGCM(key), revision, form=form)
        self._note(board, made)
        self.made(board, namespace)
        return made

    async def switch(self, records: Sequence[tuple[str, bytes]]) -> None:
        """Store the records of a switch, each a namespace and an id, in this order, in one or more
        commits.

        Without the master key, such a record can neither be forged nor altered. Errors:
        Unavailable, also when the outcome is unknown: some of them may be stored.
        """
        ops: list[Op] = []
        for namespace, key_id in records:
            record = await self._wrapped(secrets.token_bytes(KEY_BYTES), namespace, key_id, _FIRST)
            ops.append(Put(_key(SWITCHES, namespace, key_id), record))
        for some in _pages(ops):
            await self._commit(some)
        await self._load(SWITCHES)

    def switched(self) -> None:
        """Stop encrypting with keys from before the switch. So an attacker who puts the old records
        back cannot have new values decrypted with old keys."""
        self._is_switched = True
        for board in self._tables:
            self._set(board, self._keys_of(board))

    async def _wrapped(self, key: bytes, namespace: str, key_id: bytes, form: int) -> bytes:
        """A record."""
        wrapped = await self._wrapper.wrap(key, _context(namespace, key_id, form))
        where = _MARK if namespace.startswith("~") else _KEY
        return encode_value({where: wrapped} | ({} if form == _FIRST else {"form": form}))

    async def _unwrap(self, record: Mapping[str, Any], namespace: str, key_id: bytes) -> bytes:
        """Unwrap a key. Errors: Corrupt when it was not wrapped for that place."""
        context = _context(namespace, key_id, record.get("form", _FIRST))
        wrapped = record[_MARK if _MARK in record else _KEY]
        return await self._wrapper.unwrap(wrapped, context)

    async def adopt(self, board: str, ids: Iterable[bytes]) -> None:
        """Give a new board copies of the keys `ids` of another board, which its values need.

        An id that no board here has is left out: its values cannot be decrypted. Errors:
        Unavailable.
        """
        wanted = {key_id.hex() for key_id in ids}
        if not wanted:
            return

        async def copies() -> list[tuple[Entry, Op]]:
            found: dict[str, tuple[Entry, Op]] = {}
            async for entry in self._records(_BELOW):
                _, namespace, key_id = _place(entry.key)
                if key_id.hex() in wanted:
                    key = _key(board, namespace, key_id)
                    found[key] = entry, Put(key, entry.value)
            return list(found.values())

        await self._write_again(copies)
        await self._load(board)

    async def destroy(
        self, namespaces: Sequence[str], board: str | None = None, *, request: str | None = None
    ) -> int:
        """Destroy every data key of namespaces, on one board or (None) on all, for good.

        Returns how many, without those that were destroyed before. Values encrypted with them can
        never be decrypted again; branches with copies lose those, too. A `request` that was carried
        out before destroys nothing, and gets its first answer. Errors: InvalidRequest for a branch
        that has keys of its origin, and for the `request` of another erasure; Unavailable: some may
        be destroyed.
        """
        if request is not None:
            check_request(request)
        about = {"namespaces": list(namespaces), "board": board}
        # Read before it is asked whether the request was carried out: so a key that was made after
        # that is not among them.
        doomed, keys = await self._doomed(namespaces, board)
        said = None if request is None else await self._answered(request, about)
        if said is not None:
            return said
        gone = {"erased_ms": time.time_ns() // 1_000_000}
        ops: list[Op] = [Put(key, encode_value(gone)) for key in keys]
        if request is not None:
            answer = {**gone, **about, "keys": len(doomed)}
            # Last: a request that was interrupted between two pages is not answered yet, and goes
            # on when it is repeated.
            ops.append(Put(_request_key(request), encode_value(answer)))
        for some in _pages(ops):
            await self._commit(some)
        # This process has them in memory. If the records cannot be read now, `_follow` does it.
        self._note_change(self._tables)
        await self._forget_log()
        for name in list(self._tables):
            await self._load(name)
        return len(doomed)

    async def _doomed(
        self, namespaces: Sequence[str], board: str | None
    ) -> tuple[set[bytes], list[str]]:
        """The ids of the keys of namespaces, and the records of these keys, copies included; those
        that are destroyed already are left out."""
        records = [entry async for entry in self._records(_BELOW)]
        wanted = {
            key_id
            for place, found, key_id in (_place(entry.key) for entry in records)
            if found in namespaces and board in (None, place)
        }
        if board is not None:
            _check_own(board, [e for e in records if _place(e.key)[2] in wanted])
        # Of all their records: a copy elsewhere may have outlived the one in this place.
        keys = [e.key for e in records if _place(e.key)[2] in wanted and not _is_gone(e)]
        return {_place(key)[2] for key in keys}, keys

    async def _answered(self, request: str, about: Mapping[str, Any]) -> int | None:
        """What the erasure `request` was answered; None if it was not carried out. Errors:
        InvalidRequest when it was about something else."""
        found = (await self._raw.read(KEYS_BOARD, [_request_key(request)])).entries
        if not found:
            return None
        said = _read(found[0])
        if {name: said.get(name) for name in about} != about:
            reason = f"{request!r} was the request of another erasure: give this one its own"
            raise InvalidRequest(field="request", reason=reason)
        return int(said["keys"])

    async def _write_again(self, made: Callable[[], Awaitable[list[tuple[Entry, Op]]]]) -> None:
        """Commit the operations that `made` returns, each if the record that it was made from has
        not changed since. Errors: Unavailable."""
        for _ in range(_TRIES):
            try:
                for some in _pages(await made()):
                    conditions = [KeyAt(entry.key, entry.mod_revision) for entry, _ in some]
                    await self._commit([op for _, op in some], conditions)
                return
            except Conflict:
                continue
        raise Unavailable("data keys", "other processes change them all the time")

    async def forget(self, board: str) -> int:
        """Remove the data keys of a board that was removed; returns how many. Branches keep their
        own copies.

        The records of how far it was plain go too. A board that begins under its name later is a
        different one, and all of its values are encrypted.
        """
        keys = [entry.key async for entry in self._records(f"{_BELOW}/{board}")]
        until = [
            entry.key
            async for entry in self._records(f"{_BELOW}/{SWITCHES}")
            if _is_until(entry.key, board)
        ]
        for some in _pages([Delete(key) for key in (*keys, *until)]):
            await self._commit(some)
        if keys:
            await self._forget_log()
            await self._load(board)
        if until:
            await self._load(SWITCHES)
        return len(keys)

    async def rewrap(self) -> int:
        """Wrap every data key with the first master key; returns how many. No value is touched."""
        count = 0

        async def wrapped() -> list[tuple[Entry, Op]]:
            nonlocal count
            found = [e async for e in self._records(_BELOW) if _is_open(_read(e))]
            count = sum(_place(entry.key)[0] != SWITCHES for entry in found)
            return [(entry, Put(entry.key, await self._wrapped_again(entry))) for entry in found]

        await self._write_again(wrapped)
        await self._forget_log()
        return count

    async def _wrapped_again(self, entry: Entry) -> bytes:
        record, (_, namespace, key_id) = _read(entry), _place(entry.key)
        key = await self._unwrap(record, namespace, key_id)
        return await self._wrapped(key, namespace, key_id, record.get("form", _FIRST))

    async def _commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> Revision:
        """Errors: Conflict when a condition does not hold; Unavailable, also when the outcome is
        unknown."""
        outcome = await self._writer.commit(ops, conditions)
        if isinstance(outcome, Conflict):
            raise outcome
        if isinstance(outcome, BlackboardError):
            raise Unavailable("data keys", str(outcome))
        return outcome.revision

    async def _forget_log(self) -> None:
        """Remove the old form of the keys from the log and from the engine's files as well.

        The keys are destroyed either way, so a failure is reported and not raised.
        """
        head = await self._raw.open(KEYS_BOARD)
        # All of the log: what is before the destruction in it still has the wrapped keys.
        await self._raw.compact(KEYS_BOARD, head.revision + 1)
        left = ""
        if isinstance(self._raw, Scrubs):
            try:
                left = await self._raw.scrub(KEYS_BOARD)
            except BlackboardError as error:
                left = f"the engine's files may hold destroyed keys in wrapped form: {error}"
        if left:
            log.warning("data keys: %s", left)
        self.scrubbed(left)

    # --- the records ------------------------------------------------------------------------------

    async def _records(self, prefix: str) -> AsyncIterator[Entry]:
        after = None
        await self._raw.open(KEYS_BOARD)
        while True:
            page = await self._raw.list(KEYS_BOARD, prefix, after=after, limit=LIST_ENTRIES_MAX)
            for entry in page.entries:
                yield entry
            after = page.next_key
            if after is None:
                return

    async def _refresh(self, board: str) -> None:
        """Read the keys of a board if they are unknown or outdated."""
        if board in self._tables and board not in self._outdated:
            return
        try:
            await self._load(board)
        except BlackboardError:
            # The records may have been read, although a new key in them cannot be unwrapped now.
            if board not in self._tables or board in self._outdated:
                raise

    def _note_change(self, boards: Iterable[str]) -> None:
        """Record that the records of `boards` changed; only those that were read matter."""
        self._noticed += 1
        for board in boards:
            if board in self._tables:
                self._outdated[board] = self._noticed

    async def _load(self, board: str) -> None:
        if self._follower is None:
            after = (await self._raw.open(KEYS_BOARD)).revision  # before any record is read
            # Asked again: another task may have started it while this one waited for the engine.
            if self._follower is None:
                self._follower = asyncio.create_task(self._follow(after), name="data keys")
        noticed = self._outdated.get(board)
        records = [entry async for entry in self._records(f"{_BELOW}/{board}")]
        # At once: to unwrap other keys may take long, and may fail.
        self._drop_destroyed(board, records)
        # A change that was noticed meanwhile may not be in what was read.
        if self._outdated.get(board) == noticed:
            self._outdated.pop(board, None)
        found: dict[bytes, DataKey] = {}
        for entry in records:
            _, namespace, key_id = _place(entry.key)
            key = await self._key(entry, namespace, key_id, self.known(board, key_id))
            # A forged record must not hide a genuine one.
            if key_id not in found or key.cipher is not None:
                found[key_id] = key
        # Another task may have read later records than these.
        gone = {key.id: key for key in self._keys_of(board) if key.cipher is None}
        self._set(board, [gone.get(key.id, key) for key in found.values()])

    def _keys_of(self, board: str) -> Sequence[DataKey]:
        """The keys of a board that this process knows."""
        return tuple(self._tables.get(board, {}).values())

    def _drop_destroyed(self, board: str, records: Iterable[Entry]) -> None:
        """Forget the known keys that are destroyed in `records`."""
        gone = {_place(entry.key)[1:] for entry in records if not _is_open(_read(entry))}
        known = self._keys_of(board)
        if any(key.cipher is not None and (key.namespace, key.id) in gone for key in known):
            self._set(board, [_destroyed(k) if (k.namespace, k.id) in gone else k for k in known])

    def _set(self, board: str, keys: Iterable[DataKey]) -> None:
        self._tables[board] = {}
        for place in [place for place in self._newest if place[0] == board]:
            del self._newest[place]
        for key in keys:
            self._note(board, key)

    async def _key(
        self, entry: Entry, namespace: str, key_id: bytes, known: DataKey | None
    ) -> DataKey:
        """The key of a record; one that is known is not unwrapped again."""
        record = _read(entry)
        # Destroyed stays destroyed, even if an old copy of the record was put back in the engine.
        if known is not None and (_is_open(record) or known.cipher is None):
            return known
        cipher = None
        if _is_open(record):
            cipher = AESGCM(await self._unwrap(record, namespace, key_id))
        form = record.get("form", _FIRST)
        # Since the record was made: a key is not newer for having been wrapped again.
        return DataKey(key_id, namespace, cipher, entry.create_revision, form=form)

    def _note(self, board: str, key: DataKey) -> None:
        self._tables.setdefault(board, {})[key.id] = key
        newest = self._newest.get((board, key.namespace))
        if key.cipher is None or (self._is_switched and key.form == _FIRST):
            return
        if newest is None or key.order > newest.order:
            self._newest[board, key.namespace] = key

    async def _follow(self, after: Revision) -> None:
        """Read the records of every board again that another process changed after `after`."""
        while self._follower is asyncio.current_task():  # some drivers swallow a cancellation
            try:
                # What could not be read is tried again soon, and not only after the next change.
                wait_ms = 0 if self._outdated else _FOLLOW_WAIT_MS
                page = await self._raw.log(
                    KEYS_BOARD, after, limit=LOG_ENTRIES_MAX, wait_ms=wait_ms
                )
                self._note_change({_place(c.key)[0] for e in page.entries for c in e.changes})
                after = page.entries[-1].revision if page.entries else after
            except BlackboardError as error:
                log.info("data keys: %s; reading all of them again", error)
                self._note_change(self._tables)
                # Read before the tables, so that no change between the two goes unnoticed.
                with contextlib.suppress(BlackboardError):
                    after = (await self._raw.open(KEYS_BOARD)).revision
                await asyncio.sleep(_RETRY_S)
            await self._read_outdated()
            if self._outdated:
                await asyncio.sleep(_RETRY_S)

    async def _read_outdated(self) -> None:
        """Read the records again that changed; what cannot be read stays outdated."""
        for board in list(self._outdated):
            try:
                await self._load(board)
            except BlackboardError as error:
                log.info("data keys of board %s cannot be read: %s", board, error)

    async def aclose(self) -> None:
        """Stop following."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)


def _destroyed(key: DataKey) -> DataKey:
    return DataKey(key.id, key.namespace, None, key.order, form=key.form)


def _key(board: str, namespace: str, key_id: bytes) -> str:
    return f"{_BELOW}/{board}/{namespace}/{key_id.hex()}"


def _place(key: str) -> tuple[str, str, bytes]:
    """Board, namespace and key id of a record. Errors: Corrupt."""
    board, _, rest = key.removeprefix(_BELOW + "/").partition("/")
    namespace, _, key_id = rest.rpartition("/")
    try:
        return board, namespace, bytes.fromhex(key_id)
    except ValueError as error:
        raise Corrupt(what=key, reason="no place of a data key") from error


def _request_key(request: str) -> str:
    # The last segment of a record is hexadecimal, and the id of a request is any text.
    return _key(_ERASED, _REQUEST, hashlib.sha256(request.encode()).digest()[:_DIGEST_BYTES])


def _is_until(key: str, board: str) -> bool:
    """Whether a record says up to which revision `board` may have plain values."""
    _, namespace, _ = _place(key)
    return namespace.startswith(UNTIL) and namespace.split("/")[2] == board


def _read(entry: Entry) -> Any:
    record = decode_value(entry.value)
    if not isinstance(record, dict) or not ({_KEY, _MARK, "erased_ms"} & record.keys()):
        raise Corrupt(what=entry.key, reason="no record of a data key")
    form = record.get("form", _FIRST)
    if type(form) is int and form > _SWITCHED:
        raise NewerFormat(entry.key, form, _SWITCHED)
    if form not in (_FIRST, _SWITCHED):
        raise Corrupt(what=entry.key, reason="no form of a data key")
    return record


def _is_open(record: Mapping[str, Any]) -> bool:
    """Whether a record contains a key that was not destroyed."""
    return _KEY in record or _MARK in record


def _check_own(board: str, records: Sequence[Entry]) -> None:
    """Errors: InvalidRequest when `board` has copies of keys that an older board has as well.

    `records` are all those of its keys. The older board would lose its values, too, which nobody
    wanted who named this one.
    """
    begun = {_place(e.key)[2]: e.create_revision for e in records if _place(e.key)[0] == board}
    older = {
        _place(e.key)[0]
        for e in records
        if e.create_revision < begun[_place(e.key)[2]] and not _is_gone(e)
    }
    if older:
        names = ", ".join(sorted(older))
        reason = f"{board!r} shares data keys with {names}: erase there, or on all boards"
        raise InvalidRequest(field="board", reason=reason)


def _is_gone(entry: Entry) -> bool:
    """Whether a record says that its key was destroyed. A damaged one does not: it is replaced."""
    try:
        return not _is_open(_read(entry))
    except (Corrupt, NewerFormat):
        return False


def _context(namespace: str, key_id: bytes, form: int) -> bytes:
    # The form is authenticated, so that an edited record does not unwrap: otherwise a key from
    # before the switch could be passed off as a later one.
    kind = b"data key\0" if form == _FIRST else b"data key since the switch\0"
    return b"blackboard " + kind + namespace.encode() + b"\0" + key_id


def _pages(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), LIST_ENTRIES_MAX):
        yield items[start : start + LIST_ENTRIES_MAX]
