"""Branch: a new board that begins with the content of another one at a moment.

The archive comes first (it shares the history, at a cost that depends on the changes since then),
then the engine gets the entries, page by page, and has the board completely or not at all.

Invariants
- A board that exists is never touched: neither in the engine nor in the archive.
- The branch is made only if its content has the archived digests of that moment.
- Two branches to one name take turns, by a lease in the archive. If the lease runs out, the archive
  is corrected according to `system/origin`, unless it is away just then.
"""

import asyncio
import logging
import secrets
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from blackboard.archive.base import Archive
from blackboard.client.cancellation import finish
from blackboard.core.checkpoints import ORIGIN_KEY, BranchRequest, Mark, Point, check_request
from blackboard.core.commit import BRANCH, Entry, Epoch, Head, Seed
from blackboard.core.path import check_name
from blackboard.errors import BlackboardError, Corrupt, InvalidRequest, Unavailable
from blackboard.integrity.digest_check import Sums
from blackboard.server.boards import OpenBoard
from blackboard.server.checkpoints.imports import origin_entry
from blackboard.server.checkpoints.reader import HistoryReader
from blackboard.wire.codec import decode_value

log = logging.getLogger(__name__)
_SLOT: Final = "~branches.{}"
"""Names of the leases that serialize the makers of branches, by a number that follows from the
name of the new board."""
_SLOTS: Final = 64
_ALONE_MS: Final = 10_000
"""Time to live of that lease, in case its holder dies."""
_ALONE_WAIT_MS: Final = 3 * _ALONE_MS // 2
_PAUSE_MS: Final = 50


