"""Every row there is, ours first: the order of the report's tables."""

from __future__ import annotations

from bench.ours import OursArchived, OursEmbedded, OursInProcess, OursRedis, OursTeam
from bench.peers import (
    Etcd,
    Nats,
    NatsSyncAlways,
    RedisAlways,
    RedisEverySecond,
    RedisPublish,
)
from bench.rows import Row

ROWS: tuple[type[Row], ...] = (
    OursEmbedded,
    OursArchived,
    OursTeam,
    OursRedis,
    OursInProcess,
    Etcd,
    Nats,
    NatsSyncAlways,
    RedisAlways,
    RedisEverySecond,
    RedisPublish,
)
