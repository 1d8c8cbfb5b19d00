"""Commits as they travel: written by the client, and read whole frames at a time by the service.

What `frames.py` and `messages.py` do for every request is done once more for the one that comes ten
thousand times a second, and twenty times as fast. The reader only ever says yes: what is unusual or
wrong is left to those two, which say why. Loads nothing of pydantic: a client starts quickly.

Invariants
- a frame is taken only if it is, byte for byte, what encoding the commits in it would give again:
  so it has one meaning, and no member that stands twice or that nobody knows.
- what is taken here, `messages.parse` takes too, and it is the same commit.
"""

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, Struct

from blackboard import limits
from blackboard.core import commit as core
from blackboard.core.commit import (
    Append,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    Increment,
    KeyAt,
    Op,
    Put,
    PutBack,
    Release,
    Renew,
)
from blackboard.core.path import check_holder, check_key, check_name, check_prefix
from blackboard.errors import LocalProtocolError, Rejected
from blackboard.wire.frames import CONTAINERS_MAX, MSGPACK, Encoding

_Revision = Annotated[int, Meta(ge=0, le=limits.REVISION_MAX)]
_Ttl = Annotated[int, Meta(ge=1, le=limits.TTL_MS_MAX)]
_Integer = Annotated[int, Meta(ge=-limits.INTEGER_MAX, le=limits.INTEGER_MAX)]


