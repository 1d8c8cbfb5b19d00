"""The peers' rows: etcd, NATS KV and plain Redis, each through its usual asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from bench.rows import LOOPBACK, Connection, Endpoint, OnChange, Pumps, Row, client_module
from bench.servers import Lab, Server, UnavailableError, find_binary, version_of
from tests.ports import free_port

CLOSE_SECONDS_MAX = 3.0
LIVE_SECONDS_MAX = 20.0
POWER_LOSS = "power loss"
PROCESS_CRASH = "process crash"

# One change as one atomic script: check the version, take the next revision, log it, write it.
PUT_SCRIPT = """
local held = redis.call('HGET', KEYS[1], 'rev') or '0'
if ARGV[2] ~= '' and ARGV[2] ~= held then return 0 end
local rev = redis.call('INCR', KEYS[2])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, rev .. '-0', 'key', ARGV[3], 'value', ARGV[1])
redis.call('HSET', KEYS[1], 'value', ARGV[1], 'rev', rev)
return rev
"""
INCREMENT_SCRIPT = """
local value = redis.call('HINCRBY', KEYS[1], 'value', 1)
local rev = redis.call('INCR', KEYS[2])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, rev .. '-0', 'key', ARGV[1], 'value', value)
redis.call('HSET', KEYS[1], 'rev', rev)
return value
"""
PUBLISHING_PUT_SCRIPT = PUT_SCRIPT.replace(
    "return rev\n", "redis.call('PUBLISH', ARGV[4], ARGV[1])\nreturn rev\n"
)
HEAD, LOG = "bench:head", "bench:log"


class EtcdConnection(Connection):
    """aetcd over a channel of its own (gRPC would otherwise share one among all clients)."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pumps = Pumps()

    async def put(self, key: str, value: bytes) -> None:
        await self._client.put(key.encode(), value)

    async def read(self, key: str) -> tuple[bytes, int]:
        found = await self._client.get(key.encode())
        return (found.value, found.mod_revision) if found else (b"", 0)

    async def swap(self, key: str, value: bytes, version: int) -> bool:
        words, name = self._client.transactions, key.encode()
        written, _ = await self._client.transaction(
            compare=[words.mod(name) == version], success=[words.put(name, value)], failure=[]
        )
        return bool(written)

    async def watch(self, folder: str, on_change: OnChange) -> None:
        events = await self._client.watch_prefix(f"{folder}/".encode())

        async def pump() -> None:
            async for event in events:
                on_change(event.kv.value)

        self._pumps.start(pump())

    async def close(self) -> None:
        await self._pumps.stop()
        await asyncio.wait_for(self._client.close(), CLOSE_SECONDS_MAX)


class Etcd(Row):
    """A single etcd member; it syncs its log to disk before it acknowledges."""

    name: ClassVar[str] = "etcd"
    survives: ClassVar[str] = POWER_LOSS
    cells: ClassVar[frozenset[str]] = frozenset({"put", "fan", "cas", "stall"})

    async def start(self, lab: Lab) -> None:
        binary = find_binary("etcd", fetch=lab.fetch)
        client_module("aetcd")
        folder, peer = lab.data_folder(self.name), f"http://{LOOPBACK}:{free_port()}"

        def command(port: int) -> Sequence[str]:
            clients = f"http://{LOOPBACK}:{port}"
            return [
                str(binary),
                "--name",
                "bench",
                "--data-dir",
                str(folder),
                "--listen-client-urls",
                clients,
                "--advertise-client-urls",
                clients,
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                f"bench={peer}",
            ]

        self.servers = [await lab.serve(self.name, command)]
        self.endpoint = Endpoint(self.servers[0].port)

    async def connect(self) -> Connection:
        own_channel = {"grpc.use_local_subchannel_pool": 1}
        aetcd = client_module("aetcd")
        client = aetcd.Client(LOOPBACK, self.endpoint.port, options=own_channel)
        await client.connect()
        return EtcdConnection(client)


def dotted(key: str) -> str:
    """NATS separates the words of a subject, and so of a key, with dots."""
    return key.replace("/", ".")


