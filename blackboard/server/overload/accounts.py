"""Shares of one account in a service: watches of a process, and boards that it began.

Who began a board is recorded on a board of the service's own, before the board begins. So it counts
in every process and after a restart, until the board is removed. Boards from before that was
recorded, and those that the operator of the service began, count to nobody. What it costs to begin
a board depends on the boards of its account, and not on those of all.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from blackboard.core.access import BOARDS_BOARD
from blackboard.core.commit import (
    ABSENT,
    Commit,
    Committed,
    Delete,
    Entry,
    KeyAt,
    Op,
    Put,
)
from blackboard.engines.base import Store, pages_of
from blackboard.errors import Conflict, LimitExceeded, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.server.commit_queue import system_id
from blackboard.units import Key, Milliseconds
from blackboard.wire.codec import decode_value, encode_value, prepare

_BEGUN: Final = "system/begun"
"""Below it, the account that began each board."""
_OF: Final = "system/boards_of"
"""Below it, by account, the boards that each one began."""
_TURNS: Final = "system/turns"
_TRIES: Final = 16
_STALE_MAX: Final = 64
"""Records that are removed at once."""


class WatchShares:
    """Counts the watches of one process, by account."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits.watch
        self._open: Counter[str] = Counter()
        self._all = 0

    @contextmanager
    def one(self, account: str) -> Iterator[None]:
        """Count a watch while it lasts; those of the service itself are not counted.

        Errors: LimitExceeded above WATCHES_MAX, or above WATCHES_PER_ACCOUNT_MAX of the account.
        """
        if account.startswith("~"):
            yield
            return
        self._check(account)
        self._open[account] += 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._open[account] -= 1
            if not self._open[account]:
                del self._open[account]

    def _check(self, account: str) -> None:
        count, share = self._open[account] + 1, self._limits.watches_per_account_max
        if count > share:
            raise LimitExceeded("WATCHES_PER_ACCOUNT_MAX", count, share, account=account)
        if self._all >= self._limits.watches_max:
            raise LimitExceeded("WATCHES_MAX", self._all + 1, self._limits.watches_max)


class BegunBoards:
    """Records who began which board."""

    def __init__(self, store: Store, limits: Limits = DEFAULT) -> None:
        self._store = store
        self._count_max = limits.boards.boards_per_account_max
        self._request_ms = limits.connection.request_timeout_ms

    async def note(self, account: str, board: str) -> None:
        """Record that `account` begins `board`, which does not exist.

        Errors: LimitExceeded when it would be more than BOARDS_PER_ACCOUNT_MAX of its own;
        Unavailable. Cancellation: it is recorded, or it is not; that harms nothing.
        """
        for _ in range(_TRIES):
            head = await self._store.open(BOARDS_BOARD)
            turn = f"{_TURNS}/{account}"
            # Before the records: what changes them after this makes the commit below fail.
            found = (await self._store.read(BOARDS_BOARD, [turn])).entries
            since_ms = head.time_ms - self._request_ms
            others, stale = await self._others(account, board, since_ms)
            count = 1 + len(others)
            if count > self._count_max:
                limit = "BOARDS_PER_ACCOUNT_MAX"
                raise LimitExceeded(limit, count, self._count_max, board, account)
            at = found[0].mod_revision if found else ABSENT
            ops: list[Op] = [
                Put(f"{_BEGUN}/{board}", encode_value(account)),
                Put(f"{_OF}/{account}/{board}", encode_value(None)),
                # Every board of the account writes it: of two that begin at once, one counts again.
                Put(turn, encode_value(count)),
                *(Delete(key) for key in stale[:_STALE_MAX]),
            ]
            if await self._commit(head.epoch.id, ops, (KeyAt(turn, at),)):
                return
        raise Unavailable(what=f"board {board}", reason="many boards of this account begin at once")

    async def forget(self, board: str) -> None:
        """Forget who began a board that was removed. Errors: Unavailable."""
        if not await self._store.exists(BOARDS_BOARD):
            return
        head = await self._store.open(BOARDS_BOARD)
        key = f"{_BEGUN}/{board}"
        found = (await self._store.read(BOARDS_BOARD, [key])).entries
        owners = [Delete(f"{_OF}/{decode_value(entry.value)}/{board}") for entry in found]
        await self._commit(head.epoch.id, [Delete(key), *owners], ())

    async def _others(
        self, account: str, board: str, since_ms: Milliseconds
    ) -> tuple[list[Key], list[Key]]:
        """The records of the boards but `board` that the account began: of those that exist, or
        began since then; and of others, which never came to exist."""
        found: list[Entry] = []
        async for page in pages_of(self._store, BOARDS_BOARD, f"{_OF}/{account}"):
            found += [entry for entry in page.entries if _name(entry) != board]
        # Whether each of its boards exists is asked only at the limit.
        if len(found) < self._count_max:
            return [entry.key for entry in found], []
        others: list[Key] = []
        stale: list[Key] = []
        for entry in found:
            counts = entry.time_ms > since_ms or await self._store.exists(_name(entry))
            (others if counts else stale).append(entry.key)
        return others, stale

    async def _commit(self, epoch: str, ops: Sequence[Op], conditions: Sequence[KeyAt]) -> bool:
        """Whether it was committed; not if another board of the account began meanwhile."""
        commit = Commit(system_id(), epoch, tuple(ops), tuple(conditions))
        (outcome,) = await self._store.commit(BOARDS_BOARD, [prepare(commit)])
        if isinstance(outcome, Conflict):
            return False
        if not isinstance(outcome, Committed):
            raise Unavailable(what="the record of boards", reason=str(outcome))
        return True


def _name(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]
