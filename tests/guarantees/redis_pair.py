"""A Redis primary and its replica, and a promotion that loses what the replica had not got."""

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from blackboard.engines.redis.layout import board_keys
from tests.faults.tcp_proxy import TcpProxy
from tests.redis_process import RedisProcess, RedisSettings
from tests.servers import ask
from tests.waiting import wait_until

# Without the delay, in which Redis waits for more replicas to serve at once.
_AT_ONCE = RedisSettings(options={"repl-diskless-sync-delay": "0"})
PATIENCE_S = 60.0


class RedisPair:
    """`primary` serves; `replica` follows it. `await pair.promote()` when it has died.

    The pair is used one call at a time. After a promotion there is a new, empty replica once
    `attach` was called; the old primary is gone for good, with all that only it had.
    """

    def __init__(self, binary: Path) -> None:
        self._binary = binary
        self._stack = AsyncExitStack()
        self._way: TcpProxy | None = None
        self.primary = RedisProcess(binary, settings=_AT_ONCE)
        self.replica: RedisProcess | None = None

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.primary)
        await self.attach()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def attach(self) -> None:
        """Let a new replica follow the primary, and wait until it has everything."""
        self._way = await self._stack.enter_async_context(TcpProxy(self.primary.port))
        self.replica = await self._stack.enter_async_context(
            RedisProcess(self._binary, settings=_AT_ONCE)
        )
        await ask(self.replica, "REPLICAOF", "127.0.0.1", self._way.port)
        await self.sync()

    async def sync(self) -> None:
        """Wait until the replica has all that the primary has now, and the primary knows it.

        The primary learns once a second how far its replica is: what it has at that moment is
        never reached as long as somebody writes.
        """
        target = (await self._replication(self.primary))["master_repl_offset"]

        async def is_synced() -> bool:
            assert self.replica is not None
            there = await self._replication(self.primary)
            here = await self._replication(self.replica)
            is_up = here.get("master_link_status") == "up"
            told = there.get("slave0", {}).get("offset", -1)
            has_all = is_up and min(told, here["slave_repl_offset"]) >= target
            return has_all and not await self._rewrites(self.replica)

        await wait_until(is_synced, timeout_s=PATIENCE_S)

    @staticmethod
    async def _rewrites(server: RedisProcess) -> bool:
        """Whether its file is still being written: killed before, it comes back with nothing."""
        found = await ask(server, "INFO", "persistence")
        assert isinstance(found, dict)
        return bool(found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])

    @staticmethod
    async def _replication(server: RedisProcess) -> dict[str, Any]:
        found = await ask(server, "INFO", "replication")
        assert isinstance(found, dict)
        return found

    def part(self) -> None:
        """Nothing reaches the replica any more; the primary goes on and does not know."""
        assert self._way is not None
        self._way.hold()
        self._way.cut()

    async def promote(self) -> None:
        """The primary dies, and the replica takes its place with what it has."""
        assert self.replica is not None
        await self.primary.kill()
        await ask(self.replica, "REPLICAOF", "NO", "ONE")
        self.primary, self.replica = self.replica, None

    async def holds(self, board: str) -> int:
        """The last revision of `board` that the primary has, 0 if it does not have the board."""
        found = await ask(self.primary, "HGET", board_keys(board)[0], "rev")
        return int(found) if isinstance(found, bytes) else 0