class NatsConnection(Connection):
    """nats-py's JetStream key-value bucket on a connection of its own."""

    def __init__(self, client: Any, bucket: Any) -> None:
        self._client, self._bucket = client, bucket
        self._errors = client_module("nats.js.errors")
        self._watchers: list[Any] = []
        self._pumps = Pumps()

    async def put(self, key: str, value: bytes) -> None:
        await self._bucket.put(dotted(key), value)

    async def read(self, key: str) -> tuple[bytes, int]:
        try:
            entry = await self._bucket.get(dotted(key))
        except self._errors.KeyNotFoundError:
            return b"", 0
        return entry.value, entry.revision

    async def swap(self, key: str, value: bytes, version: int) -> bool:
        try:
            await self._bucket.update(dotted(key), value, last=version)
        except self._errors.KeyWrongLastSequenceError:
            return False
        return True

    async def watch(self, folder: str, on_change: OnChange) -> None:
        watcher = await self._bucket.watch(f"{dotted(folder)}.>")
        self._watchers.append(watcher)
        live = asyncio.Event()

        async def pump() -> None:
            async for entry in watcher:
                if entry is None:  # the client's mark: initial values are over
                    live.set()
                elif live.is_set():
                    on_change(entry.value)

        self._pumps.start(pump())
        await asyncio.wait_for(live.wait(), LIVE_SECONDS_MAX)

    async def close(self) -> None:
        for watcher in self._watchers:
            await watcher.stop()
        await self._pumps.stop()
        await asyncio.wait_for(self._client.close(), CLOSE_SECONDS_MAX)


class Nats(Row):
    """NATS KV in a file-backed bucket with its defaults: acknowledged before the disk has it."""

    name: ClassVar[str] = "nats"
    survives: ClassVar[str] = PROCESS_CRASH
    cells: ClassVar[frozenset[str]] = frozenset({"put", "fan", "cas", "stall"})
    sync_always: ClassVar[bool] = False
    bucket: ClassVar[str] = "bench"

    async def start(self, lab: Lab) -> None:
        binary = find_binary("nats-server", fetch=lab.fetch)
        client_module("nats")
        version = version_of(binary)
        if self.sync_always and [int(part) for part in version.split(".")[:2]] < [2, 10]:
            raise UnavailableError(f"sync_interval came with nats-server 2.10, this is {version}")
        folder = lab.data_folder(self.name)

        def command(port: int) -> Sequence[str]:
            return [str(binary), "-c", str(self._write_settings(folder, port))]

        self.servers = [await lab.serve(self.name, command)]
        self.endpoint = Endpoint(self.servers[0].port)
        await self._create_bucket()

    def _write_settings(self, folder: Path, port: int) -> Path:
        sync = "sync_interval: always" if self.sync_always else ""
        settings = folder / "nats.conf"
        settings.write_text(
            f'host: "{LOOPBACK}"\nport: {port}\njetstream {{ store_dir: "{folder}"\n{sync} }}\n'
        )
        return settings

    async def _client(self) -> Any:
        url = f"nats://{LOOPBACK}:{self.endpoint.port}"
        return await client_module("nats").connect(url, allow_reconnect=False)

    async def _create_bucket(self) -> None:
        client = await self._client()
        await client.jetstream().create_key_value(bucket=self.bucket, history=1)
        await client.close()

    async def connect(self) -> Connection:
        client = await self._client()
        bucket = await client.jetstream(timeout=LIVE_SECONDS_MAX).key_value(self.bucket)
        return NatsConnection(client, bucket)


class NatsSyncAlways(Nats):
    """The same with a sync per message, which is what etcd's acknowledgement means."""

    name: ClassVar[str] = "nats-sync-always"
    survives: ClassVar[str] = POWER_LOSS
    cells: ClassVar[frozenset[str]] = frozenset({"put", "cas"})
    sync_always: ClassVar[bool] = True


