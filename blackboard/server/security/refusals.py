"""The newest refused commits of a board, for people who look at it.

A conflict, a stale epoch or a lost fence changes nothing, so no log has it. Each process keeps the
last REFUSALS_KEPT of each board that it has open, in memory, as it answered them.

Invariants
- A reader sees a refusal if every key that the commit named may be read, or it was their own
  account's, and their token is not a narrowed one. A commit of more than REFUSAL_KEYS_MAX keys is
  shown to nobody else but operators.
- No value is kept, and of an error only its code, its message, its key and who was in the way.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from blackboard.core.access import Principal
from blackboard.core.checkpoints import RefusedCommit
from blackboard.core.commit import Commit
from blackboard.errors import BlackboardError, Rejected
from blackboard.limits import REFUSAL_KEYS_MAX, REFUSALS_KEPT
from blackboard.units import Key, Milliseconds


@dataclass(frozen=True, slots=True)
class _Refused:
    told: RefusedCommit
    account: str
    keys: tuple[Key, ...] | None


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
        self._kept.append(_Refused(told, commit.account or commit.id.agent, _keys_of(commit)))

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
    # A narrowed token is of the same account, and may read less of it.
    is_whole = reader.credential is None or len(reader.credential.ids) == 1
    if reader.acts_for_any or (is_whole and each.account == reader.account):
        return True
    return each.keys is not None and all(map(readable, each.keys))


def _keys_of(commit: Commit) -> tuple[Key, ...] | None:
    """The keys and prefixes that a commit names; None if they are too many to keep."""
    found = {*_named(commit)}
    return tuple(found) if found and len(found) <= REFUSAL_KEYS_MAX else None


def _named(commit: Commit) -> Iterator[Key]:
    for part in (*commit.ops, *commit.conditions, *commit.fences):
        yield str(getattr(part, "key", "") or getattr(part, "prefix", ""))
    for key, _ in commit.based_on:
        yield key
