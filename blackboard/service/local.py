"""The way in: every request of a principal passes here, is checked, and goes to the service.

What may not be read is neither returned nor hinted at: keys are checked before the engine is asked,
and whatever is found by pattern is filtered after it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from msgspec.structs import replace

from blackboard.core import history
from blackboard.core.commit import PRESENT, Commit, Committed, Entry, Head, LogPage, Reading
from blackboard.core.lease import page_of
from blackboard.core.model import Outcome
from blackboard.core.path import Pattern, check_key, parse_pattern, parse_patterns
from blackboard.errors import BlackboardError, Conflict, InvalidRequest, LimitExceeded
from blackboard.service import access, provenance
from blackboard.service.access import Principal, Right
from blackboard.service.feed import View
from blackboard.service.host import Host
from blackboard.service.link import Link, Stream, WatchRequest
from blackboard.service.shapes import check_commit
from blackboard.service.views import Cause, Receipt
from blackboard.types import (
    LIST_ENTRIES_MAX,
    LOG_ENTRIES_MAX,
    PAGE_BYTES_MAX,
    READ_KEYS_MAX,
    Key,
    Revision,
)
from blackboard.wire.codec import decode_value, prepare

_EVERYTHING = (parse_pattern("**"),)
_LIST_PAGES_MAX = 16
"""Pages that one request looks through for matches before it answers with a `next_key`."""


class LocalLink:
    """A `Link` (service/link.py) straight into the service of this process."""

    def __init__(self, host: Host, principal: Principal) -> None:
        self.principal = principal
        self._host = host
        self._readable = access.readable(principal)
        self._opener = None if principal.acts_for_any else principal.name

    @property
    def agent(self) -> str:
        """The name under which this link commits."""
        return self.principal.name

    @property
    def origin(self) -> object:
        """The service of this process."""
        return self._host

    def acting_as(self, agent: str) -> Link:
        """The same way with the rights and name of `agent`. Errors: AccessDenied."""
        return LocalLink(self._host, access.acting_as(self.principal, agent))

    async def head(self, board: str) -> Head:
        """Where `board` stands; it is created if it does not exist."""
        self._check(board)
        return await self._host.head(board, self._opener)

    async def commit(self, board: str, commit: Commit) -> Receipt:
        """Check and carry out one attempt of a commit. See `Link.commit`."""
        self._check(board)
        check_commit(commit)
        access.require_commit(self.principal, commit)
        return self.finish(await self._host.commit(board, commit, self._opener))

    def start(self, board: str, commit: Commit) -> "asyncio.Future[Outcome | BlackboardError]":
        """Queue a commit that the wire has validated, if `can_start`; `finish` takes its outcome.

        For whoever serves many commits and cannot afford a task for each.
        Errors: those of `commit` that are known before it is sent.
        """
        self._check(board)
        access.require_commit(self.principal, commit)
        return self._host.opened(board).queue.submit(prepare(commit))

    def can_start(self, board: str) -> bool:
        """Whether `start` may be called: the board is open, and no lock masters have a say."""
        return self._host.is_open(board) and self._host.lock_masters is None

    def finish(self, outcome: Outcome | BlackboardError) -> Receipt:
        """The receipt of a commit that took effect. Errors: why it did not."""
        if isinstance(outcome, Committed):
            level = self._host.facts().level
            return Receipt(
                outcome.revision, outcome.time_ms, outcome.results, level, outcome.duplicate
            )
        raise self._told(outcome)

    async def read(self, board: str, keys: Sequence[Key]) -> Reading:
        """Entries of `keys` as of one revision. Errors: AccessDenied for the first not readable."""
        self._check(board)
        if len(keys) > READ_KEYS_MAX:
            raise LimitExceeded("READ_KEYS_MAX", len(keys), READ_KEYS_MAX, "keys")
        for key in keys:
            access.require(self.principal, Right.READ, check_key(key))
        await self._host.use(board, self._opener)
        return await self._host.store.read(board, keys)

    async def list(
        self, board: str, pattern: str, *, after: Key | None = None, limit: int = LIST_ENTRIES_MAX
    ) -> Reading:
        """A page of the readable entries that match `pattern`."""
        self._check(board)
        _check_limit(limit, LIST_ENTRIES_MAX)
        parsed = parse_pattern(pattern)
        await self._host.use(board, self._opener)
        if parsed.literal:
            return await self._list_one(board, parsed, after)
        return await self._list_pages(board, parsed, after, limit)

    async def _list_pages(
        self, board: str, pattern: Pattern, after: Key | None, limit: int
    ) -> Reading:
        """Pages of the engine put together, as long as they are of one revision."""
        found: list[Entry] = []
        shown = Reading(0, "")
        for _ in range(_LIST_PAGES_MAX):
            page = await self._host.store.list(board, pattern.prefix, after=after, limit=limit)
            if shown.epoch and page.revision != shown.revision:
                break  # also without matches so far: there may be some by now
            found += [e for e in page.entries if pattern.matches(e.key) and self._readable(e.key)]
            shown, after = page, page.next_key
            size = sum(len(entry.value) for entry in found)
            await asyncio.sleep(0)  # a page of an engine in memory comes without a pause
            if after is None or len(found) >= limit or size >= PAGE_BYTES_MAX:
                break
        if len(found) > limit:
            found, after = found[:limit], found[limit - 1].key
        return replace(shown, entries=tuple(found), next_key=after)

    async def _list_one(self, board: str, pattern: Pattern, after: Key | None) -> Reading:
        key = check_key(pattern.text)
        reading = await self._host.store.read(board, [key])
        shown = self._readable(key) and (after is None or after < key)
        return reading if shown else replace(reading, entries=())

    async def leases(
        self, board: str, pattern: str, *, after: Key | None = None, limit: int = LIST_ENTRIES_MAX
    ) -> Reading:
        """A page of the readable leases whose keys match `pattern`."""
        self._check(board)
        _check_limit(limit, LIST_ENTRIES_MAX)
        parsed = parse_pattern(pattern)
        await self._host.use(board)
        reading = await self._host.store.leases(board)
        found = [
            lease
            for lease in reading.leases
            if (after is None or lease.key > after)
            and parsed.matches(lease.key)
            and self._readable(lease.key)
        ]
        page = page_of(found, limit)
        next_key = page[-1].key if len(page) < len(found) else None
        return replace(reading, leases=tuple(page), next_key=next_key)

    async def log(self, board: str, after: Revision, *, limit: int = LOG_ENTRIES_MAX) -> LogPage:
        """A page of the log, with what may be read of each entry; hidden entries are left out."""
        self._check(board)
        _check_limit(limit, LOG_ENTRIES_MAX)
        await self._host.use(board, self._opener)
        page = await self._host.store.log(board, after, limit=limit)
        shown = (history.visible(entry, _EVERYTHING, self._readable) for entry in page.entries)
        through = page.entries[-1].revision if page.entries else after
        return LogPage(page.head, tuple(entry for entry in shown if entry is not None), through)

    async def why(self, board: str, key: Key) -> Sequence[Cause]:
        """The commits that led to `key`, as far as they may be read."""
        self._check(board)
        access.require(self.principal, Right.READ, check_key(key))
        await self._host.use(board, self._opener)
        return await provenance.causes(self._host.store, board, key, self._readable)

    def watch(self, board: str, request: WatchRequest) -> AbstractAsyncContextManager[Stream]:
        """Open a watch; only what may be read is delivered."""
        self._check(board)
        view = View(
            patterns=parse_patterns(request.patterns),
            grants=self.principal.grants,
            readable=self._readable,
            coalesce=request.coalesce,
        )
        return self._watch(board, view, request)

    @asynccontextmanager
    async def _watch(self, board: str, view: View, request: WatchRequest) -> AsyncIterator[Stream]:
        feed = (await self._host.use(board, self._opener)).feed
        async with feed.watch(view, request.after) as watcher:
            yield watcher

    async def boards(self) -> Sequence[str]:
        """Names of the existing boards that the principal may use."""
        self._host.check_serving()
        mine = self.principal.boards
        return [name for name in await self._host.store.boards() if not mine or name in mine]

    async def aclose(self) -> None:
        """Nothing to close: the service belongs to somebody else."""

    def _check(self, board: str) -> None:
        self._host.check_serving()
        access.require_board(self.principal, board)

    def _told(self, error: BlackboardError) -> BlackboardError:
        """What the principal is told of a refusal: of a key that it may not read, no more than
        that it is in the way (somebody may `append` without reading)."""
        if not isinstance(error, Conflict):
            return error
        if not self._readable(error.key):
            return Conflict(error.key, error.expected, PRESENT, head=error.head)
        if error.current is not None:
            error.current = decode_value(error.current)
        return error


def _check_limit(limit: int, maximum: int) -> None:
    if not 1 <= limit <= maximum:
        raise InvalidRequest(field="limit", reason=f"{limit} is not in 1..{maximum}")