@asynccontextmanager
async def alone(archive: Archive, board: str) -> AsyncIterator[None]:
    """Exclude other makers of a board of that name, in all processes.

    Errors: Unavailable when another one is in progress. Cancellation: the next one need not wait.
    """
    # A few rows for all names, because each lease leaves a row in the archive. CRC-32, because all
    # processes must agree, and Python's `hash` differs between them.
    slot = _SLOT.format(zlib.crc32(board.encode()) % _SLOTS)
    owner = secrets.token_hex(8)
    for _ in range(_ALONE_WAIT_MS // _PAUSE_MS):
        fence = await _take(archive, slot, owner)
        if fence is not None:
            break
        await asyncio.sleep(_PAUSE_MS / 1000)
    else:
        raise Unavailable(what=f"board {board}", reason="another call is making it")
    keeping = asyncio.create_task(_keep(archive, slot, owner), name=f"making {board}")
    try:
        yield
    finally:
        await finish(_give_up(archive, slot, fence, keeping))


async def _take(archive: Archive, slot: str, owner: str) -> int | None:
    """Cancellation: nothing is held, although the database may have granted it already."""
    taking = asyncio.ensure_future(archive.take(slot, owner, _ALONE_MS))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        with suppress(BlackboardError):
            await finish(_give_back(archive, slot, taking))
        raise


async def _give_back(archive: Archive, slot: str, taking: "asyncio.Future[int | None]") -> None:
    fence = await taking
    if fence is not None:
        await archive.give_up(slot, fence)


async def _give_up(archive: Archive, slot: str, fence: int, keeping: "asyncio.Task[None]") -> None:
    # First, or it could take the lease again after it was given up.
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await archive.give_up(slot, fence)


async def _keep(archive: Archive, slot: str, owner: str) -> None:
    """Renew the lease, because making the board may take long."""
    while True:
        await asyncio.sleep(_ALONE_MS / 3000)
        # The lease outlives two renewals that fail.
        with suppress(BlackboardError):
            await archive.take(slot, owner, _ALONE_MS)


class Branches:
    """Makes branches of a board."""

    def __init__(self, board: OpenBoard) -> None:
        self._host = board.host
        self._past = HistoryReader(board)

    async def branch(self, spec: BranchRequest, by: str) -> Head:
        """Make `spec.new` from the board at a moment; a repeated request changes nothing.

        Errors: InvalidRequest when there is a board of that name, or nothing at the moment; Corrupt
        when the archive does not match the signed digests; the errors of resolving the moment. A
        failure leaves nothing. Cancellation: the branch may have been made.
        """
        check_name(spec.new, "board")
        check_request(spec.request)
        if await self._host.exists(spec.new):
            return await self._asked_before(spec)
        origin = await self._past.point(spec.at)
        if not origin.revision:
            raise InvalidRequest(field="at", reason="nothing was before revision 1")
        return await finish(self._make_alone(spec, origin, by))

    async def _make_alone(self, spec: BranchRequest, origin: Point, by: str) -> Head:
        """Make the branch, while other makers of that name are excluded."""
        async with alone(self._past.archive, spec.new):
            # Asked again: another maker may have had the turn before.
            if await self._host.exists(spec.new):
                return await self._asked_before(spec)
            return await self._make(spec, origin, by)

    async def _make(self, spec: BranchRequest, origin: Point, by: str) -> Head:
        store = self._host.store
        # What the archive had before is not taken back with a branch that fails.
        was_known = await self._past.archive.mark(spec.new) is not None
        await self._past.archive.branch(spec.new, origin)
        if origin.board in self._host.removing:
            # Its removal may have looked for branches before: values that only its log has go.
            if not was_known:
                await self._take_back(spec.new)
            raise Unavailable(f"board {origin.board}", "it is being removed")
        last = await self._past.archive.mark_at(origin)
        now_ms = (await store.open(origin.board)).time_ms
        epoch = Epoch(
            last.epoch.number + 1,
            secrets.token_hex(8),
            BRANCH,
            origin.revision,
            origin.revision + 1,
        )
        seed = Seed(epoch, now_ms, tuple(await self._past.archive.items(origin)))
        record = origin_entry(origin, by=by, note=spec.note, request=spec.request, time_ms=now_ms)
        try:
            head = await store.seed(spec.new, seed, self._pages(origin, last, record))
        except InvalidRequest:
            # Only possible if the lease ran out: another maker was faster, and the archive may have
            # the origin of this branch instead of its own.
            await self._settle(spec.new)
            return await self._asked_before(spec)
        except BlackboardError:
            if not was_known:
                await self._take_back(spec.new)
            raise
        await self._settle(spec.new)
        return head

    async def _take_back(self, new: str) -> None:
        """Remove what the archive has of a branch that was not made: a board that begins under its
        name would be taken for one that lost it. Errors: none."""
        archive = self._past.archive
        with suppress(BlackboardError):
            if not await self._host.store.exists(new):
                await archive.remove(new, keep=[n for n in await archive.boards() if n != new])

    async def _pages(
        self, origin: Point, mark: Mark, record: Entry
    ) -> AsyncIterator[Sequence[Entry]]:
        """All entries in key order; `record` comes last, because nothing sorts after `system`.

        Errors: Corrupt when they do not match the signed digests.
        """
        digests = (await self._past.archive.facts_at(origin)).digests
        sums = Sums()
        async for page in self._past.pages(origin):
            await sums.add_all(page)
            if page:
                yield page
        try:
            # Before the last page, without which the engine makes no board.
            await sums.check(digests, f"board {origin.board} at revision {origin.revision}")
        except Corrupt:
            await self._past.check_same(origin, mark)
            raise
        yield (record,)

    async def _asked_before(self, spec: BranchRequest) -> Head:
        """The board's head, if the same request made it. Errors: InvalidRequest."""
        reading = await self._host.store.read(spec.new, [ORIGIN_KEY])
        record = decode_value(reading.entries[0].value) if reading.entries else {}
        if record.get("request") != spec.request:
            raise InvalidRequest(field="new", reason=f"there is a board {spec.new!r}")
        return await self._host.store.open(spec.new)

    async def _settle(self, board: str) -> None:
        """Make sure that the archive has the origin that the board records.

        It has, unless the lease ran out. The board is there whether it can be asked or not, so the
        maker is not told otherwise. Errors: none.
        """
        try:
            await self._correct_origin(board)
        except BlackboardError as error:
            log.warning("board %s: its archived origin cannot be checked: %s", board, error)

    async def _correct_origin(self, board: str) -> None:
        reading = await self._host.store.read(board, [ORIGIN_KEY])
        if not reading.entries:
            return
        record = decode_value(reading.entries[0].value)
        origin = Point(record["board"], record["revision"])
        mark = await self._past.archive.mark(board)
        if record["shares"] and (mark is None or mark.origin != origin):
            await self._past.archive.branch(board, origin)
