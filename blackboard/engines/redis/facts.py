"""Facts about a Redis or Valkey server: its version, and what an acknowledged commit survives.

A cluster is as durable as its weakest primary.
"""

from collections.abc import Mapping
from typing import Any, Final

import anyio

from blackboard.engines.base import EngineFacts
from blackboard.engines.redis.driver import Driver, ask_all
from blackboard.errors import Corrupt, EngineRefused, Unavailable

_SAFE_POLICY: Final = "noeviction"
_LEVELS: Final = ("memory", "second", "disk")
"""From the weakest to the strongest; the last two need an append-only file."""
_LEVEL_OF_FSYNC: Final = {"always": "disk", "everysec": "second", "no": "memory"}
_MINIMUM: Final = (7, 0, 0)
_FIXED: Final[Mapping[str, Mapping[tuple[int, ...], tuple[int, ...]]]] = {
    "redis": {(7, 2): (7, 2, 11), (7, 4): (7, 4, 9), (8, 2): (8, 2, 6), (8, 6): (8, 6, 3)},
    "valkey": {(7, 2): (7, 2, 11), (8, 0): (8, 0, 6), (8, 1): (8, 1, 4), (9, 0): (9, 0, 0)},
}
"""For each release line, the version that fixes the known security holes in Lua (CVE-2025-49844; in
Redis also CVE-2026-23479, CVE-2026-25243 and CVE-2026-23631). Older lines have no fix."""

Info = Mapping[str, str]
_REWRITE_S: Final = 30.0
"""Timeout for rewriting an append-only file of a few gigabytes."""
_LOOK_AGAIN_S: Final = 0.1
_BY_HAND: Final = "run BGREWRITEAOF on each Redis server: its append-only file holds deleted data"
_NOT_YET: Final = "Redis is still rewriting its append-only file; until then it holds deleted data"
_IN_PROGRESS: Final = "in progress"
_SNAPSHOTS: Final = "without an append-only file, snapshots of Redis (SAVE) hold deleted data"


async def read_facts(driver: Driver, location: str) -> EngineFacts:
    """Ask every server. Errors: EngineRefused, Unavailable."""
    found = await _infos(driver)
    for info in found:
        _refuse_unsafe(info)
    fsyncs = await _fsyncs(driver, len(found))
    levels = [_level(info, fsync) for info, fsync in zip(found, fsyncs, strict=True)]
    warnings = [
        text for info, fsync in zip(found, fsyncs, strict=True) for text in _warnings(info, fsync)
    ]
    name, version = _name_and_version(found[0])
    return EngineFacts(
        name=name,
        version=version,
        location=location,
        level=min(levels, key=_LEVELS.index),
        warnings=tuple(dict.fromkeys(warnings)),
    )


async def rewrite_files(driver: Driver) -> str:
    """Make every server rewrite its append-only file, and wait for it.

    Returns "" when all have done so, else what is left to do. Errors: Unavailable.
    """
    kept = [info for info in await _infos(driver) if info.get("aof_enabled") == "1"]
    if not kept:
        return _SNAPSHOTS
    until = anyio.current_time() + _REWRITE_S
    while True:
        try:
            await ask_all(driver, "BGREWRITEAOF")
            begun = True
        except (Corrupt, Unavailable) as error:
            if _IN_PROGRESS not in error.reason:
                return f"{_BY_HAND} ({error.reason})"
            # The server began that one by itself, perhaps with what was deleted meanwhile. And of a
            # cluster, the primaries behind this one were not asked.
            begun = False
        found = await _when_rewritten(driver, until)
        if found is None:
            return _NOT_YET if begun else _BY_HAND
        if begun:
            failed = any(info.get("aof_last_bgrewrite_status") == "err" for info in found)
            return _BY_HAND if failed else ""


async def _when_rewritten(driver: Driver, until: float) -> list[Info] | None:
    """What the servers say when none is rewriting its file any more; None when it is `until`."""
    while anyio.current_time() < until:
        found = await _infos(driver)
        if not any(map(_rewrites, found)):
            return found
        await anyio.sleep(_LOOK_AGAIN_S)
    return None


def _rewrites(info: Info) -> bool:
    # While a snapshot is written, BGREWRITEAOF is only scheduled.
    return "1" in (info.get("aof_rewrite_in_progress"), info.get("aof_rewrite_scheduled"))


async def _infos(driver: Driver) -> list[Info]:
    return [_parse(reply) for reply in await ask_all(driver, "INFO")]


def _parse(reply: Any) -> Info:
    """The `name:value` lines of INFO, whichever form the driver gives them."""
    if isinstance(reply, Mapping):
        return {str(name): str(value) for name, value in reply.items()}
    lines = (line.partition(":") for line in reply.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


async def _fsyncs(driver: Driver, count: int) -> list[str | None]:
    """Each server's `appendfsync`; None where the account may not ask."""
    try:
        replies = await ask_all(driver, "CONFIG", "GET", "appendfsync")
    except Unavailable:
        return [None] * count
    return [_setting(reply) for reply in replies]


def _setting(reply: Any) -> str | None:
    values = list(reply.values()) if isinstance(reply, Mapping) else reply[1:2]
    if not values:
        return None
    return values[0].decode() if isinstance(values[0], bytes) else str(values[0])


def _refuse_unsafe(info: Info) -> None:
    policy = info.get("maxmemory_policy", "unknown")
    if policy != _SAFE_POLICY:
        raise EngineRefused(setting="maxmemory-policy", value=policy, needed=_SAFE_POLICY)
    if info.get("role", "master") != "master":
        raise EngineRefused(setting="role", value=info["role"], needed="master")


def _level(info: Info, fsync: str | None) -> str:
    if info.get("aof_enabled") != "1":
        return "memory"
    # What is not known counts as the weakest: a receipt must not promise too much.
    return _LEVEL_OF_FSYNC.get(fsync or "no", "memory")


def _name_and_version(info: Info) -> tuple[str, str]:
    if "valkey_version" in info:
        return "valkey", info["valkey_version"]
    return "redis", info.get("redis_version", "0")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _is_fixed(name: str, numbers: tuple[int, ...]) -> bool:
    lines = _FIXED[name]
    fixed = lines.get(numbers[:2])
    return numbers >= fixed if fixed else numbers > max(lines.values())


def _warnings(info: Info, fsync: str | None) -> list[str]:
    name, version = _name_and_version(info)
    numbers, found = _numbers(version), []
    if numbers < _MINIMUM:
        found.append(f"{name} {version} is older than any version that is tested here")
    if not _is_fixed(name, numbers):
        found.append(f"{name} {version} has known security holes in Lua scripting: upgrade")
    if info.get("aof_enabled") != "1":
        found.append("appendonly is off: a restart of the server loses boards")
    elif fsync is None:
        found.append("the server does not report its appendfsync: the weakest level is assumed")
    elif fsync == "no":
        found.append("appendfsync is no: a power loss may take half a minute of commits")
    if int(info.get("evicted_keys", "0")) > 0:
        found.append(f"{info['evicted_keys']} keys were evicted: boards may have lost parts")
    if info.get("aof_last_write_status", "ok") != "ok":
        found.append("the last write to the append-only file failed")
    return found
