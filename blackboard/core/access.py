"""Access control: principals, grants, and one table of methods.

Rules
- Only what a grant names is allowed. There are no deny rules, so grants only add up.
- The text that is checked is the text that is executed: a key has one spelling, and every
  operation, condition and read of a commit is checked separately.
- A refusal names the right and the key as the caller gave it, and never says whether it exists.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from blackboard.core import commit as core
from blackboard.core.freeze import FROZEN_KEY
from blackboard.core.lease import is_holder_of, is_owned_by
from blackboard.core.path import (
    SYSTEM,
    Pattern,
    Ranges,
    barrier_key,
    check_name,
    cut_key,
    document_of,
    document_prefix,
    expression_of,
    identity_key,
    is_decision,
    joined_ranges,
    namespace_of,
    parse_pattern,
    range_of,
    ranges_of,
)
from blackboard.errors import AccessDenied, InvalidRequest, LimitExceeded
from blackboard.limits import PATTERNS_MAX
from blackboard.units import Key, Milliseconds, Prefix

_FILTERS_KEPT: Final = 1_024
"""Cached filters, one per set of grants: a few kilobytes each."""
_ANSWERS_KEPT: Final = 8_192
"""Cached answers of `allows` and of `allows_below`: 250 bytes each, so 2 MiB together."""


class Right(StrEnum):
    """The rights that a grant can give on the keys that its pattern matches."""

    READ = "read"
    WRITE = "write"
    APPEND = "append"
    LOCK = "lock"
    APPROVE = "approve"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    ADMIN = "admin"


class AccessGrant(Struct, frozen=True, gc=False):
    """`rights` on every key that `pattern` matches."""

    pattern: str
    rights: frozenset[Right]


READ_ALL: Final = (AccessGrant("**", frozenset({Right.READ})),)
"""The grants of the service itself for reading."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The token behind a principal: its subject, its time of issue and its ids.

    `ids` has its own id and those of the tokens that it was narrowed from: revoking any of them
    revokes it. `issuer` is the principal for whom a service signed it (no grants, only its name and
    credential); None if it was signed with the secret at hand. Revoking the issuer's token revokes
    it, too.
    """

    subject: str
    ids: tuple[str, ...]
    issued_at_ms: Milliseconds
    issuer: "Principal | None" = None


@dataclass(frozen=True, slots=True)
class Principal:
    """A name with grants, valid on the boards named (empty = all) until `expires_at_ms`.

    `acts_for_any` lets an operator open a session as an agent; the session then has the default
    grants of that agent, not the operator's. `credential` is None for a principal that opened the
    service in this process: there is no token to revoke. `on_account` is set where the service
    itself writes on behalf of an account.
    """

    name: str
    grants: tuple[AccessGrant, ...]
    boards: frozenset[str] = frozenset()
    expires_at_ms: Milliseconds | None = None
    acts_for_any: bool = False
    credential: Credential | None = None
    on_account: str = ""

    @property
    def account(self) -> str:
        """The account it acts on: a narrowed token uses the account of the token it was narrowed
        from."""
        if self.on_account:
            return self.on_account
        # An operator that acts as an agent keeps its own credential. The name does not begin with
        # its subject then, and is the account itself.
        if self.credential is not None and self.name.startswith(self.credential.subject + "."):
            return self.credential.subject
        return self.name


def names_above(name: str, account: str) -> tuple[str, ...]:
    """`name` and every name above it, from that of its account downwards.

    For `alice.kid.x` of the account `alice`: `alice`, `alice.kid`, `alice.kid.x`.
    """
    if not name.startswith(account + "."):
        return (name,)
    parts = name[len(account) + 1 :].split(".")
    below = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return (account, *(f"{account}.{part}" for part in below))


def narrowed_from(principal: Principal) -> str:
    """The account of a principal whose name was narrowed from it; else ""."""
    return "" if principal.account == principal.name else principal.account


ALL_RIGHTS = frozenset(Right)


def operator(name: str = "operator") -> Principal:
    """The principal that runs the service: every right on every key of every board."""
    return Principal(name, (AccessGrant("**", ALL_RIGHTS),), acts_for_any=True)


def agent(name: str) -> Principal:
    """The default principal of an agent.

    It has every right on its private namespace and its inbox; it may read, write, append and lock
    on `public`, and append to the inboxes of others. It may read the list of checkpoints, whether a
    checkpoint waits for it, and whether the board is frozen. It may not approve requests that
    agents make to people.
    """
    check_agent_name(name)
    shared = frozenset({Right.READ, Right.WRITE, Right.APPEND, Right.LOCK})
    return Principal(
        name,
        (
            AccessGrant("public/**", shared),
            AccessGrant(f"private/{name}/**", shared),
            AccessGrant(f"inbox/{name}/**", shared),
            AccessGrant("inbox/*/**", frozenset({Right.APPEND})),
            AccessGrant("system/checkpoints/**", frozenset({Right.READ})),
            AccessGrant("system/origin", frozenset({Right.READ})),
            AccessGrant("system/kept_calls", frozenset({Right.READ})),
            AccessGrant(FROZEN_KEY, frozenset({Right.READ})),
            AccessGrant(barrier_key(name), frozenset({Right.READ})),
            AccessGrant(cut_key(name), frozenset({Right.READ})),
        ),
    )


def check_agent_name(name: str) -> str:
    """Return `name` if an agent may have it: a segment that does not begin with `~`."""
    if check_name(name, "agent").startswith("~"):
        raise InvalidRequest(field="agent", reason=f"{name!r}: names with ~ are the service's own")
    return name


def check_grants(grants: Iterable[AccessGrant]) -> tuple[AccessGrant, ...]:
    """Return the grants if each pattern is valid. Errors: InvalidRequest, LimitExceeded."""
    found = tuple(grants)
    if len(found) > PATTERNS_MAX:
        raise LimitExceeded("PATTERNS_MAX", len(found), PATTERNS_MAX, "grants")
    for grant in found:
        parse_pattern(grant.pattern)
    return found


def parse_grant(text: str) -> AccessGrant:
    """A grant written as `PATTERN=right,right`, or `PATTERN=all`. Errors: InvalidRequest."""
    pattern, equals, names = text.partition("=")
    known = {right.value for right in Right}
    rights = known if names == "all" else set(names.split(","))
    if not equals or not rights <= known:
        reason = f"{text!r} is not PATTERN=RIGHTS, with rights of: {', '.join(Right)}"
        raise InvalidRequest("grant", reason)
    return AccessGrant(pattern, frozenset(map(Right, rights)))


def acting_as(principal: Principal, name: str | None) -> Principal:
    """The principal for a session of `principal` as agent `name` (None = itself).

    Errors: AccessDenied when `name` is another agent and `principal` may not act for others.
    """
    if name is None or name == principal.name:
        return principal
    if not principal.acts_for_any:
        raise AccessDenied(principal.name, "act as", name)
    return replace(
        # Without `acts_for_any`: acting as an agent gives no right to act as others.
        agent(name),
        boards=principal.boards,
        expires_at_ms=principal.expires_at_ms,
        credential=principal.credential,
    )


def same_rights(one: Principal, other: Principal) -> bool:
    """Whether two principals have the same rights."""
    return (one.grants, one.boards, one.acts_for_any) == (
        other.grants,
        other.boards,
        other.acts_for_any,
    )


# --- narrowing ------------------------------------------------------------------------------------


def covers(outer: str, inner: str) -> bool:
    """Whether pattern `outer` certainly matches every key that pattern `inner` matches."""
    wide, narrow = outer.split("/"), inner.split("/")
    for place, segment in enumerate(wide):
        if segment == "**":
            # `**` stands for at least one segment.
            return len(narrow) > place
        if place >= len(narrow) or narrow[place] == "**":
            return False
        if segment not in ("*", narrow[place]):
            return False
    return len(narrow) == len(wide)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The rights of a narrowed token; None = all rights of the original.

    `name` is the name of the sub-agent: the principal's own, or one that begins with it and a dot.
    """

    name: str | None = None
    grants: tuple[AccessGrant, ...] | None = None
    boards: frozenset[str] | None = None
    expires_at_ms: Milliseconds | None = None


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A token for the agent `name`, valid for `ttl_ms`; `grants` None = the default ones of an
    agent, `boards` empty = all that the issuer may use."""

    name: str
    grants: tuple[AccessGrant, ...] | None
    boards: frozenset[str]
    ttl_ms: Milliseconds


def issued(issuer: Principal, request: TokenRequest) -> Principal:
    """The principal of a token that `issuer` has the service sign. It acts for no other agent.

    The issuer is an admin of everything, hence on every board. Errors: InvalidRequest when it would
    have more rights than the issuer.
    """
    wanted = agent(request.name)
    grants = wanted.grants if request.grants is None else request.grants
    return replace(wanted, grants=_narrowed(issuer.grants, grants), boards=request.boards)


def narrowed(principal: Principal, to: Narrowing) -> Principal:
    """`principal` with no more rights than `to`. The result acts for no other agent.

    Errors: InvalidRequest when `to` is wider than the principal in any respect.
    """
    name = principal.name if to.name is None else check_agent_name(to.name)
    if name != principal.name and not name.startswith(principal.name + "."):
        raise InvalidRequest("name", f"a sub-agent of {principal.name} is {principal.name}.<name>")
    boards = principal.boards if to.boards is None else to.boards
    # No boards means all boards, so an empty set is the widest one.
    if principal.boards and not (boards and boards <= principal.boards):
        raise InvalidRequest("boards", "more than the token that is narrowed has")
    ends = [end for end in (principal.expires_at_ms, to.expires_at_ms) if end is not None]
    return replace(
        principal,
        name=name,
        grants=principal.grants if to.grants is None else _narrowed(principal.grants, to.grants),
        boards=boards,
        expires_at_ms=min(ends, default=None),
        acts_for_any=False,
    )


def _narrowed(
    wide: tuple[AccessGrant, ...], narrow: tuple[AccessGrant, ...]
) -> tuple[AccessGrant, ...]:
    for grant in check_grants(narrow):
        for right in grant.rights:
            if not any(right in g.rights and covers(g.pattern, grant.pattern) for g in wide):
                reason = f"{right} on {grant.pattern} is more than the token at hand has"
                raise InvalidRequest("grants", reason)
    return narrow


# --- may they? ------------------------------------------------------------------------------------


@lru_cache(maxsize=_ANSWERS_KEPT)
def allows(grants: tuple[AccessGrant, ...], right: Right, key: Key) -> bool:
    """Whether one of the grants has `right` on `key`."""
    return any(right in g.rights and parse_pattern(g.pattern).matches(key) for g in grants)


@lru_cache(maxsize=_ANSWERS_KEPT)
def allows_below(grants: tuple[AccessGrant, ...], right: Right, prefix: Prefix) -> bool:
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
    """Errors: InvalidRequest if `board` is not a name; AccessDenied if the principal may not use
    it."""
    check_name(board, "board")
    if is_reserved(board) or (principal.boards and board not in principal.boards):
        raise AccessDenied(principal.name, "use", board)


def may_begin(principal: Principal) -> bool:
    """Whether `principal` may change anything on a board that it may use, and so begin one."""
    return any(g.rights - {Right.READ, Right.RESTORE} for g in principal.grants)


ACCESS_BOARD: Final = "~access"
"""Revoked tokens and principals."""
AUDIT_BOARD: Final = "~audit"
BOARDS_BOARD: Final = "~boards"
"""Which account began which board."""
KEYS_BOARD: Final = "~keys"
"""The data keys, encrypted."""
OWN_BOARDS_ARCHIVED: Final = (ACCESS_BOARD, AUDIT_BOARD)
"""Boards of the service that its archive keeps."""
OWN_BOARDS_UNARCHIVED: Final = (BOARDS_BOARD, KEYS_BOARD)
OWN_BOARDS: Final = (*OWN_BOARDS_ARCHIVED, *OWN_BOARDS_UNARCHIVED)


def is_reserved(board: str) -> bool:
    """Whether a board is one of the service's own, which nobody uses through a link."""
    return board.startswith("~")


