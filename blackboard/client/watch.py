"""A watch: an optional state, then every change after it, with a resume token.

The state at a revision is assembled without stopping writers: pages are read one after the other,
each as of its own revision, and the changes since the first page's revision are applied on top. Log
entries hold absolute effects, so that is exactly the state at the revision then reached.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType

from blackboard import telemetry
from blackboard.client.link import Delivery, Stream, Transport, WatchRequest
from blackboard.client.views import ENTRY_COLUMNS, Change, Entry, RevisionEvent, entry_row
from blackboard.core.commit import CommitId, Epoch, LogEntry
from blackboard.core.watch import Position
from blackboard.errors import LocalProtocolError, Resync
from blackboard.limits import LIST_ENTRIES_MAX
from blackboard.tables import table
from blackboard.units import Key, Revision
from blackboard.wire.codec import SYSTEM_AGENT


class Watch:
    """Made by `Board.watch`. Iterate for `RevisionEvent`; keep `position` to resume later.

    A restore comes as one revision that begins an epoch, with exactly what it changed. When that is
    more than RESYNC_BYTES, a watch with a snapshot reads `state` and `revision` again and delivers
    an empty revision that begins the epoch; any other watch ends with Resync.

    Errors while iterating: Compacted, RolledBack, Resync (start again with a snapshot);
    AccessDenied; Unavailable when the service could not be reached. The iteration is over then;
    `position` is still valid.
    """

    def __init__(
        self,
        link: Transport,
        board: str,
        request: WatchRequest,
        *,
        revision: Revision | None,
        snapshot: bool,
        saw: Callable[[Revision, str], None],
    ) -> None:
        self.state: dict[Key, Entry] = {}
        """With `snapshot`: the matching entries as of `revision`, by key."""
        self.revision: Revision = 0
        """The revision that `state` shows."""
        self._link = link
        self._board = board
        self._request = request
        self._after = revision
        self._snapshot = snapshot
        self._saw = saw
        self._position: Position | None = None
        self._pending: deque[LogEntry] = deque()
        self._through: Position | None = None
        """Everything up to here was received: `_position`, when nothing is pending."""
        self._stack = AsyncExitStack()
        self._stream: Stream | None = None
        self._deliveries: AsyncIterator[Delivery] | None = None
        self._is_stale = False
        """A restore changed too much to be delivered, and the state has not been read again yet."""
        self._epoch: Epoch | None = None
        """The epoch of `state`, once it was read again."""
        self.on_progress: Callable[[], None] | None = None
        """Called when `reached` advanced without a revision to deliver."""

    def _repr_html_(self) -> str:
        caption = f"watch of {', '.join(self._request.patterns)} on board {self._board}"
        shown = f"{caption}: everything up to revision {self.reached}"
        return table(shown, ENTRY_COLUMNS, map(entry_row, list(self.state.values())))

    @property
    def position(self) -> str:
        """The resume token after what was iterated so far: pass it as `after` of a new watch."""
        if self._position is None:
            raise LocalProtocolError(reason="the watch is not open yet")
        return str(self._position)

    @property
    def reached(self) -> Revision:
        """Everything up to this revision was delivered, or is not visible."""
        return 0 if self._position is None else self._position.revision

    async def __aenter__(self) -> "Watch":
        with telemetry.asking("watch", self._board, self._link.agent):
            start = await self._start()
            await self._open(start)
        return self

    async def _open(self, start: Position) -> None:
        while True:
            try:
                return await self._open_at(start)
            except Resync:
                if not self._snapshot:
                    raise
            # A restore came while the state was read.
            start = await self._present()

    async def _open_at(self, start: Position) -> None:
        self.state = {}
        self._pending.clear()
        if self._snapshot and self._request.coalesce:
            # Apart: several revisions as one do not say which of them changed an entry, and who.
            async with AsyncExitStack() as stack:
                await self._watch(stack, start, coalesce=False)
                await self._take_snapshot()
            assert self._position is not None
            start = self._position
        async with AsyncExitStack() as stack:
            # Before the pages of the snapshot are read, so that no change falls between the two.
            await self._watch(stack, start, coalesce=self._request.coalesce)
            if self._snapshot and not self._request.coalesce:
                await self._take_snapshot()
            self._stack = stack.pop_all()

    async def _watch(self, stack: AsyncExitStack, start: Position, *, coalesce: bool) -> None:
        """Watch from `start` on, until `stack` ends that."""
        self._deliveries = None
        request = replace(self._request, after=start, coalesce=coalesce)
        self._stream = await stack.enter_async_context(self._link.watch(self._board, request))
        self._position = self._through = start

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream = self._deliveries = None
        await self._stack.aclose()

    def __aiter__(self) -> AsyncIterator[RevisionEvent]:
        return self

    async def __anext__(self) -> RevisionEvent:
        """The next visible revision. Cancellation loses nothing: call it again."""
        while not self._pending:
            await self._receive()
        return self._advance()

    def take_received(self) -> list[RevisionEvent]:
        """Revisions that were received and not returned yet, without waiting."""
        return [self._advance() for _ in range(len(self._pending))]

    async def request_progress(self) -> None:
        """Ask for the board's position; during iteration, `on_progress` is called with the
        answer."""
        await self._opened().request_progress()

    async def wait_for(self, revision: Revision) -> list[RevisionEvent]:
        """Wait for everything up to `revision`, which must exist.

        Returns the visible revisions on the way, and maybe more; they do not come through the
        iteration again. Cancellation loses nothing.
        """
        await self._receive_through(revision)
        return [self._advance() for _ in range(len(self._pending))]

    def _opened(self) -> Stream:
        if self._stream is None:
            raise LocalProtocolError(reason="a watch is used inside its `async with` block only")
        return self._stream

    async def _receive_through(self, revision: Revision) -> None:
        if self._is_stale:
            await self._start_over()
        # A quiet board would never say how far it is.
        await self._opened().request_progress()
        assert self._through is not None
        while self._through.revision < revision:
            await self._receive()

    async def _receive(self) -> None:
        """Take one delivery, or begin again with the state after a Resync."""
        self._opened()
        if not self._is_stale:
            try:
                self._accept(await self._next())
            except Resync:
                if not self._snapshot:
                    raise
                self._is_stale = True
        if self._is_stale:
            await self._start_over()

    def _next(self) -> Awaitable[Delivery]:
        """The next delivery. No coroutine: each one on the way costs time in every delivery."""
        if self._deliveries is None:
            self._deliveries = aiter(self._opened())
        return anext(self._deliveries)

    def _accept(self, delivery: Delivery) -> None:
        self._pending.extend(delivery.revisions)
        self._through = delivery.position
        if not self._pending:
            self._position = self._through
            if self.on_progress is not None:
                self.on_progress()

    async def _start_over(self) -> None:
        """Read the state again, and queue an empty revision that says so. Until that is done, each
        call begins here: an attempt may fail, or be cancelled."""
        delivered = self._position
        await self._stack.aclose()
        try:
            await self._open(await self._present())
        except BaseException:
            # Nothing of the new state was delivered. What is pending leads on from that state.
            self._position = self._through = delivered
            self._pending.clear()
            raise
        self._is_stale = False
        mark = CommitId(SYSTEM_AGENT, 0, "", 0)
        self._pending.append(LogEntry(self.revision, 0, mark, (), b"", epoch=self._epoch))

    async def _present(self) -> Position:
        head = await self._link.head(self._board)
        self._epoch = head.epoch
        return Position(head.epoch.id, head.revision)

    def _advance(self) -> RevisionEvent:
        """Deliver one revision; after the last one the position is that of its delivery."""
        assert self._position is not None
        entry = self._pending.popleft()
        epoch = entry.epoch.id if entry.epoch else self._position.epoch
        self._position = Position.of(entry, epoch)
        # Counts as read: no commit may go on from it in an epoch that lost it.
        self._saw(entry.revision, epoch)
        revised = RevisionEvent.of(entry, str(self._position))
        if telemetry.is_on():
            at = (entry.revision, epoch)
            telemetry.delivered(self._board, self._link.agent, at, entry.note)
        if not self._pending:
            self._position = self._through
        return revised

    async def _start(self) -> Position:
        if self._request.after is not None:
            return self._request.after
        present = await self._present()
        return present if self._after is None else Position(present.epoch, self._after)

    async def _take_snapshot(self) -> None:
        """Read the pages, then apply what was committed while they were read."""
        newest = await self._read_pages()
        # A quiet board would never say how far it is.
        await self._opened().request_progress()
        assert self._through is not None
        while self._through.revision < newest:
            self._accept(await self._next())
        while self._pending:
            revised = self._advance()
            self._apply(revised)
            self._epoch = revised.epoch or self._epoch
        assert self._position is not None
        self.revision = self._position.revision

    async def _read_pages(self) -> Revision:
        newest: Revision = 0
        for pattern in self._request.patterns:
            after: Key | None = None
            while True:
                page = await self._link.list(
                    self._board, pattern, after=after, limit=LIST_ENTRIES_MAX
                )
                self.state.update((entry.key, Entry.of(entry)) for entry in page.entries)
                newest, after = max(newest, page.revision), page.next_key
                if after is None:
                    break
        return newest

    def _apply(self, revised: RevisionEvent) -> None:
        """Changes that a page already contains are applied once more, with the same result, because
        every change up to the newest page is delivered in order."""
        for change in revised.changes:
            if change.kind == "delete":
                self.state.pop(change.key, None)
            elif change.kind == "put":
                self._apply_put(change, revised)

    def _apply_put(self, change: Change, revised: RevisionEvent) -> None:
        old = self.state.get(change.key)
        self.state[change.key] = Entry(
            key=change.key,
            value=change.value,
            mod_revision=revised.revision,
            create_revision=old.create_revision if old else revised.revision,
            author=revised.author,
            time_ms=revised.time_ms,
            expires_at_ms=change.expires_at_ms,
            account=revised.account,
            created_ms=old.created_ms if old else revised.time_ms,
        )
