"""Values and commits as bytes.

Invariants
- `decode_value(encode_value(x)) == x` for every value that is accepted (tuples come back as lists).
- Only plain data is ever decoded: no extension types, no class names, string keys only.
- A commit is encoded once, by the service that sends it. The log keeps those bytes, the digest
  covers them, and every engine stores them, so a board has the same bytes everywhere.

The body of a commit is msgpack *without* the `bin` type, because Redis' cmsgpack refuses it:
`[author, lane, incarnation, step, based_on, note, ops]`, `author` a signature (core/commit.py),
`based_on` flat (key, revision, ...); a commit that begins an epoch adds it: `[number, id, cause,
from_revision, revision]`. A commit with a salt adds the epoch, or nil, and the salt. An operation
is an array that begins with its code (`_OPS`); values above VALUE_INLINE_BYTES_MAX are stored
outside the body, in `large`, and the operation (its code in upper case) has their index.
"""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgpack
from msgspec import Struct, convert, to_builtins
from msgspec.msgpack import Encoder

from blackboard.core.commit import (
    SERVICE,
    Append,
    Commit,
    CommitId,
    Committed,
    Delete,
    DeletePrefix,
    Epoch,
    Expire,
    Grant,
    Increment,
    KeyAt,
    LogEntry,
    Op,
    Put,
    PutBack,
    Release,
    Renew,
    Result,
    name_of,
    narrowed_from,
)
from blackboard.core.log_entry import log_entry
from blackboard.errors import Corrupt, InvalidRequest, LimitExceeded, TypeMismatch
from blackboard.limits import (
    COMMIT_BYTES_MAX,
    LARGE_BYTES_MAX,
    RESTORE_BYTES_MAX,
    RESTORE_CHANGES_MAX,
    VALUE_BYTES_MAX,
    VALUE_DEPTH_MAX,
    VALUE_INLINE_BYTES_MAX,
)
from blackboard.units import Milliseconds, Revision

T = TypeVar("T")
JsonValue = Any
"""None, bool, int, float, str, bytes, list of values, dict of str to value."""

BYTES_KEY = "$bytes"
"""In JSON, bytes are `{"$bytes": "<base64>"}`; the name is therefore refused in maps."""

# --- values ---------------------------------------------------------------------------------------


def encode_value(value: JsonValue) -> bytes:
    """Encode a value as msgpack.

    Shapes: JSON types and bytes; integers in [-2**63, 2**64); finite floats; string keys; nesting
    up to VALUE_DEPTH_MAX; VALUE_BYTES_MAX bytes when encoded. Dataclasses, msgspec structs and
    pydantic models are encoded as maps of their fields; times, UUIDs and decimals in them as
    strings, sets as lists.
    Errors: InvalidRequest, LimitExceeded.
    """
    encoded = _encoded(value)
    if len(encoded) > VALUE_BYTES_MAX:
        raise LimitExceeded("VALUE_BYTES_MAX", len(encoded), VALUE_BYTES_MAX)
    return encoded


def encode_text(text: str, field: str = "text") -> bytes:
    """A text as UTF-8. Errors: InvalidRequest, which names `field`, for half of a surrogate
    pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(field=field, reason=f"is no Unicode text: {error}") from error


def encode_large(value: JsonValue) -> bytes:
    """As `encode_value`, but up to LARGE_BYTES_MAX, for values that are stored in parts."""
    encoded = _encoded(value)
    if len(encoded) > LARGE_BYTES_MAX:
        raise LimitExceeded("LARGE_BYTES_MAX", len(encoded), LARGE_BYTES_MAX)
    return encoded


def _encoded(value: JsonValue) -> bytes:
    if type(value) not in _PLAIN:
        try:
            _check_plain(value, 0)
        except _RecordError:
            value = _as_map(value)
            _check_plain(value, 0)
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequest(field="value", reason=str(error)) from error


def _plain_float(number: object) -> float:
    """Convert a subclass of float, such as numpy's, to a plain float."""
    if not isinstance(number, float):
        raise TypeError(f"{type(number).__name__} is no type of JSON")
    return float(number)


_encode: Final = Encoder(enc_hook=_plain_float).encode


def decode_value(encoded: bytes) -> JsonValue:
    """Decode what `encode_value` made. Errors: Corrupt for anything else."""
    try:
        # A timestamp, the one extension type that no hook sees, is decoded as a plain number.
        return msgpack.unpackb(encoded, timestamp=1, ext_hook=_refuse_extension)
    except (ValueError, msgpack.UnpackException) as error:
        raise Corrupt(what="value", reason=f"not msgpack: {error}") from error