def is_admin(principal: Principal) -> bool:
    """Whether `principal` has the admin right on everything, on every board."""
    whole = any(Right.ADMIN in g.rights and g.pattern == "**" for g in principal.grants)
    return whole and not principal.boards


def require_admin(principal: Principal) -> None:
    """Errors: AccessDenied unless `is_admin`."""
    if not is_admin(principal):
        raise AccessDenied(principal.name, Right.ADMIN.value, "**")


def is_own_token(principal: Principal, tokens: Iterable[str]) -> bool:
    """Whether `tokens` names nothing but the token in use."""
    own = principal.credential
    # The ids before the last one are those of the tokens that it was narrowed from.
    return own is not None and set(tokens) <= set(own.ids[-1:])


def require_revoke(principal: Principal, tokens: Iterable[str], of: str | None) -> None:
    """Errors: AccessDenied unless `tokens` is the token in use, or `of` is the principal's own
    name, or the principal is an admin.

    Only an un-narrowed token may revoke all tokens of a name: a narrowed token may have the same
    name, and it must not be able to revoke the token it was made from.
    """
    own = principal.credential
    if of is not None and own is not None and len(own.ids) > 1:
        raise AccessDenied(principal.name, "revoke all of", of)
    if not (is_own_token(principal, tokens) and of in (None, principal.name)):
        require_admin(principal)


