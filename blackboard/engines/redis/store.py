"""The Redis engine: `Store` over one server or a Redis Cluster, Redis or Valkey 7.0 and newer.

A board is a handful of keys in one hash slot (`layout.py`), a commit is one atomic script
(`scripts/commit.lua`), and the log is a stream.

Invariants
- A commit takes effect at most once, however often it is sent: the script knows its identity.
- Every call compares the server's run with the one that the board was opened on, inside the script,
  so that a restarted server never reuses revisions that it may have lost.
- Every call ends within ENGINE_RETRY_MS (waiting for the log: `wait_ms` more).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final, cast

import anyio

from blackboard.core.commit import FORWARD, Entry, Head, ListOptions, LogPage, Reading, Seed
from blackboard.core.directories import ranges_behind
from blackboard.core.model import Outcome
from blackboard.core.path import Ranges, check_name, ranges_of
from blackboard.engines.base import REPLICA, Behind, EngineFacts, check_epoch, check_hold
from blackboard.engines.payer import metered
from blackboard.engines.redis.account import RedisAccount, read_account
from blackboard.engines.redis.codec import (
    as_retry,
    commit_arguments,
    in_doubt,
    read_behind,
    read_children,
    read_leases,
    read_log_page,
    read_outcomes,
    read_reading,
    unknown,
)
from blackboard.engines.redis.driver import (
    Argument,
    Driver,
    NotNowError,
    OneServer,
    RetryBudget,
    ask,
    connect,
)
from blackboard.engines.redis.facts import read_facts, rewrite_files
from blackboard.engines.redis.handover import Handover, Handovers
from blackboard.engines.redis.layout import (
    BOARDS,
    board_keys,
    index_ranges,
    log_key,
    pubsub_channel,
    read_head,
)
from blackboard.engines.redis.lua import (
    ACCESS,
    COMMIT,
    COMPACT,
    HOLD,
    LEASES,
    LOG,
    READ,
    Script,
    Scripts,
)
from blackboard.engines.redis.pubsub import received, write_message
from blackboard.engines.redis.seed import make_board
from blackboard.errors import (
    Corrupt,
    EngineRefused,
    InvalidRequest,
    LimitExceeded,
    NoSuchBoard,
    Unavailable,
)
from blackboard.limits import DEFAULT, FRAME_BYTES_MAX, PAGE_BYTES_MAX, REPLICAS_MAX, Limits
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import Prepared

_DECODED_BYTES: Final = 512 * 1024
"""Bytes of a page of the log above which it is decoded in a thread: this many bytes of small
changes take ten milliseconds, and a restore may have ten times as many."""
_COMPACT_SLICE: Final = 1000
"""Log entries and tombstones per call of compact.lua: a millisecond or two."""
_COMPACTED: Final = b"done"


class RedisStore:
    """Boards on Redis. `RedisStore.connect(url)` makes one; nothing is sent until it is used."""

    def __init__(
        self, driver: Driver, location: str, *, commit: Script = COMMIT, replicas: int = 0
    ) -> None:
        self._driver = driver
        self._limits = driver.limits
        self._location = location
        self._scripts = Scripts(driver)
        self._handovers = Handovers()
        self._commit = commit
        self._replicas = replicas

    @classmethod
    def connect(cls, url: str, *, replicas: int = 0, limits: Limits = DEFAULT) -> "RedisStore":
        """The engine at `redis[s]://host:port/db`, `unix://path` or `redis[s]+cluster://host:port`.

        A commit that reached `replicas` replicas before its answer has the level "replica"; each
        answer waits for them at most REPLICA_WAIT_MS, and is then sent without that level. Errors:
        InvalidRequest for a URL that is none of these; for replicas of a cluster.
        """
        driver, location = connect(url, limits.engine)
        if not 0 <= replicas <= REPLICAS_MAX:
            raise LimitExceeded("REPLICAS_MAX", replicas, REPLICAS_MAX)
        if replicas and not isinstance(driver, OneServer):
            reason = "WAIT needs the connection of the commit, which the driver for clusters hides"
            raise InvalidRequest(field="replicas", reason=reason)
        return cls(driver, location, replicas=replicas)

    async def facts(self) -> EngineFacts:
        """Facts about the server, and what an acknowledged commit survives.

        Errors: EngineRefused unless it keeps every key (`maxmemory-policy noeviction`), and its
        account may do what is needed; Unavailable.
        """
        lacking = (await self.account()).lacking
        if lacking:
            value = f"without {', '.join(lacking)}"
            raise EngineRefused("ACL", value, "the account of docs/howto/deploy_redis.md")
        return await read_facts(self._driver, self._location)

    async def account(self) -> RedisAccount:
        """The rights that the account of this service lacks, and those that it does not need.

        Errors: Unavailable.
        """
        return await read_account(self._driver)

    async def open(self, board: str, *, again: bool = False) -> Head:
        """Make sure that `board` exists on this run of the server, and say where it stands.

        Errors: Unavailable, InvalidRequest for a name that is none; NoSuchBoard for one that was
        removed, unless it is to begin `again`.
        """
        check_name(board, "board")
        keys = board_keys(board)
        # Before it is listed: what is being made may yet be undone, and would stay in the list.
        if await ask(self._driver, keys[0], "HEXISTS", keys[0], "seed"):
            raise Unavailable(what=f"board {board}", reason="it is being made")
        if not again and await self.removed(board) is not None:
            await self._strike(board)  # a late copy of what lists it may have come after that
            raise NoSuchBoard(board)
        # List it first: then every board that exists is listed, whatever fails in between.
        await self._enlist(board)
        head = await self._scripts.open(board, again=again)
        self._handovers.check(board, head)
        return head

    async def _enlist(self, board: str) -> None:
        """Make sure that a board is in the list of all. A server without memory refuses to add even
        one that is listed, so it is asked before."""
        if not await ask(self._driver, BOARDS, "SISMEMBER", BOARDS, board):
            await ask(self._driver, BOARDS, "SADD", BOARDS, board)

    async def _strike(self, board: str) -> None:
        """Take a board from the list of all."""
        await ask(self._driver, BOARDS, "SREM", BOARDS, board)

    async def begin_epoch(self, board: str, head: Head, *, above: Revision) -> Head:
        """As `Store.begin_epoch`: atomic; a repeated call begins only one epoch."""
        check_name(board, "board")
        if not await self.exists(board):
            raise InvalidRequest(field="board", reason=f"there is no board {board!r}")
        return await self._scripts.begin_epoch(board, head, above)

    async def exists(self, board: str) -> bool:
        """As `Store.exists`. Errors: Unavailable."""
        key = board_keys(board)[0]
        return bool(await ask(self._driver, key, "HEXISTS", key, "run"))

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """Decide a batch in one script call; one outcome each, in order.

        An attempt without answer is repeated: the script answers what was applied with its first
        answer. If no attempt is answered in ENGINE_RETRY_MS, each outcome is OutcomeUnknown; so is
        one that a repeat was refused, while an attempt before it may still arrive and be applied.
        A commit that the server has no memory for has the outcome Unavailable; those that only
        remove still pass.
        Errors: Unavailable when certainly none was applied; Corrupt.
        Cancellation: each outcome is unknown; sending the same commits again finds out.
        """
        return cast("list[Outcome]", await self._decide(board, batch, None))

    async def commit_at(
        self, board: str, batch: Sequence[Prepared], access: Revision
    ) -> list[Outcome | Behind]:
        """As `commit`, if the board's access number allows, see `Shared.commit_at`."""
        return await self._decide(board, batch, access)

    async def raise_access(self, board: str, access: Revision) -> None:
        """Raise a board's access number, see `Shared.raise_access`. Errors: Unavailable."""
        await self._scripts.run(board, ACCESS, [access])

    async def _decide(
        self, board: str, batch: Sequence[Prepared], access: Revision | None
    ) -> list[Outcome | Behind]:
        handover = self._handovers.from_writer(board)
        with handover.in_flight() if handover is not None else nullcontext():
            return await self._decide_now(board, batch, access, handover)

    async def _decide_now(
        self,
        board: str,
        batch: Sequence[Prepared],
        access: Revision | None,
        handover: Handover | None,
    ) -> list[Outcome | Behind]:
        # Before the first attempt: a later revision could lie above what that attempt changed.
        seen, budget = self._scripts.seen(board), RetryBudget(self._limits, self._replicas)

        def arguments() -> list[Argument]:
            if budget.maybe_executed:
                return commit_arguments([as_retry(prepared, seen) for prepared in batch], access)
            return commit_arguments(batch, access)

        try:
            reply = await self._scripts.run_again(board, self._commit, arguments, budget)
        except Unavailable as error:
            if not budget.maybe_executed:
                raise
            return [unknown(prepared, error.reason) for prepared in batch]
        behind = read_behind(reply)
        if behind is not None:
            if budget.maybe_executed:
                # An earlier attempt may have been executed before the access number rose.
                return [unknown(prepared, "tokens were revoked") for prepared in batch]
            return [behind] * len(batch)
        self._scripts.note(board, reply[0])
        if handover is not None:
            handover.note(batch, reply)
        outcomes = read_outcomes(batch, reply, level=REPLICA if budget.reached else "")
        if budget.maybe_executed:
            return [in_doubt(*each) for each in zip(batch, outcomes, strict=True)]
        return [*outcomes]

    async def read(self, board: str, keys: Sequence[Key]) -> Reading:
        """Entries of `keys` as of one revision. Errors: Unavailable; LimitExceeded when they are
        more than FRAME_BYTES_MAX together."""
        reading, is_cut = await self._read(board, [FRAME_BYTES_MAX, "keys", *keys])
        if is_cut:
            size = sum(len(entry.value) for entry in reading.entries)
            raise LimitExceeded("FRAME_BYTES_MAX", size, FRAME_BYTES_MAX)
        return reading

    async def list(
        self,
        board: str,
        within: Prefix | Ranges,
        *,
        after: Key | None = None,
        limit: int,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> Reading:
        """A page of the entries within, see `Store.list`. Errors: Unavailable."""
        what = "backwards" if reverse else "ranges"
        ranges = index_ranges(ranges_of(within, after, reverse=reverse), reverse=reverse)
        values = "keys" if keys_only else "values"
        arguments: list[Argument] = [PAGE_BYTES_MAX, what, limit, values, *ranges]
        reading, is_cut = await self._read(board, arguments)
        if not is_cut or not reading.entries:
            return reading
        next_key = reading.entries[-1].key
        return Reading(reading.revision, reading.epoch, reading.entries, next_key)

    async def children(
        self,
        board: str,
        within: Ranges,
        prefix: Prefix,
        *,
        after: Key | None = None,
        limit: int,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """A page of a listing by directory, see `Store.children`. Errors: Unavailable."""
        reverse = options.reverse
        what = "children backwards" if reverse else "children"
        ranges = index_ranges(
            ranges_behind(within, prefix, after, reverse=reverse), reverse=reverse
        )
        values = "keys" if options.keys_only else "values"
        depth = len(prefix) + 1 if prefix else 0
        arguments: list[Argument] = [PAGE_BYTES_MAX, what, limit, values, depth, *ranges]
        reading = read_children(await self._scripts.run(board, READ, arguments))
        self._scripts.note(board, reading.revision)
        return reading

    async def due(self, board: str, *, limit: int, by_ms: Milliseconds | None = None) -> Reading:
        """Expired entries, the earliest first, see `Store.due`. Errors: Unavailable."""
        by = "" if by_ms is None else by_ms
        reading, _ = await self._read(board, [PAGE_BYTES_MAX, "due", limit, by])
        return reading

    async def leases(self, board: str, *, due: bool = False) -> Reading:
        """All leases of a board, see `Store.leases`. Errors: Unavailable."""
        reading = read_leases(await self._scripts.run(board, LEASES, []), due=due)
        self._scripts.note(board, reading.revision)
        return reading

    async def log(
        self, board: str, after: Revision, *, limit: int, wait_ms: Milliseconds = 0
    ) -> LogPage:
        """A page of the log after revision `after`, see `Store.log`.

        Waiting blocks a dedicated connection. Its reply is only a hint: the page is then made of
        what this process committed (handover.py), or read together with the head and the low-water
        mark. Errors: Compacted, FutureRevision, Unavailable.
        """
        if wait_ms <= 0:
            return await self._log_page(board, after, limit)
        handover = self._handovers.to_reader(board)
        with handover.reading():
            return await self._next_page(board, handover, after, limit, wait_ms)

    async def _next_page(
        self, board: str, handover: Handover, after: Revision, limit: int, wait_ms: Milliseconds
    ) -> LogPage:
        until = anyio.current_time() + wait_ms / 1000
        # One blocking read ends before the driver would give up; a dead connection is noticed.
        block_ms_max = self._limits.engine_timeout_ms // 2
        # The last page ended at the head: whatever came since wakes up the blocking read at once.
        is_read = handover.continues(after)
        while True:
            if (taken := handover.take(after, limit)) is not None:
                return taken
            if not is_read:
                page = await self._log_page(board, after, limit)
                handover.read(page)
                if page.entries:
                    return page
            left_ms = int((until - anyio.current_time()) * 1000)
            if left_ms > 0:
                if await self._wait(board, after, min(left_ms, block_ms_max)):
                    await handover.settle(after)
            elif not is_read:
                return page
            is_read = False

    async def _log_page(self, board: str, after: Revision, limit: int) -> LogPage:
        reply = await self._scripts.run(board, LOG, [after, limit, PAGE_BYTES_MAX])
        page = await _log_page(reply, after)
        self._scripts.note(board, page.head.revision)
        return page

    async def compact(self, board: str, oldest: Revision) -> Head:
        """Drop log entries and tombstones below `oldest`, in slices of bounded size.

        A value above the head empties the log. If it is interrupted, the low-water mark has risen
        already; the next call continues with what is left below it. Errors: Unavailable.
        """
        cursor: bytes | str = ""
        self._handovers.forget(board)  # also what a redaction takes away
        while True:
            step: list[Argument] = [oldest, cursor, _COMPACT_SLICE]
            reply = await self._scripts.run(board, COMPACT, step)
            head, cursor = read_head(reply[0]), reply[1]
            if cursor == _COMPACTED:
                return head

    async def hold(self, board: str, hold_ms: Milliseconds) -> None:
        """Make commits wait, see `Store.hold`. Errors: LimitExceeded, Unavailable."""
        check_hold(hold_ms)
        await self._scripts.run(board, HOLD, [hold_ms])

    async def seed(
        self,
        board: str,
        seed: Seed,
        pages: AsyncIterator[Sequence[Entry]],
        *,
        replaces: Head | None = None,
    ) -> Head:
        """Make a board, see `Store.seed`, in steps of bounded size.

        Errors: InvalidRequest; Unavailable, also when another process makes or removes it at the
        same time. Cancellation: leaves nothing, unless the engine cannot be reached any more.
        """
        check_name(board, "board")
        await make_board(self._scripts, board, seed, pages, replaces)
        return await self.open(board)

    async def drop(self, board: str) -> None:
        """Remove a board, see `Store.drop`. Errors: Unavailable: perhaps removed."""
        keys = board_keys(board)
        await ask(self._driver, keys[0], "UNLINK", *keys)
        self._scripts.forget(board)
        self._handovers.forget(board)
        # Last: whatever fails in between, each board that exists must be in the list.
        await self._strike(board)

    async def remove(self, board: str, *, above: Revision = 0, epoch: str | None = None) -> None:
        """Remove a board for good, see `Store.remove`: atomic. Errors: StaleEpoch; Unavailable:
        perhaps removed."""
        check_name(board, "board")
        if not await self._scripts.remove(board, above, epoch):
            # There is a board in another epoch: this raises the error that describes it.
            check_epoch(await self.open(board), epoch)
        self._handovers.forget(board)
        await self._strike(board)

    async def removed(self, board: str) -> Revision | None:
        """As `Store.removed`. Errors: Unavailable."""
        key = board_keys(board)[0]
        found = await ask(self._driver, key, "HMGET", key, "gone", "run")
        return None if found[0] is None or found[1] is not None else int(found[0])

    def torn(self, board: str) -> Revision | None:
        """As `MayTear.torn`."""
        return self._scripts.torn.get(board)

    async def scrub(self, board: str) -> str:
        """As `Scrubs.scrub`: makes each server rewrite its append-only file, for all boards at
        once, and waits for it. Errors: Unavailable."""
        return await rewrite_files(self._driver)

    async def boards(self) -> Sequence[str]:
        """Names of all boards, sorted. Errors: Unavailable."""
        names = await ask(self._driver, BOARDS, "SMEMBERS", BOARDS)
        return sorted(name.decode() for name in names)

    async def publish(self, board: str, key: Key, data: bytes) -> None:
        """Publish on the board's channel, see `PubSub.publish`. There is no retry."""
        channel, packed = pubsub_channel(board), write_message(key, data)
        try:
            with anyio.fail_after(self._limits.engine_timeout_ms / 1000):
                await self._driver.send(self._once(), channel, "SPUBLISH", channel, packed)
        except (NotNowError, Corrupt, TimeoutError) as error:
            raise Unavailable(what="pub/sub", reason=str(error)) from error

    @asynccontextmanager
    async def subscribe(self, board: str) -> AsyncIterator[AsyncIterator[tuple[Key, bytes]]]:
        """Listen on the board's channel, see `PubSub.subscribe`; on a dedicated connection."""
        try:
            async with received(self._driver, pubsub_channel(board)) as heard:
                yield heard
        except (NotNowError, Corrupt) as error:
            raise Unavailable(what="pub/sub", reason=str(error)) from error

    async def aclose(self) -> None:
        """Close every connection; calls in flight end with an error."""
        await self._driver.aclose()

    async def _read(self, board: str, arguments: Sequence[Argument]) -> tuple[Reading, bool]:
        reply = await self._scripts.run(board, READ, arguments)
        reading, is_cut = read_reading(reply)
        self._scripts.note(board, reading.revision)
        return reading, is_cut

    def _once(self) -> RetryBudget:
        """For a command that is sent once."""
        return RetryBudget(self._limits)

    async def _wait(self, board: str, after: Revision, block_ms: Milliseconds) -> bool:
        """Block until the log has an entry after `after`, or for `block_ms`; whether it has."""
        key = log_key(board)
        command = ("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", key, f"{after}-0")
        try:
            return bool(await self._driver.send(self._once(), key, *command))
        except NotNowError:
            return False  # the read that follows gets the same error, and retries in its bounds


async def _log_page(reply: Sequence[Any], after: Revision) -> LogPage:
    """As `read_log_page`; a large one in a thread, so that it does not block other boards."""
    if sum([len(part) for _, fields in reply[1] for part in fields]) < _DECODED_BYTES:
        return read_log_page(reply, after)
    return await asyncio.to_thread(metered(partial(read_log_page, reply, after)))