_PLAIN = frozenset((str, int, bool, bytes, type(None)))


class _RecordError(Exception):
    """There is a record in the value, which has to be converted first."""


# --- records --------------------------------------------------------------------------------------
# Programs may use types of their own for values: dataclasses, structs of msgspec, and models of
# pydantic, which is recognised by its methods and never imported here.


def _is_object(kind: type) -> bool:
    return issubclass(kind, Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "model_dump")


def _as_map(value: Any) -> Any:
    """A record as a map. Errors: InvalidRequest for a field that cannot be encoded."""
    try:
        return to_builtins(value, builtin_types=(bytes,), enc_hook=_dumped)
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"{type(value).__name__} cannot be encoded: {error}"
        raise InvalidRequest(field="value", reason=reason) from error


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return _plain_float(value)


def as_type(value: JsonValue, kind: type[T], key: str) -> T:
    """`value`, which is at `key`, as a `kind`: a dataclass, struct or model, or a type of those
    and of JSON, such as `list[Valuation]`.

    Errors: TypeMismatch with the path of what does not fit (`$.usd_bn: ...`); InvalidRequest for a
    type that no value can be converted to.
    """
    try:
        if hasattr(kind, "model_validate"):
            found: T = _validated(kind, value)
            return found
        return convert(value, kind, builtin_types=(bytes,), dec_hook=_validated)
    except ValueError as error:  # of msgspec and pydantic
        raise TypeMismatch(key, _name_of(kind), _misfit(error)) from error
    except TypeError as error:
        raise _no_type(kind, str(error)) from error


