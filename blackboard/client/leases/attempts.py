"""What is known of attempts at entries: where it is kept, and what can be seen of it.

Beside the entries stand two branches of their namespace: `~tries` counts the attempts of claims,
`~dead` holds what failed too often. A pattern is about them only if it names them.

Invariants
- a record is about the one entry that exists since revision `created`: whoever removes an entry and
  puts another one in its place begins to count anew.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from blackboard.client.views import Entry
from blackboard.core.commit import Lease, Put
from blackboard.core.path import namespace_of, parse_pattern
from blackboard.errors import InvalidRequest
from blackboard.types import READ_KEYS_MAX, Key, Milliseconds, Revision
from blackboard.wire.codec import encode_value

TRIES = "~tries"
DEAD = "~dead"


def tries_key(key: Key) -> Key:
    """Where attempts at `key` are counted: `public/tasks/7` -> `public/~tries/tasks/7`."""
    return _beside(key, TRIES)


def dead_key(key: Key) -> Key:
    """Where `key` goes when it failed too often: `public/tasks/7` -> `public/~dead/tasks/7`."""
    return _beside(key, DEAD)


def _beside(path: str, branch: str) -> str:
    namespace = namespace_of(path)
    return f"{namespace}/{branch}{path[len(namespace) :]}"


def _first_segment(path: str) -> str:
    """The first segment of a key, or of a pattern, within its namespace; "" if there is none."""
    return path[len(namespace_of(path)) + 1 :].partition("/")[0]


def check_pattern(pattern: str) -> str:
    """Return `pattern` if there is a place for records beside all that it matches.

    Errors: InvalidRequest, also for `**`, `*/tasks` and `private/**`.
    """
    parse_pattern(pattern)
    kind = pattern.partition("/")[0]
    if kind not in ("public", "private", "inbox") or not _first_segment(pattern):
        reason = f"{pattern!r} does not begin with a namespace, as public/tasks/* does"
        raise InvalidRequest(field="pattern", reason=reason)
    return pattern


def is_meant(pattern: str, key: Key) -> bool:
    """Whether `pattern` is about `key`, which it matches: `~tries` and the like must be named."""
    branch = _first_segment(key)
    return not branch.startswith("~") or branch == _first_segment(pattern)


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of the attempts at an entry: the value at its `tries_key`.

    `delayed`: the lease on the entry is nobody's claim, it keeps the entry back.
    """

    tries: int
    created: Revision
    last_error: str = ""
    delayed: bool = False

    @staticmethod
    def of(found: Entry | None, created: Revision) -> "Record":
        """The record of the entry that exists since `created`; without one: no attempt yet."""
        value = found.value if found else None
        if isinstance(value, Mapping) and value.get("created") == created:
            tries, told = value.get("tries"), value.get("last_error")
            if type(tries) is int and tries >= 0 and isinstance(told, str):
                return Record(tries, created, told, value.get("delayed") is True)
        return Record(0, created)

    def at(self, key: Key) -> Put:
        """The operation that keeps this record of the entry `key`."""
        return Put(tries_key(key), encode_value(asdict(self)))


# --- what can be seen -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimed:
    """An entry that was claimed at least once, and is not done.

    `state` is "claimed" (by `holder`, until `until_ms` if that is not renewed), "delayed" (nobody
    may claim it until `until_ms`), "returned" (anybody may) or "dead". `tries` counts the attempts
    so far; `last_error` ended the last one that could tell it.
    """

    key: Key
    state: str
    tries: int
    holder: str | None = None
    until_ms: Milliseconds | None = None
    last_error: str = ""


class ClaimedBoard(Protocol):
    """What it takes to see claims."""

    async def entries(self, keys: Sequence[Key]) -> dict[Key, Entry]:
        """Several entries as of one revision."""

    def scan(self, pattern: str) -> AsyncIterator[Entry]:
        """All entries that match."""

    async def leases(self, pattern: str) -> Sequence[Lease]:
        """The leases whose keys match."""


async def claims(board: ClaimedBoard, pattern: str) -> list[Claimed]:
    """Entries that match and were claimed, in key order; then those of them that are dead."""
    found = await _living(board, check_pattern(pattern))
    return found + await _dead(board, dead_key(pattern))


async def _living(board: ClaimedBoard, pattern: str) -> list[Claimed]:
    leases = {lease.key: lease for lease in await board.leases(pattern)}
    found = []
    for entry, kept in await _recorded(board, pattern):
        record = Record.of(kept, entry.create_revision)
        if record.tries:
            found.append(_seen(entry.key, record, leases.get(entry.key)))
    return found


async def _dead(board: ClaimedBoard, pattern: str) -> list[Claimed]:
    """Their records came with them, and are about the entries that they were."""
    found = []
    for entry, kept in await _recorded(board, pattern):
        value = kept.value if isinstance(kept.value, Mapping) else {}
        record = Record.of(kept, value.get("created", 0))
        found.append(Claimed(entry.key, "dead", record.tries, last_error=record.last_error))
    return found


async def _recorded(board: ClaimedBoard, pattern: str) -> list[tuple[Entry, Entry]]:
    """Entries that match and have a record, each with the entry of its record."""
    records: dict[Key, Entry] = {}
    async for kept in board.scan(tries_key(pattern)):
        key = kept.key.replace(f"/{TRIES}/", "/", 1)
        if is_meant(pattern, key):
            records[key] = kept
    keys = sorted(records)
    found: list[tuple[Entry, Entry]] = []
    for start in range(0, len(keys), READ_KEYS_MAX):
        entries = await board.entries(keys[start : start + READ_KEYS_MAX])
        found += [(entries[key], records[key]) for key in sorted(entries)]
    return found


def _seen(key: Key, record: Record, lease: Lease | None) -> Claimed:
    if lease is None:
        return Claimed(key, "returned", record.tries, last_error=record.last_error)
    if record.delayed:
        until_ms, told = lease.until_ms, record.last_error
        return Claimed(key, "delayed", record.tries, until_ms=until_ms, last_error=told)
    holder, until_ms = lease.holder, lease.until_ms
    return Claimed(key, "claimed", record.tries, holder, until_ms, record.last_error)