class _Part(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A map of a request, with its members in the order in which `requests.py` writes them."""


class _Put(_Part, tag_field="kind", tag="put"):
    key: str
    value: bytes
    ttl_ms: _Ttl | None = None

    def __post_init__(self) -> None:
        check_key(self.key)
        _check_value(self.value)

    def to_core(self) -> core.Op:
        return core.Put(self.key, self.value, self.ttl_ms)


class _Append(_Part, tag_field="kind", tag="append"):
    prefix: str
    value: bytes
    ttl_ms: _Ttl | None = None

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        _check_value(self.value)

    def to_core(self) -> core.Op:
        return core.Append(self.prefix, self.value, self.ttl_ms)


class _Delete(_Part, tag_field="kind", tag="delete"):
    key: str

    def __post_init__(self) -> None:
        check_key(self.key)

    def to_core(self) -> core.Op:
        return core.Delete(self.key)


class _Increment(_Part, tag_field="kind", tag="increment"):
    key: str
    by: _Integer

    def __post_init__(self) -> None:
        check_key(self.key)

    def to_core(self) -> core.Op:
        return core.Increment(self.key, self.by)


class _KeyAt(_Part, tag_field="kind", tag="key_at"):
    key: str
    revision: Annotated[int, Meta(ge=core.PRESENT, le=limits.REVISION_MAX)]

    def __post_init__(self) -> None:
        check_key(self.key)


class _HeldFence(_Part):
    key: str
    holder: str
    fence: Annotated[int, Meta(ge=1, le=limits.REVISION_MAX)]

    def __post_init__(self) -> None:
        check_key(self.key)
        check_holder(self.holder)


class _Name(_Part):
    lane: Annotated[int, Meta(ge=0, lt=limits.LANES_MAX)]
    incarnation: str
    step: Annotated[int, Meta(ge=0, le=limits.INTEGER_MAX)]

    def __post_init__(self) -> None:
        check_name(self.incarnation)


class CommitParams(_Part):
    """What `messages.Commit` says, of a usual commit."""

    method: ClassVar[str] = "commit"
    board: str
    id: _Name
    epoch: Annotated[str, Meta(max_length=limits.SEGMENT_BYTES_MAX)]
    ops: Annotated[
        tuple[_Put | _Append | _Delete | _Increment, ...], Meta(max_length=limits.OPERATIONS_MAX)
    ]
    conditions: Annotated[tuple[_KeyAt, ...], Meta(max_length=limits.OPERATIONS_MAX)] = ()
    fences: Annotated[tuple[_HeldFence, ...], Meta(max_length=limits.FENCES_MAX)] = ()
    based_on: Annotated[
        tuple[tuple[str, _Revision], ...], Meta(max_length=limits.BASED_ON_MAX)
    ] = ()
    note: str = ""
    known: _Revision | None = None
    retry_since: _Revision | None = None
    agent: str | None = None

    def __post_init__(self) -> None:
        check_name(self.board)
        if self.agent is not None:
            check_name(self.agent)
        for key, _ in self.based_on:
            check_key(key)
        if len(self.note.encode()) > limits.NOTE_BYTES_MAX:
            raise ValueError("the note is too long")

    def to_core(self, agent: str) -> core.Commit:
        """The commit as the core knows it, by `agent`."""
        name = self.id
        return core.Commit(
            core.CommitId(agent, name.lane, name.incarnation, name.step),
            self.epoch,
            tuple([op.to_core() for op in self.ops]),
            tuple([core.KeyAt(at.key, at.revision) for at in self.conditions]),
            tuple([core.HeldFence(f.key, f.holder, f.fence) for f in self.fences]),
            self.based_on,
            self.note,
            self.retry_since,
            known=self.known,
        )


class UsualCommit(_Part):
    """A request to commit."""

    id: Annotated[int, Meta(ge=-limits.INTEGER_MAX, le=limits.INTEGER_MAX)]
    method: Literal["commit"]
    params: CommitParams


def _check_value(value: bytes) -> None:
    if MSGPACK.value_in(value) != value:
        raise ValueError("another encoding of its value is the canonical one")


_decode: Final = msgspec.msgpack.Decoder(list[UsualCommit]).decode
_encode: Final = msgspec.msgpack.Encoder().encode


def read_commits(frame: bytes) -> list[UsualCommit]:
    """The requests of a msgpack frame of usual commits; none for any other frame.

    A large frame is left to `frames.split`, which counts what it builds.
    """
    if len(frame) > CONTAINERS_MAX:
        return []
    try:
        requests = _decode(frame)
    except (msgspec.MsgspecError, ValueError, Rejected):
        return []
    usual = len(requests) <= limits.MESSAGES_PER_FRAME_MAX and _encode(requests) == frame
    return requests if usual else []


def write_commit(board: str, commit: core.Commit, encoding: Encoding) -> dict[str, Any]:
    """Params of `commit`; the agent is whoever the connection, or the request, acts for."""
    name = commit.id
    params: dict[str, Any] = {
        "board": board,
        "id": {"lane": name.lane, "incarnation": name.incarnation, "step": name.step},
        "epoch": commit.epoch,
        "ops": [_write_op(op, encoding) for op in commit.ops],
    }
    if commit.conditions:
        params["conditions"] = [_write_condition(condition) for condition in commit.conditions]
    if commit.fences:
        params["fences"] = [
            {"key": fence.key, "holder": fence.holder, "fence": fence.fence}
            for fence in commit.fences
        ]
    if commit.based_on:
        params["based_on"] = commit.based_on
    if commit.note:
        params["note"] = commit.note
    if commit.known is not None:
        params["known"] = commit.known
    if commit.retry_since is not None:
        params["retry_since"] = commit.retry_since
    return params


def _write_op(op: Op, encoding: Encoding) -> dict[str, Any]:
    match op:
        case Put():
            return _with_value("put", "key", op.key, op, encoding)
        case Append():
            return _with_value("append", "prefix", op.prefix, op, encoding)
        case Delete():
            return {"kind": "delete", "key": op.key}
        case DeletePrefix():
            return {"kind": "delete_prefix", "prefix": op.prefix}
        case Increment():
            return {"kind": "increment", "key": op.key, "by": op.by}
        case Grant():
            lease = {"key": op.key, "holder": op.holder, "ttl_ms": op.ttl_ms}
            return (
                {"kind": "grant", **lease, "wait": True} if op.wait else {"kind": "grant", **lease}
            )
        case Renew():
            lease = {"key": op.key, "holder": op.holder, "fence": op.fence}
            return {"kind": "renew", **lease, "ttl_ms": op.ttl_ms}
        case Release() | Expire():
            kind = "release" if isinstance(op, Release) else "expire"
            return {"kind": kind, "key": op.key, "holder": op.holder, "fence": op.fence}
        case PutBack():
            raise LocalProtocolError(reason="a restore is asked for by its own method")


def _with_value(
    kind: str, path_name: str, path: str, op: Put | Append, encoding: Encoding
) -> dict[str, Any]:
    message = {"kind": kind, path_name: path, "value": encoding.value_out(op.value)}
    if op.ttl_ms is not None:
        message["ttl_ms"] = op.ttl_ms
    return message


def _write_condition(condition: core.Condition) -> dict[str, Any]:
    if isinstance(condition, KeyAt):
        return {"kind": "key_at", "key": condition.key, "revision": condition.revision}
    return {
        "kind": "prefix_unchanged",
        "prefix": condition.prefix,
        "since": condition.since,
    }