def _validated(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise _no_type(kind, "use a dataclass, a struct, a model, or a type of JSON")


def _no_type(kind: Any, reason: str) -> InvalidRequest:
    return InvalidRequest(field="as_type", reason=f"{kind!r:.200} is no type of values: {reason}")


def _name_of(kind: Any) -> str:
    return kind.__name__ if type(kind) is type else str(kind)


def _misfit(error: ValueError) -> str:
    """Where a value does not fit, and why: the first place that the error names."""
    places = getattr(error, "errors", None)
    if places is not None:
        first = places()[0]
        return f"{'.'.join(['$', *map(str, first['loc'])])}: {first['msg']}"[:500]
    reason, _, path = str(error).partition(" - at `")
    return f"{path.removesuffix('`') or '$'}: {reason}"[:500]


def _check_plain(value: JsonValue, depth: int) -> None:
    """Refuse what msgpack can encode and JSON cannot, and what is nested too deeply."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidRequest(field="value", reason=f"{value} is not a JSON number")
        return
    # An ExtType is a tuple, and would pass as a list.
    if not isinstance(value, (dict, list, tuple)) or isinstance(value, msgpack.ExtType):
        if _is_object(type(value)):
            raise _RecordError
        hint = ": give a list" if isinstance(value, set | frozenset) else ""
        reason = f"{type(value).__name__} is no type of JSON, and not bytes{hint}"
        raise InvalidRequest(field="value", reason=reason)
    if depth >= VALUE_DEPTH_MAX:
        raise LimitExceeded("VALUE_DEPTH_MAX", depth + 1, VALUE_DEPTH_MAX)
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str or key == BYTES_KEY:
                raise InvalidRequest(field="value", reason=f"{key!r} cannot be a key of a map")
    for item in value.values() if isinstance(value, dict) else value:
        if type(item) not in _PLAIN:
            _check_plain(item, depth + 1)


def _refuse_extension(code: int, _: bytes) -> None:
    raise ValueError(f"extension type {code}")


# --- commits --------------------------------------------------------------------------------------


class Prepared(Struct, frozen=True, gc=False):
    """A commit as an engine takes it: encoded once; with its digest, if it has no salt.

    `control` is what the Redis script checks but the log does not store: `[epoch, retry_since or
    -1, conditions, fences, known or -1]`, conditions and fences flat: ("k", key, revision) or ("n",
    prefix, since), and (lease, holder, fence).
    """

    commit: Commit
    control: bytes
    body: bytes
    large: tuple[bytes, ...]
    digest: bytes
    size: int
    """Bytes that the commit occupies in a batch."""


def prepare(commit: Commit) -> Prepared:
    """Encode a commit.

    Errors: LimitExceeded above COMMIT_BYTES_MAX; a restore's limit is RESTORE_BYTES_MAX.
    """
    large: list[bytes] = []
    name = commit.id
    based_on = [part for pair in commit.based_on for part in pair]
    ops = [_encode_op(op, large) for op in commit.ops]
    header = [commit.author, name.lane, name.incarnation, name.step, based_on, commit.note, ops]
    if commit.begins is not None or commit.salt:
        header.append(None if commit.begins is None else _encode_epoch(commit.begins))
    if commit.salt:
        header.append(commit.salt)
    pack = _pack if commit.begins is None else _pack_alone  # a huge restore, in a thread
    body = pack(header)
    conditions: list[Any] = []
    for condition in commit.conditions:
        if isinstance(condition, KeyAt):
            conditions += ("k", condition.key, condition.revision)
        else:
            conditions += ("n", condition.prefix, condition.since)
    fences = [part for f in commit.fences for part in (f.key, f.holder, f.fence)]
    since = -1 if commit.retry_since is None else commit.retry_since
    known = -1 if commit.known is None else commit.known
    control = pack([commit.epoch, since, conditions, fences, known])
    digest = b"" if commit.salt else _digest(body, large)
    size = len(control) + len(body) + sum(map(len, large))
    if commit.begins is not None and size > RESTORE_BYTES_MAX:
        raise LimitExceeded("RESTORE_BYTES_MAX", size, RESTORE_BYTES_MAX)
    if commit.begins is None and size > COMMIT_BYTES_MAX:
        raise LimitExceeded("COMMIT_BYTES_MAX", size, COMMIT_BYTES_MAX)
    return Prepared(commit, control, body, tuple(large), digest, size)


def decode_entry(
    revision: Revision, time_ms: Milliseconds, body: bytes, large: Sequence[bytes], results: bytes
) -> LogEntry:
    """Rebuild the log entry of a commit from what an engine stored.

    Errors: Corrupt when the bytes are not what `prepare` and `encode_results` made.
    """
    try:
        # The body has no `bin`: texts and values share one type, and are decoded where used.
        header = msgpack.unpackb(body, raw=True)
        signed, lane, incarnation, step, flat, note, ops, *rest = header
        # Older entries lack one or both.
        begins, salt = (*rest, None, None)[:2]
        author = signed.decode()
        commit = Commit(
            id=CommitId(name_of(author), lane, incarnation.decode(), step),
            epoch="",
            ops=tuple(_decode_op(op, large) for op in ops),
            based_on=tuple((k.decode(), r) for k, r in zip(flat[::2], flat[1::2], strict=True)),
            note=note.decode(),
            begins=None if begins is None else _decode_epoch(begins),
            salt=salt or b"",
            account=narrowed_from(author),
        )
        committed = Committed(revision, time_ms, decode_results(results))
        return log_entry(commit, committed, b"" if salt else _digest(body, large))
    except _DAMAGE as error:
        raise Corrupt(what=f"log entry {revision}", reason=repr(error)) from error


# What decoding foreign bytes may raise. The assertions are in core/log_entry.py: a result must fit
# its operation.
_DAMAGE = (
    AssertionError,
    AttributeError,
    IndexError,
    TypeError,
    ValueError,
    msgpack.UnpackException,
)


def marker_entry(epoch: Epoch, time_ms: Milliseconds) -> LogEntry:
    """The log entry that begins `epoch`."""
    return LogEntry(
        revision=epoch.revision,
        time_ms=time_ms,
        id=CommitId(SYSTEM_AGENT, 0, epoch.id, 0),
        changes=(),
        digest=_digest(_pack_alone(_encode_epoch(epoch)), ()),
        epoch=epoch,
    )


def _encode_epoch(epoch: Epoch) -> list[Any]:
    return [epoch.number, epoch.id, epoch.cause, epoch.from_revision, epoch.revision]


def _decode_epoch(packed: list[Any]) -> Epoch:
    number, name, cause, from_revision, revision = packed
    return Epoch(number, name.decode(), cause.decode(), from_revision, revision)


SYSTEM_AGENT = SERVICE
"""Author of the service's own commits. Agents' names do not begin with a tilde."""


def encode_results(results: Sequence[Result]) -> bytes:
    """Encode what a commit computed; a count when it computed nothing (the usual case).

    Safe in any thread, because the thread that writes a board's rows calls it, too.
    """
    count = len(results)
    if results.count(None) == count:
        return bytes((count,)) if count <= _FIXINT_MAX else _pack_alone(count)
    # As commit.lua has it: a table in Lua cannot hold nil.
    return _pack_alone([False if result is None else result for result in results])


def decode_results(encoded: bytes) -> tuple[Result, ...]:
    """The inverse of `encode_results`; also reads what commit.lua packed. Errors: Corrupt."""
    try:
        found = msgpack.unpackb(encoded, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise Corrupt(what="results", reason=str(error)) from error
    # Bounded: a damaged count would allocate gigabytes.
    if type(found) is int and 0 <= found <= 2 * RESTORE_CHANGES_MAX:
        return (None,) * found
    if type(found) is not list:
        raise Corrupt(what="results", reason="neither a count nor a list")
    return tuple(_decode_result(item) for item in found)


def _decode_result(item: Any) -> Result:
    if item is False:
        return None
    return tuple(item) if isinstance(item, list) else item


def _pack(value: Any) -> bytes:
    """Pack as msgpack that Redis' Lua can read: strings and bytes share one type. Only for the
    event loop's thread: a packer that two threads share may mix up their output."""
    packed: bytes = _packer.pack(value)
    return packed


def _pack_alone(value: Any) -> bytes:
    """As `_pack`, in any thread, with a packer of its own, whose buffer is freed afterwards."""
    packed: bytes = msgpack.packb(value, use_bin_type=False)
    return packed


_FIXINT_MAX: Final = 0x7F  # msgpack: such a number is its own byte
_packer: Final = msgpack.Packer(use_bin_type=False)
"""Kept, because making a packer takes longer than packing a commit."""


def _digest(body: bytes, large: Sequence[bytes]) -> bytes:
    """SHA-256 over the body and the SHA-256 of each large value."""
    digest = hashlib.sha256(body)
    for value in large:
        digest.update(hashlib.sha256(value).digest())
    return digest.digest()


def _ttl(ttl_ms: Milliseconds | None) -> int:
    return -1 if ttl_ms is None else ttl_ms


def _encode_op(op: Op, large: list[bytes]) -> list[Any]:
    match op:
        case Put() | Append():
            code, path = ("p", op.key) if isinstance(op, Put) else ("a", op.prefix)
            if len(op.value) <= VALUE_INLINE_BYTES_MAX:
                return [code, path, op.value, _ttl(op.ttl_ms)]
            large.append(op.value)
            # Counted from 1, as in Lua.
            return [code.upper(), path, len(large), _ttl(op.ttl_ms)]
        case PutBack():
            return _encode_put_back(op, large)
        case Delete():
            return ["d", op.key]
        case DeletePrefix():
            return ["x", op.prefix]
        case Increment():
            return ["i", op.key, op.by]
        case Grant():
            return ["g", op.key, op.holder, op.ttl_ms, int(op.wait)]
        case Renew():
            return ["n", op.key, op.holder, op.fence, op.ttl_ms]
        case Release():
            return ["r", op.key, op.holder, op.fence]
        case Expire():
            return ["e", op.key, op.holder, op.fence]


def _encode_put_back(op: PutBack, large: list[bytes]) -> list[Any]:
    item = [] if op.item is None else [op.item]
    until_ms = -1 if op.expires_at_ms is None else op.expires_at_ms
    if op.value is None or len(op.value) <= VALUE_INLINE_BYTES_MAX:
        return ["b", op.key, False if op.value is None else op.value, until_ms, *item]
    large.append(op.value)
    return ["B", op.key, len(large), until_ms, *item]


def _decode_op(packed: list[Any], large: Sequence[bytes]) -> Op:
    code, path, *rest = packed
    key: str = path.decode()
    match code, rest:
        case ((b"p" | b"a" | b"P" | b"A"), [value, ttl]):
            ttl_ms = None if ttl < 0 else ttl
            value = value if code.islower() else large[value - 1]
            return (Put if code in b"pP" else Append)(key, value, ttl_ms)
        case ((b"b" | b"B"), [value, until_ms, *item]):
            value = value if code.islower() else large[value - 1]
            return PutBack(
                key, None if value is False else value, None if until_ms < 0 else until_ms, *item
            )
        case b"d", []:
            return Delete(key)
        case b"x", []:
            return DeletePrefix(key)
        case b"i", [by]:
            return Increment(key, by)
        case b"g", [holder, ttl_ms, wait]:
            return Grant(key, holder.decode(), ttl_ms, bool(wait))
        case b"n", [holder, fence, ttl_ms]:
            return Renew(key, holder.decode(), fence, ttl_ms)
        case b"r", [holder, fence]:
            return Release(key, holder.decode(), fence)
        case b"e", [holder, fence]:
            return Expire(key, holder.decode(), fence)
    raise ValueError(f"operation {code!r}")
