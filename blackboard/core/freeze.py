"""A frozen board: who froze it, why, and which commits it still accepts.

The entry at FROZEN_KEY says that the board is frozen. Only the service writes there, for admins.
Both engines read it while they decide a commit, so a commit that was already in flight is refused
as well.

Invariants
- A frozen board accepts restores, the service's own commits (the thaw is one), and commits that
  only renew or release leases. It refuses all others.
- The entry lies in the namespace `system`, which restores do not change, and which branches,
  exports and imports leave out.
"""

from typing import Any, Final

import msgpack
from msgspec import Struct
from msgspec.structs import astuple

from blackboard.core.commit import SERVICE, Commit, Entry, Release, Renew
from blackboard.core.path import SYSTEM
from blackboard.errors import BoardFrozen
from blackboard.units import Key, Milliseconds, Revision

FROZEN_KEY: Final[Key] = f"{SYSTEM}/frozen"
"""Present while the board is frozen, with `by` and `note`. Agents may read it."""


class Freeze(Struct, frozen=True, gc=False):
    """A freeze of a board: by whom, why, since when (the engine's clock), as which revision."""

    by: str
    note: str
    since_ms: Milliseconds
    revision: Revision


def freeze_in(value: bytes, since_ms: Milliseconds, revision: Revision) -> Freeze:
    """The freeze that `value` at FROZEN_KEY describes, put at `revision`."""
    told: Any = msgpack.unpackb(value)
    return Freeze(told["by"], told["note"], since_ms, revision)


def refusal(value: bytes, since_ms: Milliseconds, revision: Revision) -> BoardFrozen:
    """The error for a commit while `value`, put at `revision`, is at FROZEN_KEY."""
    return BoardFrozen(*astuple(freeze_in(value, since_ms, revision)))


def check(found: Entry | None, commit: Commit) -> None:
    """Errors: BoardFrozen, when `found` (the entry at FROZEN_KEY) keeps `commit` out."""
    if found is not None and not _passes(commit):
        raise refusal(found.value, found.time_ms, found.mod_revision)


def _passes(commit: Commit) -> bool:
    """Whether a frozen board accepts `commit`. Twin: `check_frozen` of commit.lua."""
    return (
        commit.begins is not None
        or commit.id.agent == SERVICE
        or all(isinstance(op, Renew | Release) for op in commit.ops)
    )
