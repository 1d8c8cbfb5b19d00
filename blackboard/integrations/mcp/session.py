"""What the server keeps for one agent between two calls: its board, claims and what it has read."""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from blackboard import Board
from blackboard.errors import BlackboardError, Fenced, StaleEpoch
from blackboard.integrations.mcp.answers import refused
from blackboard.integrations.mcp.claims import Claims
from blackboard.ops import Append, Delete, HeldFence, KeyAt, Put
from blackboard.types import Entry, Receipt

Op = Put | Append | Delete
SEEN_MAX: Final = 4_096
"""Keys whose last read revision is remembered, for `based_on`: more than a model keeps in mind."""
CALLS_MAX: Final = 32
"""Calls of one agent at a time: most of them would be waits."""
CONFIRM_MS: Final = 600_000
"""How long the preview of a restore can be confirmed: a person decides in that time."""
# New in each process: no confirmation outlives it.
_SECRET: Final = secrets.token_bytes(32)


class AgentSession:
    """One agent with one board. `aclose` gives back its claims."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.claims = Claims(board)
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._calls = 0

    async def check_readable(self, patterns: Iterable[str]) -> None:
        """Errors: AccessDenied for a key that this agent may not read: nothing would ever come.
        Patterns are about what it may read of them."""
        if keys := [pattern for pattern in patterns if "*" not in pattern]:
            await self.board.entries(keys)

    def saw(self, entries: Iterable[Entry]) -> None:
        """The agent has read these."""
        for entry in entries:
            self.saw_at(entry.key, entry.mod_revision)

    def saw_at(self, key: str, revision: int) -> None:
        """The agent knows `key` as of `revision` (0: that it is absent)."""
        self._seen[key] = revision
        self._seen.move_to_end(key)
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    def read_at(self, keys: Sequence[str]) -> Sequence[tuple[str, int]]:
        """Each key with the revision that the agent has read. Errors: ToolFailure."""
        unknown = [key for key in keys if key not in self._seen]
        if unknown:
            what = f"you have not read {', '.join(unknown[:5])} in this session"
            raise refused("not_read", what, f"Call read with {unknown[:5]}, then decide again.")
        return [(key, self._seen[key]) for key in dict.fromkeys(keys)]

    async def change(
        self,
        op: Op,
        *,
        expected: tuple[str, int | None],
        based_on: Sequence[str] = (),
        note: str = "",
    ) -> Receipt:
        """One change, under the fences of all claims. Errors: BlackboardError, ToolFailure."""
        grounds = self.read_at(based_on)
        key, revision = expected
        # The key itself gets one condition, below: two could name different revisions of it.
        conditions = [KeyAt(on, at) for on, at in grounds if on != key]
        if revision is None and key in based_on:
            revision = dict(grounds)[key]
        if revision is not None:
            conditions.append(KeyAt(key, revision))
        fences: Sequence[HeldFence] = self.claims.fences()
        try:
            done = await self.board.commit(
                [op],
                conditions=conditions,
                fences=fences,
                # An absent key is a condition, but no version that `why` could follow.
                based_on=[(on, at) for on, at in grounds if at],
                note=note,
            )
        except Fenced as fenced:
            if fenced.key in self.claims:
                raise await self.claims.lose(
                    fenced.key, "another agent has it, or it ran out"
                ) from fenced
            raise
        written = str(done.results[0]) if isinstance(op, Append) else key
        self.saw_at(written, 0 if isinstance(op, Delete) else done.revision)
        return done

    async def move(self, board: Board, leave: Callable[[], Awaitable[None]]) -> None:
        """Go on with another connection; `leave` closes the old one. The claims there end, and the
        next change says so."""
        old = self.claims
        self.board, self.claims = board, Claims(board, ended=old.keys())
        # First: over a connection that is gone, each release would wait for an answer.
        await leave()
        await old.aclose()

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """One call of whatever tool. Errors: ToolFailure when too many run.

        After a restore it is refused once, and the next one is made in the new epoch: the agent has
        been told by then.
        """
        if self._calls >= CALLS_MAX:
            what = f"{CALLS_MAX} calls of yours are running, which is the most"
            raise refused("too_many_calls", what, "Wait for some of them, then call again.")
        self._calls += 1
        try:
            yield
        except StaleEpoch:
            with suppress(BlackboardError):  # the next call finds out itself
                await self.board.refresh()
            raise
        finally:
            self._calls -= 1

    async def aclose(self) -> None:
        """Release every claim."""
        await self.claims.aclose()

    # --- the confirmation of a restore ----------------------------------------------------------

    def seal(self, revision: int, epoch: str) -> str:
        """A token that says: this agent has seen what a restore to `revision` changes.

        It ends with the epoch in which that was looked at, so it confirms one restore.
        """
        until_s = int(time.time()) + CONFIRM_MS // 1000
        return f"{revision}.{until_s}.{self._mac(revision, epoch, str(until_s))}"

    def is_sealed(self, token: str, revision: int, epoch: str) -> bool:
        """Whether `token` is one of `seal`, for that revision and epoch, and not too old."""
        match token.split("."):
            case [sealed, until, mac] if sealed == str(revision):
                good = self._mac(revision, epoch, until).encode()
                # Only a time that was sealed is read as a number: it may be any text.
                return hmac.compare_digest(mac.encode(), good) and int(until) >= time.time()
        return False

    def _mac(self, revision: int, epoch: str, until: str) -> str:
        said = f"{self.board.name}\n{self.board.agent}\n{revision}\n{epoch}\n{until}".encode()
        return hmac.new(_SECRET, said, hashlib.sha256).hexdigest()[:32]
