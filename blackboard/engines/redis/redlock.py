"""Independent Redis servers that vote on the holder of a lock: Redlock, with pottery's AIORedlock.

They outlive the engine: their votes stand while the engine is replaced by another one that does not
know the lock. They are not a guarantee; the fence is (docs/decisions/0012).

Invariants
- One `AIORedlock` per call, never used again: a second acquisition on one would orphan the first.
- The value at the masters is `owner`, which is needed to acquire, renew and release the votes
  again. All services of one history of a board are one owner (server/redlock_votes.py).
- Every command ends in time, whatever hangs: `_Master` bounds each one as a whole.
- A cancelled call leaves nothing behind: the acquisition runs to its end and is then undone.

Source: antirez, "Distributed Locks with Redis"; the flaws of pottery 3.0.1 that this module works
around were measured (one dead master of three held up an acquisition for four seconds, a hung one
for ever).
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, TimeoutError as RedisTimeoutError

from blackboard.core.lease import LOCK_MASTERS
from blackboard.engines.base import VoteCounts
from blackboard.errors import InvalidRequest, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.units import Milliseconds

_dumps = json.dumps
from pottery import AIORedlock, QuorumIsImpossible, ReleaseUnlockedLock  # noqa: E402

json.dumps = _dumps
"""Importing pottery replaces json.dumps for the whole process; this restores it."""

log = logging.getLogger(__name__)
logging.getLogger("pottery").addFilter(lambda record: record.exc_info is None)
"""It logs a traceback for every command that a master does not answer; `check` names that master
once a minute, and an error says why there was no majority."""

_TIMEOUT_SHARE: Final = 20  # a command may take this fraction of the time to live
_DRIFT_SHARE: Final = 0.01  # drift between the masters' clocks; Redlock's own figure
_DRIFT_S: Final = 0.002


_GET_VOTE: Final = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return owner and 2 or 1
"""
"""SET NX, except that an owner gets its own vote again; returns 1 for a new vote."""


class _Master(Redis):
    """A client of one master, for one call; every command ends in time, connecting included."""

    def __init__(self, pool: ConnectionPool, timeout_s: float, counts: VoteCounts) -> None:
        super().__init__(connection_pool=pool)
        self._timeout_s = timeout_s
        self._counts = counts
        self._siblings: Sequence[_Master] = ()
        self.is_anew = False
        self.was_held = False

    def join(self, masters: "Sequence[_Master]") -> None:
        """Take part in one acquisition, at all these masters."""
        self._siblings = masters

    async def set(  # type: ignore[override]
        self, name: str, value: str, *, px: int, nx: bool
    ) -> bool:
        """Called by pottery: get the vote for `name`, unless another owner has it.

        pottery's plain NX would fail against the owner's own vote, and then take it back.
        """
        try:
            vote = await self.in_time(self.eval(_GET_VOTE, 1, name, value, str(px)))
        except RedisError:
            self._counts.unreachable += 1
            raise
        self.is_anew, self.was_held = vote == 1, vote == 2
        self._counts.granted += bool(vote)
        self._counts.refused += not vote
        return bool(vote)

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """As redis-py's, with a timeout; pottery releases with it.

        pottery releases all votes when an acquisition fails. A failed renewal must not: the lease
        goes on, and another owner could get the votes that are left.
        """
        if not self.is_anew and any(master.was_held for master in self._siblings):
            return 0
        return await self.in_time(super().evalsha(sha, numkeys, *keys_and_args))

    async def in_time(self, command: Awaitable[Any]) -> Any:
        """The answer to a command. Errors: a RedisError, also on a timeout."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await command
        except TimeoutError as error:
            raise RedisTimeoutError("no answer in time") from error
        except OSError as error:
            raise RedisError(str(error)) from error


class _Vote(AIORedlock):
    """pottery's lock with a value that is given instead of drawn."""

    def __init__(self, name: str, masters: Sequence[_Master], owner: str, ttl_ms: int) -> None:
        self._owner = owner
        self._clients = masters
        for master in masters:
            master.join(masters)
        super().__init__(
            key=name,
            masters=frozenset(masters),
            raise_on_redis_errors=True,
            auto_release_time=ttl_ms / 1000,
        )

    @property
    def new_votes(self) -> int:
        """How many masters gave a new vote."""
        return sum(master.is_anew for master in self._clients)

    @property
    def _uuid(self) -> str:
        return self._owner

    @_uuid.setter
    def _uuid(self, drawn: str) -> None:
        """Ignores the value that pottery draws for each acquisition."""


