"""A frozen board: who froze it, why, and what still gets in.

The entry at FROZEN_KEY says that the board is frozen. Only the service writes there, for admins.
Both engines look at it where they decide a commit, so nothing that is under way gets past it.

Invariants
- a frozen board takes restores, the service's own commits (the thaw is one), and commits that only
  renew or release leases; it refuses all others.
- the entry lies in the namespace `system`, which restores leave as it is, and branches, exports and
  imports leave out.
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
"""What stands here while the board is frozen: `by` and `note`. Agents may read it."""


class Freeze(Struct, frozen=True, gc=False):
    """A freeze of a board: by whom, why, since when (the engine's clock), as which revision."""

    by: str
    note: str
    since_ms: Milliseconds
    revision: Revision


def freeze_in(value: bytes, since_ms: Milliseconds, revision: Revision) -> Freeze:
    """The freeze that `value` at FROZEN_KEY tells of, put at `revision`."""
    told: Any = msgpack.unpackb(value)
    return Freeze(told["by"], told["note"], since_ms, revision)


def refusal(value: bytes, since_ms: Milliseconds, revision: Revision) -> BoardFrozen:
    """What a commit is refused with while `value`, put at `revision`, is at FROZEN_KEY."""
    return BoardFrozen(*astuple(freeze_in(value, since_ms, revision)))


def check(found: Entry | None, commit: Commit) -> None:
    """Errors: BoardFrozen, when `found` is at FROZEN_KEY and `commit` has to wait."""
    if found is not None and not _passes(commit):
        raise refusal(found.value, found.time_ms, found.mod_revision)


def _passes(commit: Commit) -> bool:
    """Whether a frozen board takes `commit`. Twin: `check_frozen` of commit.lua."""
    return (
        commit.begins is not None
        or commit.id.agent == SERVICE
        or all(isinstance(op, Renew | Release) for op in commit.ops)
    )
