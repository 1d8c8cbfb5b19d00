"""Checks that a commit is well formed: the last check before it goes to an engine.

`wire/methods.py` has already validated requests from connections, but not those of programs that
use the embedded engine. Without this check, a malformed key or a float in an increment would stay
in their log for ever.
"""

from blackboard.core import commit as core
from blackboard.core.fields import check_note
from blackboard.core.path import check_holder, check_key, check_prefix
from blackboard.errors import InvalidRequest
from blackboard.limits import (
    INTEGER_MAX,
    LANES_MAX,
    LEASE_TTL_MS_MIN,
    REVISION_MAX,
    TTL_MS_MAX,
)


def check_commit(commit: core.Commit) -> None:
    """Check names, keys, numbers and the note of `commit`; the engine checks counts.

    Errors: InvalidRequest, LimitExceeded; each names the field.
    """
    _check_number("lane", commit.id.lane, 0, LANES_MAX - 1)
    _check_number("step", commit.id.step, 0, INTEGER_MAX)
    for op in commit.ops:
        _check_op(op)
    for condition in commit.conditions:
        _check_condition(condition)
    for fence in commit.fences:
        _check_type("fences", fence, core.HeldFence)
        _check_lease(fence.key, fence.holder)
        _check_number("fence", fence.fence, 1, REVISION_MAX)
    for ground in commit.based_on:
        _check_pair("based_on", ground)
        key, revision = ground
        check_key(key)
        _check_number("based_on", revision, 0, REVISION_MAX)
    check_note(commit.note)


def _check_condition(condition: core.Condition) -> None:
    if isinstance(condition, core.KeyAt):
        check_key(condition.key)
        _check_number("revision", condition.revision, core.PRESENT, REVISION_MAX)
    else:
        _check_type("conditions", condition, core.PrefixUnchanged)
        check_prefix(condition.prefix)
        _check_number("since", condition.since, 0, REVISION_MAX)


def _check_op(op: core.Op) -> None:
    match op:
        case core.Put():
            check_key(op.key)
            _check_value(op.value)
            _check_ttl(op.ttl_ms)
        case core.Append():
            check_prefix(op.prefix)
            _check_value(op.value)
            _check_ttl(op.ttl_ms)
        case core.Delete():
            check_key(op.key)
        case core.DeletePrefix():
            check_prefix(op.prefix)
        case core.Increment():
            check_key(op.key)
            _check_number("by", op.by, -INTEGER_MAX, INTEGER_MAX)
        case core.Grant():
            _check_lease(op.key, op.holder)
            _check_number("ttl_ms", op.ttl_ms, LEASE_TTL_MS_MIN, TTL_MS_MAX)
            _check_flag("wait", op.wait)
        case core.Renew():
            _check_lease(op.key, op.holder)
            _check_number("fence", op.fence, 0, REVISION_MAX)
            _check_number("ttl_ms", op.ttl_ms, LEASE_TTL_MS_MIN, TTL_MS_MAX)
        case core.Release():
            _check_lease(op.key, op.holder)
            _check_number("fence", op.fence, 0, REVISION_MAX)
        case core.Expire():
            _check_lease(op.key, op.holder)
            _check_number("fence", op.fence, 1, REVISION_MAX)
        case _:
            # Typed programs cannot get here. Without this, an untyped one would break the engine
            # for all.
            raise InvalidRequest(field="ops", reason=f"{op!r:.100} is no operation")


def _check_type(field: str, given: object, wanted: type) -> None:
    if not isinstance(given, wanted):
        raise InvalidRequest(field=field, reason=f"{given!r:.100} is no {wanted.__name__}")


def _check_pair(field: str, given: object) -> None:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InvalidRequest(field=field, reason=f"{given!r:.100} is no (key, revision)")


def _check_value(value: bytes) -> None:
    """Exactly `bytes`: a mutable value could change after it was committed."""
    if type(value) is not bytes:
        reason = f"a {type(value).__name__} is no encoded value"
        raise InvalidRequest(field="value", reason=reason)


def _check_ttl(ttl_ms: int | None) -> None:
    if ttl_ms is not None:
        _check_number("ttl_ms", ttl_ms, 1, TTL_MS_MAX)


def _check_lease(key: str, holder: str) -> None:
    check_key(key)
    check_holder(holder)


def _check_flag(field: str, flag: bool) -> None:
    if type(flag) is not bool:
        raise InvalidRequest(field=field, reason=f"{flag!r} is neither true nor false")


def _check_number(field: str, number: int, minimum: int, maximum: int) -> None:
    """Exactly `int`: a bool or a float is encoded as such, and cannot be read back as an
    integer."""
    if type(number) is not int or not minimum <= number <= maximum:
        reason = f"{number!r} is not an integer in {minimum}..{maximum}"
        raise InvalidRequest(field=field, reason=reason)
