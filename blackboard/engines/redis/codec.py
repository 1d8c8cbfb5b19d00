"""A batch of commits as arguments of `scripts/commit.lua`, and its reply as outcomes.

Replies of `scripts/read.lua` and `scripts/log.lua` as readings and log pages.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import msgpack
from msgspec.structs import replace

from blackboard import limits
from blackboard.core import freeze
from blackboard.core.commit import (
    ENGINE,
    Committed,
    Directory,
    Entry,
    Increment,
    Lease,
    LogEntry,
    LogPage,
    Reading,
    name_of,
)
from blackboard.core.lease import from_result
from blackboard.core.model import Outcome
from blackboard.engines.base import Behind
from blackboard.engines.redis.driver import Argument
from blackboard.engines.redis.layout import read_entry, read_epoch, read_head, unpack_bundle
from blackboard.errors import (
    AttemptTooOld,
    BlackboardError,
    BoardFrozen,
    Compacted,
    Conflict,
    Corrupt,
    Fenced,
    FutureRevision,
    HeadMoved,
    InvalidRequest,
    LeaseHeld,
    LimitExceeded,
    OutcomeUnknown,
    Rejected,
    SnapshotFirst,
    StaleEpoch,
    StepSuperseded,
    TypeMismatch,
    Unavailable,
)
from blackboard.units import Milliseconds, Revision
from blackboard.wire.codec import Prepared, decode_entry, decode_results, marker_entry, prepare

_LIMITS: Final = (
    "OPERATIONS_MAX",
    "RESTORE_CHANGES_MAX",
    "FENCES_MAX",
    "BASED_ON_MAX",
    "VALUE_INLINE_BYTES_MAX",
    "KEY_BYTES_MAX",
    "INTEGER_MAX",
    "LEASES_MAX",
    "LEASES_ORDINARY_MAX",
    "LEASES_PER_ACCOUNT_MAX",
    "LEASE_TTL_MS",
    "LEASE_WAITERS_MAX",
    "LEASE_WAITERS_PER_ACCOUNT_MAX",
    "NAMESPACE_KEYS_MAX",
    "NAMESPACE_BYTES_MAX",
    "ACCOUNT_KEYS_MAX",
    "ACCOUNT_BYTES_MAX",
    "ACCOUNT_INBOX_KEYS_MAX",
    "ACCOUNT_INBOX_BYTES_MAX",
    "BOARD_KEYS_MAX",
    "BOARD_BYTES_MAX",
)
_COMMITTED, _DUPLICATE, _UNLOGGED = 1, 2, 3
_BEHIND: Final = -1
_FOR_EVER: Final = (HeadMoved, InvalidRequest, StaleEpoch, StepSuperseded)
"""Refusals that every later attempt at the same commit gets, too."""


def commit_arguments(batch: Sequence[Prepared], access: Revision | None = None) -> list[Argument]:
    """ARGV of commit.lua. `access`: see `Shared.commit_at`."""
    arguments: list[Argument] = [
        _pack_limits(tuple(getattr(limits, name) for name in _LIMITS)),
        msgpack.packb([len(prepared.large) for prepared in batch]),
        "" if access is None else access,
    ]
    for prepared in batch:
        arguments += (prepared.control, prepared.body, *prepared.large)
    return arguments


@lru_cache(maxsize=16)
def _pack_limits(values: tuple[int, ...]) -> bytes:
    packed: bytes = msgpack.packb(dict(zip(_LIMITS, values, strict=True)))
    return packed


def as_retry(prepared: Prepared, seen: Revision) -> Prepared:
    """The same commit, sent again after an attempt whose answer was lost.

    `seen` is a revision that the board had reached before the first attempt. With it the script
    notices when another incarnation of the agent has overwritten the lost answer in between.
    """
    commit = prepared.commit
    if commit.retry_since is not None:
        return prepared
    # The writer's `known`, if it sent one, comes before `seen`: this attempt may itself have been
    # late.
    return prepare(replace(commit, retry_since=seen if commit.known is None else commit.known))


def unknown(prepared: Prepared, reason: str, *, final: bool = False) -> OutcomeUnknown:
    """The outcome of a commit that was sent and not answered."""
    name = prepared.commit.id
    return OutcomeUnknown(name.agent, name.lane, name.incarnation, name.step, reason, final)


def in_doubt(prepared: Prepared, outcome: Outcome) -> Outcome:
    """The outcome of a commit whose earlier attempt had no answer, and may still arrive.

    The reason of a refusal may be gone by then, unless it is one of `_FOR_EVER`.
    """
    if isinstance(outcome, (Rejected, Unavailable)) and not isinstance(outcome, _FOR_EVER):
        # Only the code: what else a refusal says, its reader may not be allowed to know.
        reason = f"an attempt without answer may still arrive; the next one: {outcome.code}"
        return unknown(prepared, reason)
    return outcome


def read_behind(reply: Sequence[Any]) -> Behind | None:
    """The reason if the reply of commit.lua says that nothing was decided; else None."""
    if reply[0] != _BEHIND:
        return None
    return Behind(int(reply[1]) if reply[1] else None)


def read_outcomes(
    batch: Sequence[Prepared], reply: Sequence[Any], *, level: str = ""
) -> list[Outcome]:
    """One outcome per commit, from the reply of commit.lua.

    `level` is that of commits written now; for an earlier answer it is not known.
    """
    _, time_ms, *outcomes = reply
    return [
        _read_outcome(prepared, outcome, time_ms, level)
        for prepared, outcome in zip(batch, outcomes, strict=True)
    ]


def _read_outcome(prepared: Prepared, outcome: Sequence[Any], time_ms: int, level: str) -> Outcome:
    kind, *rest = outcome
    if kind in (_COMMITTED, _UNLOGGED):
        results = decode_results(rest[1]) if len(rest) > 1 else (None,) * len(prepared.commit.ops)
        return Committed(rest[0], time_ms, results, level=level)
    if kind == _DUPLICATE:
        revision, first_ms, results = rest
        return Committed(revision, first_ms, decode_results(results), duplicate=True)
    code, *values = rest
    # A server that is out of memory refuses single commits of a batch: here Unavailable is an
    # outcome.
    return cast("Outcome", _REFUSALS[code](prepared, *values))


# --- refusals: one function per code of commit.lua ------------------------------------------------


def _text(name: bytes | None) -> str | None:
    return None if name is None else name.decode()


def _name(signed: bytes | None) -> str | None:
    return None if signed is None else name_of(signed.decode())


def _conflict(_: Prepared, key: bytes, *rest: Any) -> Conflict:
    expected, actual, by, at_revision, head, current = rest
    return Conflict(
        key.decode(), expected, actual, _name(by), at_revision, head=head, current=current
    )


def _stale_epoch(prepared: Prepared, epoch: bytes, head: Revision) -> StaleEpoch:
    now = read_epoch(epoch)
    return StaleEpoch(
        yours=prepared.commit.epoch,
        current=now.id,
        number=now.number,
        cause=now.cause,
        from_revision=now.from_revision,
        head=head,
    )


def _too_old(prepared: Prepared, head: Revision) -> AttemptTooOld:
    name, known = prepared.commit.id, prepared.commit.known
    assert known is not None
    return AttemptTooOld(name.agent, name.lane, name.incarnation, name.step, known, head)


def _superseded(prepared: Prepared, last_step: int) -> StepSuperseded:
    return StepSuperseded(prepared.commit.id.agent, prepared.commit.id.step, last_step)


def _limit(
    _: Prepared, name: bytes, value: int, where: bytes | None, account: bytes | None = None
) -> LimitExceeded:
    maximum = getattr(limits, name.decode())
    return LimitExceeded(name.decode(), value, maximum, _text(where), _text(account))


def _overflow(prepared: Prepared, position: int, number: int) -> LimitExceeded:
    op = prepared.commit.ops[position - 1]
    assert isinstance(op, Increment)
    # Added here: the script's doubles do not hold the sum exactly.
    return LimitExceeded("INTEGER_MAX", number + op.by, limits.INTEGER_MAX, op.key)


def _fenced(_: Prepared, key: bytes, fence: int, current: int, holder: bytes | None) -> Fenced:
    return Fenced(key.decode(), fence, current, _text(holder))


def _held(_: Prepared, key: bytes, holder: bytes, fence: int, until_ms: int) -> LeaseHeld:
    return LeaseHeld(key.decode(), holder.decode(), fence, until_ms)


def _type(_: Prepared, key: bytes, found: bytes) -> TypeMismatch:
    return TypeMismatch(key.decode(), "integer", found.decode())


def _compacted(_: Prepared, revision: Revision, oldest: Revision) -> Compacted:
    return Compacted(revision, oldest)


def _future(_: Prepared, revision: Revision, head: Revision) -> FutureRevision:
    return FutureRevision(revision, head)


def _unknown(prepared: Prepared) -> OutcomeUnknown:
    return unknown(prepared, "its answer is no longer kept", final=True)


def _empty(_: Prepared) -> InvalidRequest:
    return InvalidRequest(field="ops", reason="a commit needs at least one operation")


def _begins(_: Prepared) -> InvalidRequest:
    return InvalidRequest(field="begins", reason="it is not the epoch of a restore")


def _restore(_: Prepared) -> InvalidRequest:
    return InvalidRequest(field="ops", reason="a restore puts back and deletes, nothing else")


def _put_back(_: Prepared) -> InvalidRequest:
    return InvalidRequest(field="ops", reason="only a restore puts back what was")


def _moved(_: Prepared, expected: Revision, head: Revision) -> HeadMoved:
    return HeadMoved(expected, head)


def _barrier(prepared: Prepared, key: bytes, since: Revision) -> SnapshotFirst:
    return SnapshotFirst(prepared.commit.id.agent, key.decode(), since)


def _frozen(_: Prepared, value: bytes, since_ms: Milliseconds, revision: Revision) -> BoardFrozen:
    return freeze.refusal(value, since_ms, revision)


def _malformed(_: Prepared, reason: bytes) -> InvalidRequest:
    return InvalidRequest(field="commit", reason=reason.decode("utf-8", "replace"))


def _engine(_: Prepared, reason: bytes) -> BlackboardError:
    text = reason.decode("utf-8", "replace")
    if "equal or smaller" in text:  # the log is ahead of the state: see the top of commit.lua
        return Corrupt(what="log", reason=text)
    if text.lstrip("-").startswith("OOM"):
        return Unavailable(what="engine", reason="out of memory: only removals are accepted")
    return Unavailable(what="engine", reason=text)


_REFUSALS: Final[dict[bytes, Callable[..., BlackboardError]]] = {
    b"conflict": _conflict,
    b"epoch": _stale_epoch,
    b"superseded": _superseded,
    b"limit": _limit,
    b"overflow": _overflow,
    b"fenced": _fenced,
    b"held": _held,
    b"type": _type,
    b"compacted": _compacted,
    b"future": _future,
    b"unknown": _unknown,
    b"too_old": _too_old,
    b"empty": _empty,
    b"begins": _begins,
    b"restore": _restore,
    b"put_back": _put_back,
    b"moved": _moved,
    b"barrier": _barrier,
    b"frozen": _frozen,
    b"malformed": _malformed,
    b"engine": _engine,
}


_PARTS: Final = 3
"""Items per entry in a reply of read.lua: key, field, large value."""


def read_reading(reply: Sequence[Any]) -> tuple[Reading, bool]:
    """The entries of a reply of read.lua, and whether there are more."""
    revision, epoch, is_cut, flat = reply
    entries: list[Entry] = [
        read_entry(*flat[at : at + _PARTS]) for at in range(0, len(flat), _PARTS)
    ]
    return Reading(revision, read_epoch(epoch).id, tuple(entries)), bool(is_cut)


def read_children(reply: Sequence[Any]) -> Reading:
    """The reply of read.lua to a listing by directory."""
    *head, last, flat = reply
    reading, is_cut = read_reading(head)
    found = [(flat[at].decode(), flat[at + 1]) for at in range(0, len(flat), 2)]
    directories = tuple(
        Directory(prefix, min(count, limits.DIRECTORY_KEYS_MAX), count > limits.DIRECTORY_KEYS_MAX)
        for prefix, count in found
    )
    next_key = last.decode() if is_cut else None
    return replace(reading, directories=directories, next_key=next_key)


def read_leases(reply: Sequence[Any], *, due: bool) -> Reading:
    """The leases of a reply of leases.lua; with `due` only the expired ones."""
    revision, epoch, time_ms, flat = reply
    packed = sorted(zip(flat[::2], flat[1::2], strict=True))
    # The field without a name keeps the hash in existence.
    found = (_read_lease(key, lease, time_ms) for key, lease in packed if key)
    leases = tuple(lease for lease in found if not due or lease.until_ms <= time_ms)
    return Reading(revision, read_epoch(epoch).id, leases=leases)


def _read_lease(key: bytes, packed: bytes, time_ms: Milliseconds) -> Lease:
    """Twin: `read_lease` of scripts/prelude.lua."""
    holder, fence, until_ms, *rest = msgpack.unpackb(packed)
    accounts = rest.pop() if rest and isinstance(rest[-1], list) else []
    # Waiters have three items each. One more is the time to live, which an older form lacks.
    ttl_ms = rest.pop(0) if len(rest) % 3 else max(limits.LEASE_TTL_MS, until_ms - time_ms)
    lease = from_result(key.decode(), [holder, fence, until_ms, *rest])
    assert lease is not None
    account, *others = accounts or [""] * (1 + len(lease.waiters))
    queue = zip(lease.waiters, others, strict=True)
    waiters = tuple(replace(waiter, account=whose) for waiter, whose in queue)
    return replace(lease, ttl_ms=ttl_ms, waiters=waiters, account=account)


def read_log_page(reply: Sequence[Any], after: Revision) -> LogPage:
    """The page of a reply of log.lua. Errors: Compacted, FutureRevision, Corrupt."""
    head, items = read_head(reply[0]), reply[1]
    if after + 1 < head.oldest:
        raise Compacted(after, head.oldest)
    if after > head.revision:
        raise FutureRevision(after, head.revision)
    entries = tuple(_read_log_entry(*item) for item in items)
    # From a position that was trimmed away, XRANGE answers with what is left: no error tells.
    if entries and entries[0].revision != after + 1 and not _came_back(entries[0]):
        raise Corrupt(what="log", reason=f"revision {after + 1} is missing")
    return LogPage(head, entries)


def _came_back(entry: LogEntry) -> bool:
    return entry.epoch is not None and entry.epoch.cause == ENGINE


def _read_log_entry(name: bytes, flat: Sequence[bytes]) -> LogEntry:
    """One entry of the stream; the names of its fields are those of commit.lua and open.lua."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    revision, time_ms = int(name.partition(b"-")[0]), int(fields[b"t"])
    if b"e" in fields:
        return marker_entry(read_epoch(fields[b"e"]), time_ms)
    # All fields but `b`, `t` and `r` hold large values, counted from 1.
    numbers = range(1, len(fields) - 2)
    if b"w1" in fields:
        # A restore has them in lists, because Lua cannot pass on so many arguments.
        large = [value for n in numbers for value in unpack_bundle(fields[b"w%d" % n])]
    else:
        large = [fields[b"v%d" % n] for n in numbers]
    return decode_entry(revision, time_ms, fields[b"b"], large, fields[b"r"])
