"""The newest refused commits of a board, for people who look at it.

A conflict, a stale epoch or a lost fence changes nothing, so no log has it. Each process keeps the
last REFUSALS_KEPT of each board that it has open, in memory, as it answered them.

Invariants
- A reader sees a refusal if every key that the commit named may be read, and everything below
  every prefix. Of their own account's it is enough to have any right to those, unless their token
  is a narrowed one. A commit of more than REFUSAL_KEYS_MAX keys is shown to nobody else but
  operators.
- No value is kept, and of an error only its code, its message, its key and who was in the way.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from blackboard.core.access import Principal, Right, allows, allows_below
from blackboard.core.checkpoints import RefusedCommit
from blackboard.core.commit import Commit
from blackboard.errors import BlackboardError, Rejected
from blackboard.limits import REFUSAL_KEYS_MAX, REFUSALS_KEPT
from blackboard.units import Key, Milliseconds, Prefix


@dataclass(frozen=True, slots=True)
class _Refused:
    told: RefusedCommit
    account: str
    named: "_Named | None"


@dataclass(frozen=True, slots=True)
class _Named:
    """What a commit names. A refusal because of a prefix names a key below it."""

    keys: frozenset[Key]
    prefixes: frozenset[Prefix]


def _now_ms() -> Milliseconds:
    return time.time_ns() // 1_000_000


class Refusals:
    """The newest refused commits of one board."""

    def __init__(self, now_ms: Callable[[], Milliseconds] = _now_ms) -> None:
        self._now_ms = now_ms
        self._kept: deque[_Refused] = deque(maxlen=REFUSALS_KEPT)
        self._count = 0

    def note(self, commit: Commit, error: BlackboardError) -> None:
        """Keep a refusal, if it is one: an outage refuses nothing."""
        if not isinstance(error, Rejected):
            return
        self._count += 1
        named = (getattr(error, field, None) for field in ("by", "holder"))
        told = RefusedCommit(
            self._count,
            self._now_ms(),
            commit.id.agent,
            error.code,
            str(error),
            getattr(error, "key", ""),
            next((name for name in named if name), ""),
            commit.note,
        )
        self._kept.append(_Refused(told, commit.account or commit.id.agent, _named_by(commit)))

    def shown(
        self, reader: Principal, readable: Callable[[Key], bool], after: int
    ) -> Sequence[RefusedCommit]:
        """Those above number `after` that the reader may see, the oldest first."""
        return [
            each.told
            for each in self._kept
            if each.told.number > after and _is_shown(each, reader, readable)
        ]


def _is_shown(each: _Refused, reader: Principal, readable: Callable[[Key], bool]) -> bool:
    if reader.acts_for_any or _is_own(each, reader):
        return True
    return each.named is not None and _may_read(each.named, reader, readable)


def _is_own(each: _Refused, reader: Principal) -> bool:
    # A narrowed token is of the same account, and may read less of it. So may be another token of
    # the same name: whatever a commit passed with, its own token has a right to all that it names.
    is_whole = reader.credential is None or len(reader.credential.ids) == 1
    if not is_whole or each.account != reader.account:
        return False
    named = each.named
    return named is None or (
        all(any(allows(reader.grants, right, key) for right in Right) for key in named.keys)
        and all(
            any(allows_below(reader.grants, right, prefix) for right in Right)
            for prefix in named.prefixes
        )
    )


def _may_read(named: _Named, reader: Principal, readable: Callable[[Key], bool]) -> bool:
    return all(map(readable, named.keys)) and all(
        allows_below(reader.grants, Right.READ, prefix) for prefix in named.prefixes
    )


def _named_by(commit: Commit) -> _Named | None:
    """What a commit names; None if it is too much to keep, or nothing."""
    parts = (*commit.ops, *commit.conditions, *commit.fences)
    prefixes = frozenset(_each(parts, "prefix"))
    keys = frozenset([*_each(parts, "key"), *(key for key, _ in commit.based_on)])
    return _Named(keys, prefixes) if 0 < len(keys) + len(prefixes) <= REFUSAL_KEYS_MAX else None


def _each(parts: Sequence[object], member: str) -> Iterator[str]:
    return (getattr(part, member) for part in parts if hasattr(part, member))
