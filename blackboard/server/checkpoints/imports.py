"""Imports in progress: pages arrive one by one and become a board, completely or not at all.

The engine gets the pages as they arrive (`Store.seed`). Their digests are compared with those of
the signed manifest before it gets the last one.

Invariants
- an import whose digests are not those of its manifest leaves no board.
- at most IMPORTS_MAX run at a time, each with one page in memory; one whose next page does not come
  within IMPORT_IDLE_MS is given up, or as soon as its principal begins another one of that name.
- an import that ended answers its next requests, for IMPORT_IDLE_MS: why it ended early, or with
  its board.
- a request that is repeated, because its answer was lost, changes nothing.

The origin of a board that did not begin empty: `system/origin`.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from blackboard.core.checkpoints import ORIGIN_KEY, ImportRequest, Point, check_request
from blackboard.core.commit import BRANCH, Entry, Epoch, Head, Seed, name_of
from blackboard.core.path import SYSTEM, check_key, check_name, check_prefix, namespace_of
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import Store
from blackboard.errors import BlackboardError, Corrupt, InvalidRequest, LimitExceeded, Unavailable
from blackboard.integrity.digest_check import Sums
from blackboard.integrity.manifest import Manifest
from blackboard.limits import (
    DEFAULT,
    EPOCH_JUMP,
    INTEGER_MAX,
    REVISION_MAX,
    VALUE_BYTES_MAX,
    Limits,
)
from blackboard.units import Key, Milliseconds, Prefix
from blackboard.wire.codec import SYSTEM_AGENT, encode_value
from blackboard.wire.frames import SEALED, SEALED_BYTES_MAX


def origin_entry(
    origin: Point, *, by: str, note: str, request: str, time_ms: Milliseconds, shares: bool = True
) -> Entry:
    """The entry with a board's origin; `shares` says whether the archive has its earlier
    history."""
    value = {
        "board": origin.board,
        "revision": origin.revision,
        "by": by,
        "note": note,
        "request": request,
        "shares": shares,
    }
    revision = origin.revision
    encoded = encode_value(value)
    return Entry(ORIGIN_KEY, encoded, revision, revision, SYSTEM_AGENT, time_ms)


_END: Final[tuple[Entry, ...]] = ()
Then = Callable[[Head, Sequence[tuple[Prefix, int]]], Awaitable[None]]
"""Called once with the head of the new board, and the counters of its lists."""


class Imports:
    """The imports of one process."""

    def __init__(self, store: Store, limits: Limits = DEFAULT) -> None:
        self._limits = limits.checkpoints
        self._store = store
        self._open: dict[tuple[str, str], _Import] = {}

    async def begin(self, board: str, spec: ImportRequest, by: str) -> None:
        """Begin, after `give_up`. Errors: InvalidRequest when there is a board of that name, or
        another import with that request; LimitExceeded; Corrupt for an invalid manifest."""
        check_request(spec.request)
        if board in await self._store.boards():
            raise InvalidRequest(field="board", reason=f"there is a board {board!r}")
        count = sum(not running.task.done() for running in self._open.values())
        most, idle_s = self._limits.imports_max, self._limits.import_idle_ms / 1000
        if count >= most:
            raise LimitExceeded("IMPORTS_MAX", count + 1, most)
        name = (board, spec.request)
        running = _Import(self._store, board, spec, by, idle_s)
        self._open[name] = running

        def forget() -> None:
            if self._open.get(name) is running:  # and not one that began again
                del self._open[name]

        def forget_later(task: "asyncio.Task[Head]") -> None:
            task.get_loop().call_later(idle_s, forget)

        running.task.add_done_callback(forget_later)

    def has_begun(self, board: str, request: str, by: str) -> bool:
        """Whether `by` began this import here, and it did not fail since."""
        running = self._open.get((board, request))
        return running is not None and running.by == by and not running.has_failed

    async def give_up(self, board: str, by: str) -> None:
        """End the imports to `board` that `by` began before: their client was interrupted. When
        this returns, there is a whole board or none."""
        for running in list(self._open.values()):
            if (running.board, running.by) == (board, by) and not running.task.done():
                running.task.cancel()
                await asyncio.wait([running.task])

    async def page(self, board: str, request: str, number: int, entries: Sequence[Entry]) -> None:
        """The next page; the last one again changes nothing. Errors: InvalidRequest for another
        one; why the import ended."""
        await self._find(board, request).put(number, entries)

    async def end(self, board: str, request: str, then: Then) -> Head:
        """Finish after the last page; returns the head of the new board, after `then`, which is
        called once.

        Errors: Corrupt; nothing was imported then.
        """
        return await self._find(board, request).end(then)

    def _find(self, board: str, request: str) -> "_Import":
        found = self._open.get((board, request))
        if found is None:
            raise InvalidRequest(field="request", reason="no such import is in progress here")
        return found

    async def aclose(self) -> None:
        """Give up the imports in progress."""
        for running in list(self._open.values()):
            running.task.cancel()
            await asyncio.wait([running.task])
            # Not cancelled: a board that was made just now still gets its archive.
            for following in (running.giving, running.ending):
                if following is not None:
                    await asyncio.wait([following])


class _Import:
    """One import: a task that seeds the board, and a slot for its next page."""

    def __init__(
        self, store: Store, board: str, spec: ImportRequest, by: str, idle_s: float
    ) -> None:
        self._idle_s = idle_s
        self._store = store
        self.board = board
        self.spec = spec
        self.by = by
        self._manifest = _bounded(Manifest.read_signed(spec.manifest, spec.signature))
        self._pages: asyncio.Queue[Sequence[Entry]] = asyncio.Queue(1)
        self._next = 0
        self.giving: asyncio.Task[None] | None = None
        """Gives the page before `_next`: a caller that goes away does not take it back."""
        self._last: Key = ""
        self._sums = Sums()
        self.task = asyncio.create_task(self._seed(), name=f"import of {board}")
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.ending: asyncio.Task[Head] | None = None

    @property
    def has_failed(self) -> bool:
        task = self.task
        return task.done() and (task.cancelled() or task.exception() is not None)

    async def put(self, number: int, entries: Sequence[Entry]) -> None:
        await self._settled()
        if number == self._next - 1:
            return  # its answer was lost; a page that differs is found by the digests
        if number != self._next or not entries:
            raise InvalidRequest(field="number", reason=f"page {self._next} comes next")
        self._next += 1
        self.giving = asyncio.create_task(
            self._give(tuple(entries)), name=f"page {number} of {self._what}"
        )
        self.giving.add_done_callback(lambda task: task.cancelled() or task.exception())
        await self._settled()

    async def _settled(self) -> None:
        """Wait until the last page that came was given, and those that came meanwhile: no more
        than one waits. Errors: why the import ended."""
        while (giving := self.giving) is not None:
            # A client that goes away, and sends its page again, gets the answer then.
            await asyncio.shield(giving)
            if giving is self.giving:
                return

    async def end(self, then: Then) -> Head:
        if self.ending is None:
            self.ending = asyncio.create_task(self._end(then), name=f"end of {self._what}")
            self.ending.add_done_callback(lambda task: task.cancelled() or task.exception())
        # A client that goes away does not interrupt the end: it asks again, and gets the answer.
        return await asyncio.shield(self.ending)

    async def _end(self, then: Then) -> Head:
        await self._settled()
        await self._give(_END)
        head = await asyncio.shield(self.task)
        await then(head, self.spec.items)
        return head

    async def _give(self, page: Sequence[Entry]) -> None:
        """Hand a page to the task, unless it ends first. Errors: why it ended."""
        giving = asyncio.ensure_future(self._pages.put(page))
        try:
            await asyncio.wait([giving, self.task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # What is done cannot be cancelled any more: then the queue has the page.
            is_given = not giving.cancel()
        if is_given and not self.task.done():
            return
        if self.task.cancelled():
            raise Unavailable(what=self._what, reason="it was given up")
        error = self.task.exception()
        if isinstance(error, BlackboardError):
            raise type(error)(**error.fields())
        if error is not None or not is_given:
            raise Unavailable(what=self._what, reason=repr(error))

    async def _seed(self) -> Head:
        revision = self._manifest.revision
        removed = await self._store.removed(self.board)
        # Above all revisions of a removed board of this name, none of which may count on this one.
        first = revision + 1 if removed is None else max(revision, removed + EPOCH_JUMP) + 1
        number = self._manifest.epoch.number + 1
        epoch = Epoch(number, secrets.token_hex(8), BRANCH, revision, first)
        seed = Seed(epoch, self._manifest.time_ms, tuple(_checked_items(self.spec)))
        return await self._store.seed(self.board, seed, self._checked())

    async def _checked(self) -> AsyncIterator[Sequence[Entry]]:
        """The pages, checked one by one. Errors: Corrupt, InvalidRequest."""
        while page := await self._page():
            for entry in page:
                self._check(entry)
            await self._sums.add_all(page)
            yield page
        # Before the last page, without which the engine makes no board.
        await self._sums.check(self._manifest.digests, self._what)
        manifest, spec = self._manifest, self.spec
        yield (
            origin_entry(
                Point(manifest.board, manifest.revision),
                by=self.by,
                note=spec.note,
                request=spec.request,
                time_ms=manifest.time_ms,
                shares=False,
            ),
        )

    async def _page(self) -> Sequence[Entry]:
        try:
            async with asyncio.timeout(self._idle_s):
                return await self._pages.get()
        except TimeoutError as error:
            raise Unavailable(what=self._what, reason="its next page did not come") from error

    def _check(self, entry: Entry) -> None:
        _check_entry(entry, self._manifest)
        if entry.value.startswith(SEALED) and not isinstance(self._store, SealedStore):
            reason = f"{entry.key} is sealed, and this service has no master key"
            raise InvalidRequest(field="value", reason=reason)
        if entry.key <= self._last:
            raise Corrupt(what=self._what, reason=f"{entry.key} is out of order")
        self._last = entry.key

    @property
    def _what(self) -> str:
        return f"import of {self.board}"


def _bounded(manifest: Manifest) -> Manifest:
    """A manifest of numbers with which a board can go on. Anybody can sign one with a key of their
    own. Errors: Corrupt."""
    last = REVISION_MAX - EPOCH_JUMP
    epoch = manifest.epoch
    for name, value, most in (
        ("revision", manifest.revision, last),
        ("epoch", epoch.number, last),
        ("epoch's revision", epoch.revision, last),
        ("epoch's origin", epoch.from_revision, last),
        ("time_ms", manifest.time_ms, INTEGER_MAX),
    ):
        if not 0 <= value <= most:
            raise Corrupt(what="manifest", reason=f"its {name} is not in 0..{most}")
    return manifest


def _check_entry(entry: Entry, manifest: Manifest) -> None:
    """Errors: InvalidRequest, Corrupt."""
    check_key(entry.key)
    check_name(name_of(entry.author), "author")
    if namespace_of(entry.key) == SYSTEM:
        raise InvalidRequest(field="key", reason=f"{entry.key} is the service's own")
    if not 1 <= entry.create_revision <= entry.mod_revision <= manifest.revision:
        raise InvalidRequest(field="revision", reason=f"{entry.key} is not of that checkpoint")
    times = (entry.time_ms, entry.expires_at_ms or 0, entry.first_ms or 0)
    if not all(0 <= time_ms <= INTEGER_MAX for time_ms in times):
        raise InvalidRequest(field="time_ms", reason=f"of {entry.key} is no time")
    limit = SEALED_BYTES_MAX if entry.value.startswith(SEALED) else VALUE_BYTES_MAX
    if len(entry.value) > limit:
        raise LimitExceeded("VALUE_BYTES_MAX", len(entry.value), VALUE_BYTES_MAX, entry.key)


def _checked_items(spec: ImportRequest) -> Sequence[tuple[str, int]]:
    for prefix, item in spec.items:
        check_prefix(prefix)
        if not 0 <= item <= REVISION_MAX:
            raise InvalidRequest(field="items", reason=f"{item} is no index")
    return spec.items
