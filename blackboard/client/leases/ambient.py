"""Which leases the running task holds: their fences travel by themselves.

Whoever works inside `async with board.lock(...)` need not name a fence: every commit on that board,
by any Board object of the task and of tasks started inside the block, relies on them.

Invariants
- a task that was started inside a block keeps relying on its leases, even when it outlives the
  block: such a commit is Fenced, never carried out unprotected. (To start one that shall not,
  give it an empty context: `asyncio.create_task(work, context=contextvars.Context())`.)
- a fence of a lease outside `public` goes with commits of its own agent only: no other may read it.
- a board is known by its name and by the service that has it: two services may have a `main` each.
"""

import secrets
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from blackboard.client.link import Link
from blackboard.core.commit import HeldFence
from blackboard.core.lease import holder_prefix
from blackboard.core.path import namespace_of
from blackboard.errors import LimitExceeded, LocalProtocolError
from blackboard.types import FENCES_MAX, Key, Revision

_UNIQUE_BYTES = 8
_holds: ContextVar[tuple["Hold", ...]] = ContextVar("blackboard_holds", default=())


@dataclass(eq=False, slots=True)
class Hold:
    """Leases of one board that a block of one agent holds together.

    `committed` is the last revision that relied on them; `ended` is set after the block.
    """

    origin: object
    board: str
    agent: str
    fences: tuple[HeldFence, ...]
    committed: Revision = 0
    ended: bool = False


def new_holder(agent: str) -> str:
    """A name for one acquisition by `agent`, unlike any other: `<agent>~<16 hex digits>`.

    It belongs to no process: a process that comes back after a pause is not taken for a later one.
    """
    return f"{holder_prefix(agent)}~{secrets.token_hex(_UNIQUE_BYTES)}"


def take(hold: Hold) -> None:
    """From here on, commits of the running task rely on `hold`."""
    _holds.set((*_holds.get(), hold))


def let_go(hold: Hold) -> None:
    """Commits of the running task no longer rely on `hold`; those of tasks it started still do."""
    hold.ended = True
    _holds.set(tuple(other for other in _holds.get() if other is not hold))


def fences_of(link: Link, board: str, explicit: Sequence[HeldFence] = ()) -> tuple[HeldFence, ...]:
    """`explicit`, then the fences that the running task holds for commits of `link` on `board`."""
    holds = _held_on(link, board)
    if not holds and not explicit:
        return ()
    fences = dict.fromkeys(explicit)
    for hold in holds:
        own = hold.agent == link.agent
        fences.update((f, None) for f in hold.fences if own or namespace_of(f.key) == "public")
    return tuple(fences)


def note_commit(link: Link, board: str, revision: Revision) -> None:
    """Note that a commit with the fences of the running task took effect as `revision`."""
    for hold in _held_on(link, board):
        if hold.agent == link.agent:
            hold.committed = max(hold.committed, revision)


def check_free(link: Link, board: str, keys: Iterable[Key]) -> None:
    """Whether the running task may ask for `keys`.

    Errors: LocalProtocolError when it holds one of them: it would wait for itself. LimitExceeded
    when a commit could not carry all its fences.
    """
    asked = set(keys)
    mine = {f.key for hold in _held_on(link, board) if not hold.ended for f in hold.fences}
    for key in sorted(asked & mine):
        raise LocalProtocolError(reason=f"this task holds {key} already; locks are not re-entrant")
    if len(asked | mine) > FENCES_MAX:
        raise LimitExceeded("FENCES_MAX", len(asked | mine), FENCES_MAX, "keys")


def _held_on(link: Link, board: str) -> list[Hold]:
    holds = _holds.get()
    return [h for h in holds if h.board == board and h.origin == link.origin] if holds else []