class LockMasters:
    """Redis servers by URL, independent of each other: three, or five, or any odd number."""

    def __init__(self, urls: Sequence[str], limits: Limits = DEFAULT) -> None:
        """Nothing is sent yet. Errors: InvalidRequest for a URL that is none."""
        self._timeout_ms = limits.engine.lock_master_timeout_ms
        self._calls = asyncio.Semaphore(limits.engine.lock_master_calls_max)
        self._undoing: set[asyncio.Task[None]] = set()
        self._counts = VoteCounts()
        try:
            self._pools = {_display_address(url): _pool(url, self._timeout_ms) for url in urls}
        except (ValueError, RedisError) as error:
            raise InvalidRequest(field="lock_masters", reason=str(error)) from error
        if len(self._pools) < len(urls):
            raise InvalidRequest(field="lock_masters", reason="one server is named twice")

    async def check(self) -> tuple[str, ...]:
        """Warnings for the operator: masters that do not answer, or an even number of them.

        Errors: InvalidRequest when two URLs lead to one server, which would vote twice.
        """
        pools, timeout_ms = self._pools.values(), self._timeout_ms
        runs = await asyncio.gather(*(_run_id(pool, timeout_ms) for pool in pools))
        named = dict(zip(self._pools, runs, strict=True))
        for run, count in Counter(run for run in runs if run).items():
            if count > 1:
                same = ", ".join(name for name, found in named.items() if found == run)
                raise InvalidRequest(field="lock_masters", reason=f"one server: {same}")
        found = [f"lock master {name} does not answer" for name, run in named.items() if not run]
        if len(named) % 2 == 0:
            found.append(
                f"{len(named)} lock masters survive no more failures than {len(named) - 1}"
            )
        return tuple(found)

    async def acquire(self, name: str, owner: str, ttl_ms: Milliseconds) -> bool:
        """Acquire the votes for `name` until `ttl_ms` from now, if they are free or belong to
        `owner`.

        Returns whether they are new (True) or were prolonged (False). Errors: Unavailable, of
        LOCK_MASTERS when no majority answers, of the lock when another owner has it; new votes of
        this call are released. Cancellation: the same, in the background.
        """
        getting = asyncio.create_task(self._acquire(name, owner, ttl_ms))
        try:
            return await asyncio.shield(getting)
        except asyncio.CancelledError:
            self._in_background(self._undo(getting, name, owner))
            raise

    async def release(self, name: str, owner: str) -> None:
        """Release the votes for `name` if `owner` has them. At a master that cannot be reached they
        expire.

        Cancellation: continues in the background.
        """
        giving = asyncio.create_task(self._release(name, owner))
        try:
            await asyncio.shield(giving)
        except asyncio.CancelledError:
            self._in_background(_ended(giving))
            raise

    def counts(self) -> VoteCounts:
        """How the masters have answered until now: a copy."""
        return replace(self._counts)

    async def aclose(self) -> None:
        """Finish pending releases, and close all connections."""
        await asyncio.gather(*self._undoing)
        for pool in self._pools.values():
            await pool.disconnect()

    # --- the parts --------------------------------------------------------------------------------

    async def _acquire(self, name: str, owner: str, ttl_ms: Milliseconds) -> bool:
        loop = asyncio.get_running_loop()
        # Counted from before the first vote: that one runs out first.
        deadline = loop.time() + ttl_ms / 1000 * (1 - _DRIFT_SHARE) - _DRIFT_S
        async with self._calls:
            vote = self._vote(name, owner, ttl_ms)
            try:
                granted = await vote.acquire(blocking=False)
            except QuorumIsImpossible as error:
                causes = {f"{type(cause).__name__}: {cause}" for cause in error.redis_errors}
                reason = f"no majority answers ({'; '.join(sorted(causes))})"
                raise Unavailable(what=LOCK_MASTERS, reason=reason) from error
        if not granted:
            raise Unavailable(what=f"lock {name}", reason=f"{LOCK_MASTERS}: another owner has it")
        if loop.time() >= deadline:
            await self._give_back(vote)
            raise Unavailable(what=LOCK_MASTERS, reason="the votes came too late")
        # One is not enough: a master that lost its data gives a new vote to a renewal.
        return 2 * vote.new_votes > len(self._pools)

    async def _release(self, name: str, owner: str) -> None:
        # The shortest time to live with which a command may take LOCK_MASTER_TIMEOUT_MS.
        ttl_ms = self._timeout_ms * _TIMEOUT_SHARE
        await self._give_back(self._vote(name, owner, ttl_ms))

    async def _give_back(self, vote: _Vote) -> None:
        """Release the votes of an acquisition, or all of its owner when it acquired none."""
        async with self._calls:
            try:
                await vote.release()
            except (ReleaseUnlockedLock, QuorumIsImpossible) as error:
                log.debug("votes were not given back: %s", type(error).__name__)

    async def _undo(self, attempt: asyncio.Task[bool], name: str, owner: str) -> None:
        await asyncio.wait([attempt])
        # Only new votes: those that were prolonged belong to a lease that goes on.
        if attempt.exception() is None and attempt.result():
            await self._release(name, owner)

    def _vote(self, name: str, owner: str, ttl_ms: Milliseconds) -> _Vote:
        """A lock of pottery for one call, over clients whose timeout is a small part of
        `ttl_ms`."""
        timeout_s = min(self._timeout_ms, ttl_ms / _TIMEOUT_SHARE) / 1000
        masters = [_Master(pool, timeout_s, self._counts) for pool in self._pools.values()]
        return _Vote(name, masters, owner, ttl_ms)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])


async def _run_id(pool: ConnectionPool, timeout_ms: Milliseconds) -> str:
    """The random name of the server's run; "" when it does not answer."""
    try:
        master = _Master(pool, timeout_ms / 1000, VoteCounts())
        info = await master.in_time(master.info("server"))
    except RedisError:
        return ""
    return str(info.get("run_id", ""))


def _pool(url: str, timeout_ms: Milliseconds) -> ConnectionPool:
    timeout_s = timeout_ms / 1000
    return ConnectionPool.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )


def _display_address(url: str) -> str:
    """The address for display, without user and password."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