def require_whole(principal: Principal, right: Right) -> None:
    """Errors: AccessDenied unless `principal` has `right` on everything of a board."""
    if not any(right in g.rights and g.pattern == "**" for g in principal.grants):
        raise AccessDenied(principal.name, right.value, "**")


def require_commit(principal: Principal, commit: core.Commit) -> None:
    """Check every operation, condition, fence and read of `commit` separately."""
    if commit.id.agent != principal.name:
        raise AccessDenied(principal.name, "commit as", commit.id.agent)
    for op in commit.ops:
        _require_op(principal, op)
    # A refused condition tells what a key holds now, and a refused fence who holds the lease: both
    # need the right to read.
    for condition in commit.conditions:
        if isinstance(condition, core.KeyAt):
            require(principal, Right.READ, condition.key)
        else:
            require_below(principal, Right.READ, condition.prefix)
    for fence in commit.fences:
        require(principal, Right.READ, fence.key)
    for key, _ in commit.based_on:
        require(principal, Right.READ, key)


_BELOW: Final = (core.DeletePrefix, core.Append)
"""The operations with a prefix in place of a key; a tuple for the reason of `core.REMOVALS`."""


def _require_op(principal: Principal, op: core.Op) -> None:
    _require_no_document(principal, op)
    path = op.prefix if isinstance(op, _BELOW) else op.key
    if namespace_of(path) == SYSTEM:
        # The service's own records, with one exception: an agent reports its delivery. Only one
        # that may attach is asked for it; a token of its name with fewer rights does not answer.
        if op != core.Delete(barrier_key(principal.name)):
            raise AccessDenied(principal.name, "change", path)
        require(principal, Right.LOCK, identity_key(principal.name))
        return
    if is_decision(path) and not isinstance(op, core.REMOVALS):
        # An agent takes answers away that it has read; it does not give any.
        require_approve(principal, path)
        # The right to approve is enough: people who approve need no right to write.
        if isinstance(op, core.Put):
            return
    match op:
        case core.Put():
            require(principal, Right.WRITE, op.key)
        case core.Delete() | core.Increment():  # they answer what was there
            require(principal, Right.WRITE, op.key)
            require(principal, Right.READ, op.key)
        case core.DeletePrefix():  # it answers which keys were there
            require_below(principal, Right.WRITE, op.prefix)
            require_below(principal, Right.READ, op.prefix)
        case core.Append():
            require_below(principal, Right.APPEND, op.prefix)
        case core.PutBack():
            raise AccessDenied(principal.name, "put back", op.key)
        case core.Grant() | core.Renew() | core.Release():
            require(principal, Right.LOCK, op.key)
            _require_holder(principal, op)
        case core.Expire():  # the engine checks that the lease has expired, so it may be anyone's
            require(principal, Right.LOCK, op.key)


