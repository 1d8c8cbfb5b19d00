"""The client's half of wire/messages.py: requests from the nouns of `core/commit.py`."""

from typing import Any

from blackboard.core.commit import (
    Append,
    Commit,
    Condition,
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
from blackboard.errors import LocalProtocolError
from blackboard.wire.frames import Encoding


def write_commit(board: str, commit: Commit, encoding: Encoding) -> dict[str, Any]:
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


def _write_condition(condition: Condition) -> dict[str, Any]:
    if isinstance(condition, KeyAt):
        return {"kind": "key_at", "key": condition.key, "revision": condition.revision}
    return {
        "kind": "prefix_unchanged",
        "prefix": condition.prefix,
        "since": condition.since,
    }
