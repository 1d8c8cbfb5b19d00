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

from blackboard.core.path import SYSTEM
from blackboard.errors import BoardFrozen
from blackboard.units import Key, Milliseconds, Revision

FROZEN_KEY: Final[Key] = f"{SYSTEM}/frozen"
"""Present while the board is frozen, with `by` and `note`. Agents may read it."""
LAST_FREEZE_KEY: Final[Key] = f"{SYSTEM}/last_freeze"
"""Changed together with FROZEN_KEY when a board is frozen, and not when it is thawed: it says when
the last freeze began, so that a request to freeze or thaw from before is recognised."""


class Freeze(Struct, frozen=True, gc=False):
    """A freeze of a board: by whom, why, since when (the engine's clock), as which revision."""

    by: str
    note: str
    since_ms: Milliseconds
    revision: Revision


def freeze_in(value: bytes, since_ms: Milliseconds, revision: Revision) -> Freeze:
    """The freeze that `value` at FROZEN_KEY describes, put at `revision`."""
    record: Any = msgpack.unpackb(value)
    return Freeze(record["by"], record["note"], since_ms, revision)


def refusal(value: bytes, since_ms: Milliseconds, revision: Revision) -> BoardFrozen:
    """The error for a commit while `value`, put at `revision`, is at FROZEN_KEY."""
    return BoardFrozen(*astuple(freeze_in(value, since_ms, revision)))
