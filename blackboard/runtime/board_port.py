"""The port of a board for the runtime.

`LiveBoardPort` uses a real board. `trial.MemoryBoardPort` has given inputs, for tests and replays.

Invariants
- Only this module answers a checkpoint that waits for the agent. Between two commits the runtime
  holds nothing that is not on the board, so there is never anything else to deliver.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from blackboard.client.board import Board
from blackboard.client.comparison import kept_range, was_kept
from blackboard.client.step import StepBoard
from blackboard.client.views import Entry, Listing, Receipt
from blackboard.core.checkpoints import KEPT_CALLS, When
from blackboard.core.commit import RESTORE, Condition, Delete, HeldFence, Op
from blackboard.errors import AccessDenied, SnapshotFirst, StaleEpoch
from blackboard.limits import LIST_ENTRIES_MAX, Limits
from blackboard.units import Key, Revision

if TYPE_CHECKING:
    from blackboard.client.documents.document import Document
    from blackboard.client.workspace.step_files import StepFiles

log = logging.getLogger(__name__)


class BoardPort(StepBoard, Protocol):
    """The board of one agent: what a step needs, and a little more."""

    @property
    def account(self) -> str:
        """The account of the agent: its name, or what that was narrowed from."""

    @property
    def name(self) -> str:
        """The name of the board."""

    @property
    def limits(self) -> Limits:
        """How long this process waits, how often it tries, and how much it keeps."""

    async def entries(self, keys: Sequence[Key]) -> Mapping[Key, Entry]:
        """The entries of `keys`, all as of one revision; absent keys are left out."""

    async def list(
        self, pattern: str, *, after: Key | None = None, limit: int = LIST_ENTRIES_MAX
    ) -> Listing:
        """A page of the entries that match."""

    async def commit(
        self,
        ops: Sequence[Op],
        *,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
        based_on: Sequence[tuple[Key, Revision]] = (),
        note: str = "",
    ) -> Receipt:
        """Carry out `ops` as one revision, or nothing. Errors: as of `Board.commit`."""

    def document(self, key: Key) -> "AbstractAsyncContextManager[Document] | None":
        """The document at `key`, to be opened; None on a board without documents."""

    def files(self, directory: Path) -> "StepFiles | None":
        """The files of the agent in `directory`; None on a board without files."""

    async def renew(self, error: StaleEpoch) -> None:
        """Adopt the present epoch after `error`; or raise it, if that is not enough."""

    async def kept_call(self, key: Key, step: int) -> Sequence[Entry]:
        """The record at journal key `key` in the revisions that a restore abandoned, followed by
        the entries below it, if that restore kept the calls of `step`; else nothing."""


class LiveBoardPort:
    """A port to a real board. Commits are made as `board.agent`, with the fences that the task
    holds."""

    def __init__(self, board: Board) -> None:
        self.board = board

    @property
    def agent(self) -> str:
        """The agent of this port."""
        return self.board.agent

    @property
    def account(self) -> str:
        """The account of the agent."""
        return self.board.account

    @property
    def name(self) -> str:
        """The name of the board."""
        return self.board.name

    @property
    def limits(self) -> Limits:
        """Those of the board's client."""
        return self.board.limits

    async def entry(self, key: Key, *, at: When | None = None) -> Entry | None:
        """The entry at `key`."""
        return await self.board.entry(key, at=at)

    async def entries(self, keys: Sequence[Key], *, at: When | None = None) -> dict[Key, Entry]:
        """The entries of `keys`, all as of one revision; absent keys are left out."""
        return await self.board.entries(keys, at=at)

    def scan(
        self, pattern: str, *, at: When | None = None, keys_only: bool = False
    ) -> AsyncIterator[Entry]:
        """All entries that match."""
        return self.board.scan(pattern, at=at, keys_only=keys_only)

    async def list(
        self, pattern: str, *, after: Key | None = None, limit: int = LIST_ENTRIES_MAX
    ) -> Listing:
        """A page of the entries that match."""
        return await self.board.list(pattern, after=after, limit=limit)

    async def commit(
        self,
        ops: Sequence[Op],
        *,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
        based_on: Sequence[tuple[Key, Revision]] = (),
        note: str = "",
    ) -> Receipt:
        """As `Board.commit`. A checkpoint that waits for this agent is answered by the same commit:
        the agent has no state that is not in the commit."""

        async def commit(*more: Op) -> Receipt:
            together = [*ops, *more]
            return await self.board.commit(
                together, conditions=conditions, fences=fences, based_on=based_on, note=note
            )

        try:
            return await commit()
        except SnapshotFirst as asked:
            receipt = await commit(Delete(asked.key))
            # Without the result of the Delete: callers pair results with their own operations.
            return replace(receipt, results=receipt.results[: len(ops)])

    async def kept_call(self, key: Key, step: int) -> Sequence[Entry]:
        """The record of a call that a restore kept, and the entries below it; see `BoardPort`."""
        try:
            kept = kept_range(await self.board.get(KEPT_CALLS))
        except AccessDenied:  # a token with narrow grants: no calls are kept for it
            return ()
        after, before = (0, 0) if kept is None else (kept[0], kept[1] + 1)
        while before > after:
            page = await self.board.history(key, before=before)
            for version in page:
                entry = version.entry
                if version.revision > after and entry and was_kept(entry.value, step):
                    below = self.board.scan(f"{key}/**", at=version.revision)
                    return (entry, *[part async for part in below])
            before = page[-1].revision if page else 0
        return ()

    def document(self, key: Key) -> "AbstractAsyncContextManager[Document] | None":
        """The document at `key`, to be opened."""
        return self.board.document(key)

    def files(self, directory: Path) -> "StepFiles":
        """The files of the agent in `directory`. Errors: InvalidRequest."""
        from blackboard.client.workspace.directory import WorkspaceDirectory
        from blackboard.client.workspace.step_files import StepFiles

        return StepFiles(WorkspaceDirectory(self, f"private/{self.agent}/workspace", directory))

    async def renew(self, error: StaleEpoch) -> None:
        """Adopt the present epoch."""
        level = logging.DEBUG if error.cause == RESTORE else logging.WARNING
        log.log(level, "%s continues in epoch %d (%s)", self.agent, error.number, error.cause)
        await self.board.refresh()