class RedisConnection(Connection):
    """redis-py with a stream as the log: what one would write on Redis without a service.

    redis-py does not multiplex: concurrent writers of one client get pooled connections.
    """

    def __init__(self, client: Any, channel: str = "") -> None:
        self._client, self._channel = client, channel
        self._put = client.register_script(PUBLISHING_PUT_SCRIPT if channel else PUT_SCRIPT)
        self._increment = client.register_script(INCREMENT_SCRIPT)
        self._pumps = Pumps()

    async def _write(self, key: str, value: bytes, version: int | str) -> int:
        folder = self._channel and f"{self._channel}{key.rpartition('/')[0]}"
        revision: int = await self._put(
            keys=[f"bench:{key}", HEAD, LOG], args=[value, version, key, folder]
        )
        return revision

    async def put(self, key: str, value: bytes) -> None:
        await self._write(key, value, "")

    async def read(self, key: str) -> tuple[bytes, int]:
        value, revision = await self._client.hmget(f"bench:{key}", "value", "rev")
        return value or b"", int(revision or 0)

    async def swap(self, key: str, value: bytes, version: int) -> bool:
        return await self._write(key, value, version) != 0

    async def increment(self, key: str) -> None:
        await self._increment(keys=[f"bench:{key}", HEAD, LOG], args=[key])

    async def watch(self, folder: str, on_change: OnChange) -> None:
        if self._channel:
            subscription = self._client.pubsub(ignore_subscribe_messages=True)
            await subscription.subscribe(f"{self._channel}{folder}")
            await subscription.ping()
            self._pumps.start(_pump_channel(subscription, on_change))
            return
        newest = await self._client.xrevrange(LOG, count=1)
        position = newest[0][0] if newest else b"0-0"
        self._pumps.start(_pump_stream(self._client, position, f"{folder}/".encode(), on_change))

    async def close(self) -> None:
        await self._pumps.stop()
        await self._client.aclose()


async def _pump_channel(subscription: Any, on_change: OnChange) -> None:
    async for message in subscription.listen():
        if message["type"] == "message":
            on_change(message["data"])


async def _pump_stream(client: Any, position: bytes, folder: bytes, on_change: OnChange) -> None:
    while True:
        for _, entries in await client.xread({LOG: position}, count=500, block=2000):
            for identifier, fields in entries:
                position = identifier
                if fields[b"key"].startswith(folder):
                    on_change(fields[b"value"])


async def serve_redis(lab: Lab, name: str, fsync: Literal["always", "everysec"]) -> Server:
    """A Redis of its own with an append-only file; Valkey's program is as good."""
    binary = find_binary("redis-server", fetch=lab.fetch)
    folder = lab.data_folder(name)

    def command(port: int) -> Sequence[str]:
        return [
            str(binary),
            "--bind",
            LOOPBACK,
            "--port",
            str(port),
            "--dir",
            str(folder),
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            fsync,
            "--maxmemory-policy",
            "noeviction",
        ]

    return await lab.serve(name, command)


class RedisAlways(Row):
    """Plain Redis, synced to disk before each answer."""

    name: ClassVar[str] = "redis-always"
    survives: ClassVar[str] = POWER_LOSS
    cells: ClassVar[frozenset[str]] = frozenset({"put", "cas", "increment"})
    fsync: ClassVar[Literal["always", "everysec"]] = "always"
    channel: ClassVar[str] = ""

    async def start(self, lab: Lab) -> None:
        client_module("redis.asyncio")
        self.servers = [await serve_redis(lab, self.name, self.fsync)]
        self.endpoint = Endpoint(self.servers[0].port)

    async def connect(self) -> Connection:
        # RESP2 keeps XREAD's answer a list; a blocking read must outlive any socket time-out.
        client = client_module("redis.asyncio").Redis(
            host=LOOPBACK, port=self.endpoint.port, protocol=2, socket_timeout=None
        )
        await client.ping()
        return RedisConnection(client, self.channel)


class RedisEverySecond(RedisAlways):
    """Plain Redis, synced once a second; its watchers each block on the stream."""

    name: ClassVar[str] = "redis-everysec"
    survives: ClassVar[str] = PROCESS_CRASH
    cells: ClassVar[frozenset[str]] = frozenset({"put", "cas", "fan"})
    fsync: ClassVar[Literal["always", "everysec"]] = "everysec"


class RedisPublish(RedisEverySecond):
    """Watchers on pub/sub: the least work there is, and a reader that was away lost it all."""

    name: ClassVar[str] = "redis-pubsub"
    cells: ClassVar[frozenset[str]] = frozenset({"fan"})
    channel: ClassVar[str] = "bench:changes:"