def require_approve(principal: Principal, key: Key) -> None:
    """Errors: AccessDenied unless `principal` may answer at `key`. An admin of the key may."""
    if not allows(principal.grants, Right.ADMIN, key):
        require(principal, Right.APPROVE, key)


def _require_holder(principal: Principal, op: core.Grant | core.Renew | core.Release) -> None:
    """Errors: AccessDenied unless the holder is the principal's own, or it has the admin right.

    A lease that was granted before holders recorded their account is renewed and released by name.
    """
    if is_owned_by(principal.name, principal.account, op.holder):
        return
    if not isinstance(op, core.Grant) and is_holder_of(principal.name, op.holder):
        return
    if not allows(principal.grants, Right.ADMIN, op.key):
        raise AccessDenied(principal.name, "hold as", op.holder)


def _require_no_document(principal: Principal, op: core.Op) -> None:
    """Errors: AccessDenied for a write below a document without the admin right. Only the service
    writes there; all others edit the document, or remove it as a whole."""
    path = op.prefix if isinstance(op, _BELOW) else op.key
    key = document_of(path)
    if key is None or allows_below(principal.grants, Right.ADMIN, document_prefix(key)):
        return
    if not (isinstance(op, core.DeletePrefix) and path == document_prefix(key)):
        raise AccessDenied(principal.name, Right.ADMIN.value, path)


