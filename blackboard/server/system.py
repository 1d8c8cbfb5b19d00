"""What the service itself commits: the records of the namespace `system`.

Invariants
- each commit has an incarnation of its own, so that none of several services, nor of several tasks,
  is ever taken for a retry of another.
- an unknown outcome is resolved by sending the same commit again, at most SYSTEM_TRIES times.
"""

import secrets
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from blackboard.core.commit import Commit, CommitId, Committed, Condition, Op
from blackboard.errors import (
    AttemptTooOld,
    BlackboardError,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
)
from blackboard.server.boards import Host
from blackboard.types import LANES_MAX
from blackboard.wire.codec import SYSTEM_AGENT

SYSTEM_TRIES: Final = 5


def system_id() -> CommitId:
    """A name for one commit of the service, unlike any other."""
    incarnation = secrets.token_hex(8)
    return CommitId(SYSTEM_AGENT, int(incarnation, 16) % LANES_MAX, incarnation, 0)


async def commit_as_system(
    host: Host,
    board: str,
    ops: Sequence[Op],
    conditions: Sequence[Condition] = (),
    note: str = "",
) -> Committed:
    """Commit `ops` in the name of the service, in whichever epoch the board is.

    Errors: a Rejected: nothing changed. Unavailable; OutcomeUnknown: look whether it is there.
    """
    name = system_id()
    head = await host.head(board)
    since = head.revision
    commit = Commit(name, head.epoch.id, tuple(ops), tuple(conditions), note=note, known=since)
    failure: BlackboardError | None = None
    for _ in range(SYSTEM_TRIES):
        outcome = await host.commit(board, commit)
        if isinstance(outcome, Committed):
            return outcome
        failure = outcome
        if isinstance(outcome, StaleEpoch):
            commit = replace(commit, epoch=outcome.current)
        elif isinstance(outcome, OutcomeUnknown) and not outcome.final:
            commit = replace(commit, retry_since=since)
        elif isinstance(outcome, AttemptTooOld):  # told to a first attempt only
            since = outcome.head
            commit = replace(commit, known=since)
        else:
            raise outcome
    raise failure or Unavailable(what=f"board {board}", reason="no answer")
