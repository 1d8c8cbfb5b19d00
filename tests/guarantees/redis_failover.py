"""A Redis Cluster of three masters, one of which has a replica that takes over when it dies."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from blackboard.engines.redis.layout import board_keys
from tests.hosts import HERE, Host
from tests.redis_process import RedisProcess
from tests.servers import RedisCluster3, ask, cluster_node
from tests.waiting import wait_until

PATIENCE_S = 90.0
MOVE_MS = 10_000
Nodes = Mapping[str, Mapping[str, object]]
"""What a node says of all: by address, as redis-py reads CLUSTER NODES."""


class FailoverCluster:
    """The slot of `board` moves between masters, and fails over to the replica of its first one.

    Calls come one at a time; after each, every node runs and the slot is at its first master, or at
    what took that one's place. The nodes run on `hosts`, the replica on the last one.
    """

    def __init__(self, binary: Path, board: str, hosts: Sequence[Host] = (HERE,) * 4) -> None:
        self._binary = binary
        self._spare = hosts[-1]
        self._board = board
        self._stack = AsyncExitStack()
        self._cluster = RedisCluster3(binary, hosts[:-1])
        self._nodes: list[RedisProcess] = []

    @property
    def url(self) -> str:
        """For services: one node's address, with the scheme of a cluster."""
        return self._cluster.url.replace("redis://", "redis+cluster://")

    @property
    def nodes(self) -> list[RedisProcess]:
        """All four."""
        return self._nodes

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._cluster)
        node, bus_port = cluster_node(self._binary, self._spare)
        await self._stack.enter_async_context(node)
        self._nodes = [*self._cluster.nodes, node]
        owner = await self.owner()
        await ask(owner, "CLUSTER MEET", node.host.address, node.port, bus_port)
        name = await node_id(owner)
        await wait_until(lambda: _knows(node, name), timeout_s=PATIENCE_S)
        await ask(node, "CLUSTER REPLICATE", name)
        await self.wait_until_whole()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def owner(self, seen_by: RedisProcess | None = None) -> RedisProcess:
        """The master that has the board's slot, as a node sees it, by default the first that runs.

        Errors: LookupError while nobody has it.
        """
        alive = seen_by or next(node for node in self._nodes if node.is_running())
        slot = await ask(alive, "CLUSTER KEYSLOT", board_keys(self._board)[0])
        assert isinstance(slot, int)
        for address, node in (await _seen_by(alive)).items():
            has_it = any(int(part[0]) <= slot <= int(part[-1]) for part in _slots(node))
            if has_it and "fail" not in str(node["flags"]):
                return self._at(address)
        raise LookupError(f"nobody has slot {slot}")

    async def move_and_back(self) -> None:
        """Move the slot to another master under whatever load there is, and back again."""
        home = await self.owner()
        guest, *_ = [n for n in self._nodes if n is not home and await _is_master(n)]
        await self._move(home, guest)
        await self._move(guest, home)

    async def fail_over(self) -> None:
        """Kill the owner, wait until its replica has the slot, and let it follow that one."""
        owner = await self.owner()
        await owner.kill()

        async def has_another() -> bool:
            try:
                return await self.owner() is not owner
            except LookupError:
                return False

        await wait_until(has_another, timeout_s=PATIENCE_S)
        await owner.restart()
        await self.wait_until_whole()

    async def wait_until_whole(self) -> None:
        """Wait until every node sees four good ones, and the owner's replica has everything."""
        await wait_until(self._is_whole, timeout_s=PATIENCE_S)

    async def _move(self, source: RedisProcess, target: RedisProcess) -> None:
        keys = board_keys(self._board)
        slot = await ask(source, "CLUSTER KEYSLOT", keys[0])
        assert isinstance(slot, int)
        source_id, target_id = await node_id(source), await node_id(target)
        await ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", source_id)
        await ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", target_id)
        where = (target.host.address, target.port, "", 0, MOVE_MS)
        await ask(source, "MIGRATE", *where, "KEYS", *keys)
        for node in (target, source, *self._nodes):
            if await _is_master(node):
                await ask(node, "CLUSTER SETSLOT", slot, "NODE", target_id)

    async def _is_whole(self) -> bool:
        for node in self._nodes:
            info = await ask(node, "CLUSTER INFO")
            assert isinstance(info, dict)
            if info["cluster_state"] != "ok" or info["cluster_known_nodes"] != "4":
                return False
        told = await ask(await self.owner(), "INFO", "replication")
        assert isinstance(told, dict)
        replica = told.get("slave0")
        return isinstance(replica, dict) and replica["state"] == "online"

    def _at(self, address: str) -> RedisProcess:
        return next(node for node in self._nodes if address == f"{node.host.address}:{node.port}")


async def node_id(node: RedisProcess) -> str:
    """The name of a node of a cluster."""
    found = await ask(node, "CLUSTER MYID")
    return found.decode() if isinstance(found, bytes) else str(found)


async def _seen_by(node: RedisProcess) -> Nodes:
    found = await ask(node, "CLUSTER NODES")
    assert isinstance(found, dict)
    return found


async def _knows(node: RedisProcess, name: str) -> bool:
    return any(other["node_id"] == name for other in (await _seen_by(node)).values())


async def _is_master(node: RedisProcess) -> bool:
    told = await ask(node, "ROLE")
    assert isinstance(told, list)
    return told[0] in (b"master", "master")


def _slots(node: Mapping[str, object]) -> list[list[str]]:
    found = node["slots"]
    assert isinstance(found, list)
    return found
