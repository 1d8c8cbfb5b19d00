"""Who may do what: principals, grants, and one table of methods.

Rules
- Nothing is allowed that no grant names; there are no deny rules, so grants only add up.
- What is checked is what is executed: keys have one spelling, and every operation, condition and
  read of a commit is checked by itself.
- A refusal names the right and the key as the caller gave it, and never says whether it exists.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from blackboard.core import commit as core
from blackboard.core.path import check_name, parse_pattern
from blackboard.errors import AccessDenied, InvalidRequest, LimitExceeded
from blackboard.types import PATTERNS_MAX, Key, Milliseconds, Prefix


class Right(StrEnum):
    """What a grant can allow on the keys that its pattern matches."""

    READ = "read"
    WRITE = "write"
    APPEND = "append"
    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Grant:
    """`rights` on every key that `pattern` matches."""

    pattern: str
    rights: frozenset[Right]


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody with a name and grants, on the boards named (empty = all), until `expires_at_ms`.

    `acts_for_any` lets an operator open a session as an agent; the session then has the default
    grants of that agent, not the operator's.
    """

    name: str
    grants: tuple[Grant, ...]
    boards: frozenset[str] = frozenset()
    expires_at_ms: Milliseconds | None = None
    acts_for_any: bool = False


ALL_RIGHTS = frozenset(Right)


def operator(name: str = "operator") -> Principal:
    """The principal of whoever runs the service: every right on every key of every board."""
    return Principal(name, (Grant("**", ALL_RIGHTS),), acts_for_any=True)


def agent(name: str) -> Principal:
    """The default principal of an agent.

    All of its private namespace and its inbox; read, write, append and lock on public; append to
    the inboxes of others.
    """
    check_agent_name(name)
    shared = frozenset({Right.READ, Right.WRITE, Right.APPEND, Right.LOCK})
    return Principal(
        name,
        (
            Grant("public/**", shared),
            Grant(f"private/{name}/**", shared),
            Grant(f"inbox/{name}/**", shared),
            Grant("inbox/*/**", frozenset({Right.APPEND})),
        ),
    )


def check_agent_name(name: str) -> str:
    """Return `name` if an agent may have it: a segment that does not begin with `~`."""
    if check_name(name, "agent").startswith("~"):
        raise InvalidRequest(field="agent", reason=f"{name!r}: names with ~ are the service's own")
    return name


def check_grants(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """Return the grants if each pattern is valid. Errors: InvalidRequest, LimitExceeded."""
    found = tuple(grants)
    if len(found) > PATTERNS_MAX:
        raise LimitExceeded("PATTERNS_MAX", len(found), PATTERNS_MAX, "grants")
    for grant in found:
        parse_pattern(grant.pattern)
    return found


def acting_as(principal: Principal, name: str | None) -> Principal:
    """The principal for a session of `principal` as agent `name` (None = itself).

    Errors: AccessDenied when `principal` is somebody else and may not act for others.
    """
    if name is None or name == principal.name:
        return principal
    if not principal.acts_for_any:
        raise AccessDenied(principal.name, "act as", name)
    limits = {"boards": principal.boards, "expires_at_ms": principal.expires_at_ms}
    return replace(agent(name), **limits)  # type: ignore[arg-type]


# --- may they? ------------------------------------------------------------------------------------


@lru_cache(maxsize=65_536)
def allows(grants: tuple[Grant, ...], right: Right, key: Key) -> bool:
    """Whether one of the grants has `right` on `key`."""
    return any(right in g.rights and parse_pattern(g.pattern).matches(key) for g in grants)


@lru_cache(maxsize=4_096)
def allows_below(grants: tuple[Grant, ...], right: Right, prefix: Prefix) -> bool:
    """Whether one of the grants has `right` on every key below `prefix`.

    A pattern covers a whole subtree only if it ends in `**`, and it does so exactly if it matches
    a child that no literal segment can name ("\\0" is in no key).
    """
    child = prefix + "/\0"
    return any(
        right in g.rights and g.pattern.endswith("**") and parse_pattern(g.pattern).matches(child)
        for g in grants
    )


def require(principal: Principal, right: Right, key: Key) -> None:
    """Errors: AccessDenied unless `principal` has `right` on `key`."""
    if not allows(principal.grants, right, key):
        raise AccessDenied(principal.name, right.value, key)


def require_below(principal: Principal, right: Right, prefix: Prefix) -> None:
    """Errors: AccessDenied unless `principal` has `right` on everything below `prefix`."""
    if not allows_below(principal.grants, right, prefix):
        raise AccessDenied(principal.name, right.value, prefix + "/**")


def require_board(principal: Principal, board: str) -> None:
    """Errors: InvalidRequest if `board` is no name; AccessDenied if it is not the principal's."""
    check_name(board, "board")
    if principal.boards and board not in principal.boards:
        raise AccessDenied(principal.name, "use", board)


def require_commit(principal: Principal, commit: core.Commit) -> None:
    """Check every operation, condition, fence and ground of `commit` by itself."""
    if commit.id.agent != principal.name:
        raise AccessDenied(principal.name, "commit as", commit.id.agent)
    for op in commit.ops:
        _require_op(principal, op)
    for condition in commit.conditions:
        if isinstance(condition, core.KeyAt):
            require(principal, Right.READ, condition.key)
        else:
            require_below(principal, Right.READ, condition.prefix)
    for fence in commit.fences:
        require(principal, Right.READ, fence.key)
    for key, _ in commit.based_on:
        require(principal, Right.READ, key)


def _require_op(principal: Principal, op: core.Op) -> None:
    match op:
        case core.Put() | core.Delete() | core.Increment():
            require(principal, Right.WRITE, op.key)
        case core.DeletePrefix():
            require_below(principal, Right.WRITE, op.prefix)
        case core.Append():
            require_below(principal, Right.APPEND, op.prefix)
        case core.PutBack():
            raise AccessDenied(principal.name, "put back", op.key)
        case core.Grant() | core.Renew() | core.Release() | core.Expire():
            require(principal, Right.LOCK, op.key)


def readable(principal: Principal) -> Callable[[Key], bool]:
    """A filter: whether `principal` may read a key. It is applied to everything that is shown."""
    grants = principal.grants
    return lambda key: allows(grants, Right.READ, key)


# --- the table ------------------------------------------------------------------------------------


class Checked(StrEnum):
    """How the rights of a method are checked."""

    EACH_KEY = "every key named must be readable"
    EACH_PART = "every operation, condition, fence and ground of the commit"
    FILTERED = "only what is readable is shown"
    BOARD = "the board must be the principal's"
    ADMIN = "the admin right on the whole board"
    NOTHING = "says nothing about any board"


METHODS: dict[str, Checked] = {
    "head": Checked.BOARD,
    "commit": Checked.EACH_PART,
    "read": Checked.EACH_KEY,
    "list": Checked.FILTERED,
    "leases": Checked.FILTERED,
    "log": Checked.FILTERED,
    "watch": Checked.FILTERED,
    "why": Checked.FILTERED,
    "boards": Checked.FILTERED,
    "whoami": Checked.NOTHING,
}
"""Every method that the service offers. tests/unit/service/test_access.py fails on one that is not
here, and tries each as a principal without rights."""
