"""Which checkpoints are kept, and the pruning of the others.

Invariants
- what is pinned, and what a board branched off at, is never pruned; nor is, with `Policy.named`,
  what people named.
- a checkpoint that is kept can be read, restored and branched as before.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from blackboard.core.checkpoints import NAMED, Checkpoint, Policy, Pruned, checkpoint_key
from blackboard.core.commit import Delete
from blackboard.errors import InvalidRequest
from blackboard.server.boards import Host
from blackboard.server.checkpoints.reader import Past
from blackboard.server.checkpoints.take import Checkpoints
from blackboard.server.system import commit_as_system
from blackboard.types import INTEGER_MAX, OPERATIONS_MAX, Milliseconds, Revision

_DAY_MS: Final = 24 * 3600 * 1000
_NOTE: Final = "pruned"


def check_policy(policy: Policy) -> None:
    """Errors: InvalidRequest for a number that is negative, or larger than any time."""
    for field in ("last", "days", "history_ms"):
        number = getattr(policy, field)
        if number is not None and number < 0:
            raise InvalidRequest(field=field, reason=f"{number} is negative")
        if number is not None and number > INTEGER_MAX:
            raise InvalidRequest(field=field, reason=f"it is more than {INTEGER_MAX}")


def kept_by(policy: Policy, checkpoints: Sequence[Checkpoint], now_ms: Milliseconds) -> set[str]:
    """Names of those of `checkpoints` (the oldest first) that `policy` keeps."""
    kept = {c.name for c in checkpoints if c.pinned or (policy.named and c.kind == NAMED)}
    kept |= {c.name for c in checkpoints[len(checkpoints) - policy.last :]}
    newest_of_day = {c.time_ms // _DAY_MS: c.name for c in checkpoints}
    today = now_ms // _DAY_MS
    kept |= {name for day, name in newest_of_day.items() if day > today - policy.days}
    return kept


class Retention:
    """Prunes boards of a host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._past = Past(host)
        self._checkpoints = Checkpoints(host)

    async def prune(self, board: str, policy: Policy, *, dry_run: bool = False) -> Pruned:
        """Remove what `policy` does not keep; with `dry_run`, only say which checkpoints.

        Errors: InvalidRequest; Unavailable while the archive is behind. Whatever is raised, each
        checkpoint is there or it is not, and doing it again does the rest.
        """
        check_policy(policy)
        head = await self._host.store.open(board)
        await self._past.reach(board, head.revision)
        checkpoints = await self._checkpoints.all(board)
        kept = kept_by(policy, checkpoints, head.time_ms)
        branched = await self._branched_off(board)
        kept |= {c.name for c in checkpoints if c.revision in branched}
        removed = [c.name for c in checkpoints if c.name not in kept]
        left = tuple(c.name for c in checkpoints if c.name in kept)
        if dry_run:
            return Pruned(tuple(removed), left)
        await self._remove(board, removed)
        versions = 0
        if policy.history_ms is not None:
            revisions = [c.revision for c in checkpoints if c.name in kept]
            versions = await self._forget_history(board, policy.history_ms, revisions)
        return Pruned(tuple(removed), left, versions)

    async def _remove(self, board: str, names: Sequence[str]) -> None:
        for start in range(0, len(names), OPERATIONS_MAX):
            some = names[start : start + OPERATIONS_MAX]
            ops = [Delete(checkpoint_key(name)) for name in some]
            await commit_as_system(self._host, board, ops, note=_NOTE)
            for name in some:
                await self._past.archive.forget(board, name)

    async def _forget_history(
        self, board: str, history_ms: Milliseconds, keep: Iterable[Revision]
    ) -> int:
        head = await self._host.store.open(board)
        await self._past.reach(board, head.revision)
        below = await self._past.archive.at_time(board, head.time_ms - history_ms)
        return await self._past.archive.prune(board, sorted(keep), below)

    async def _branched_off(self, board: str) -> set[Revision]:
        """Revisions at which other boards began."""
        found = set()
        for name in await self._past.archive.boards():
            mark = await self._past.archive.mark(name)
            if mark is not None and mark.origin is not None and mark.origin.board == board:
                found.add(mark.origin.revision)
        return found