@lru_cache(maxsize=_FILTERS_KEPT)
def readable(grants: tuple[AccessGrant, ...]) -> Callable[[Key], bool]:
    """A filter that says whether a key may be read; every answer passes through it.

    A page of the log has tens of thousands of keys, and each occurs once. A cache would not help,
    so the patterns are compiled to one regular expression.
    """
    patterns = readable_patterns(grants)
    if not patterns:
        return lambda _: False
    matches = re.compile("|".join(expression_of(each.text) for each in patterns)).fullmatch
    return lambda key: matches(key) is not None


def readable_patterns(grants: tuple[AccessGrant, ...]) -> tuple[Pattern, ...]:
    """The patterns that may be read: the filter passes what one of them matches."""
    return tuple(parse_pattern(grant.pattern) for grant in grants if Right.READ in grant.rights)


@dataclass(frozen=True, slots=True)
class Reach:
    """The ranges of keys that a principal may read and that a pattern may match.

    Only `ranges` are scanned for a reader, so neither the end of a page nor its cost depends on
    keys elsewhere. `is_exact`: every key in them may be read. It is False only for a grant with a
    wildcard in the middle, such as `private/*/shared/**`; answers must not reveal the keys in
    between.
    """

    ranges: Ranges
    is_exact: bool
    readable: Callable[[Key], bool]


@lru_cache(maxsize=_ANSWERS_KEPT)
def reach(grants: tuple[AccessGrant, ...], pattern: str) -> Reach:
    """Where a principal with `grants` may find keys that `pattern` matches."""
    whole: list[tuple[str, str]] = []
    mixed: list[tuple[str, str]] = []
    for grant in grants:
        common = _common_path(grant.pattern, pattern) if Right.READ in grant.rights else None
        if common is None:
            continue
        path, is_key = common
        found = range_of(path) if is_key else ranges_of(path)[0]
        covered = is_key or covers(grant.pattern, f"{path}/**" if path else "**")
        (whole if covered else mixed).append(found)
    exact = joined_ranges(whole)
    # A range within one that is readable as a whole needs no filter.
    rest = [each for each in mixed if not _is_within(each, exact)]
    return Reach(joined_ranges([*exact, *rest]), not rest, readable(grants))


def _common_path(one: str, other: str) -> tuple[str, bool] | None:
    """The literal path with which every key begins that both patterns match, and whether it is the
    key itself; None if they have none in common."""
    left, right = one.split("/"), other.split("/")
    path: list[str] = []
    is_literal = True
    for place in range(max(len(left), len(right))):
        a, b = _segment(left, place), _segment(right, place)
        if a is None or b is None or (a not in _WILD and b not in _WILD and a != b):
            return None
        if a in _WILD and b in _WILD:
            # The path ends here, but segments behind it may still show that no key matches both.
            is_literal = False
            if "**" in (a, b):
                break
        elif is_literal:
            path.append(b if a in _WILD else a)
    return "/".join(path), is_literal


_WILD: Final = ("*", "**")


def _segment(pattern: list[str], place: int) -> str | None:
    """The segment of a pattern at `place`, where a final `**` goes on; None after its end."""
    if place < len(pattern):
        return pattern[place]
    return "**" if pattern[-1] == "**" else None


def _is_within(part: tuple[str, str], ranges: Ranges) -> bool:
    return any(first <= part[0] and part[1] <= last for first, last in ranges)


# --- the table ------------------------------------------------------------------------------------


class Checked(StrEnum):
    """How the rights of a method are checked; the table of methods (`wire/methods.py`) says it of
    each."""

    EACH_KEY = "every key named must be readable"
    EACH_PART = "every operation, condition, fence and ground of the commit"
    FILTERED = "only what is readable is shown"
    BOARD = "the board must be the principal's"
    ADMIN = "the admin right on everything, on every board"
    WHOLE_CHECKPOINT = "the checkpoint right on the whole board"
    WHOLE_RESTORE = "the restore right on the whole board"
    WHOLE_ADMIN = "the admin right on the whole board"
    NOTHING = "says nothing about any board"


WHOLE_BOARD: Final = {
    Checked.WHOLE_CHECKPOINT: Right.CHECKPOINT,
    Checked.WHOLE_RESTORE: Right.RESTORE,
    Checked.WHOLE_ADMIN: Right.ADMIN,
}
"""The right on the whole board that some methods need."""
