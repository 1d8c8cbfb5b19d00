"""What a server is, what an answer of it survives, and when it is refused."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from blackboard.engines.redis.store import RedisStore
from blackboard.errors import EngineRefused
from tests.canary import files_with
from tests.redis_process import RedisProcess, RedisSettings


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        (RedisSettings(fsync="always"), "disk"),
        (RedisSettings(fsync="everysec"), "second"),
        (RedisSettings(fsync="no"), "memory"),
        (RedisSettings(options={"appendonly": "no"}), "memory"),
    ],
)
async def test_the_level_is_that_of_the_servers_file(
    redis_binary: Path, settings: RedisSettings, level: str
) -> None:
    """What an answer survives is not promised but asked."""
    async with RedisProcess(redis_binary, settings=settings) as server:
        store = RedisStore.connect(server.url)
        facts = await store.facts()
        assert facts.level == level
        assert facts.name in ("redis", "valkey")
        assert facts.location == f"127.0.0.1:{server.port}/0"
        assert any("appendonly" in text or "appendfsync" in text for text in facts.warnings) == (
            level == "memory"
        )
        await store.aclose()


async def test_a_server_that_evicts_is_refused(redis_binary: Path) -> None:
    """It would tear boards apart without a word; the setting may also change later."""
    settings = RedisSettings(memory_policy="allkeys-lru")
    async with RedisProcess(redis_binary, settings=settings) as server:
        store = RedisStore.connect(server.url)
        with pytest.raises(EngineRefused) as refused:
            await store.facts()
        assert refused.value.fields() == {
            "setting": "maxmemory-policy",
            "value": "allkeys-lru",
            "needed": "noeviction",
        }
        async with Redis.from_url(server.url) as redis:
            used = (await redis.info("memory"))["used_memory"]
            await redis.config_set("maxmemory", str(used + 200_000))
            for number in range(1000):
                await redis.set(f"junk{number}", b"x" * 1000)
            await redis.config_set("maxmemory-policy", "noeviction")
        facts = await store.facts()
        assert any("evicted" in text for text in facts.warnings)
        await store.aclose()


async def test_a_replica_is_refused(redis_server: RedisProcess, redis_binary: Path) -> None:
    """It may be behind, and what it is given is not kept."""
    async with RedisProcess(redis_binary) as server:
        async with Redis.from_url(server.url) as redis:
            await redis.execute_command("REPLICAOF", "127.0.0.1", redis_server.port)
        store = RedisStore.connect(server.url)
        with pytest.raises(EngineRefused) as refused:
            await store.facts()
        assert refused.value.fields() == {"setting": "role", "value": "slave", "needed": "master"}
        await store.aclose()


async def test_old_versions_are_warned_of(redis_store: RedisStore) -> None:
    """Redis 7.0 has no fix for the holes in Lua; Valkey 9 has."""
    facts = await redis_store.facts()
    is_old = facts.name == "redis" and facts.version.startswith("7.0")
    assert any("security" in text for text in facts.warnings) == is_old


async def test_an_account_without_config_counts_as_weakest(redis_binary: Path) -> None:
    """Managed servers do not tell their settings."""
    async with RedisProcess(redis_binary) as server:
        async with Redis.from_url(server.url) as redis:
            await redis.execute_command(
                *("ACL", "SETUSER", "board", "on", ">secret", "~*", "&*", "+@all", "-config")
            )
        store = RedisStore.connect(server.url.replace("redis://", "redis://board:secret@"))
        try:
            facts = await store.facts()
        finally:
            await store.aclose()
        assert facts.level == "memory"
        assert any("does not report" in text for text in facts.warnings)
        assert "secret" not in facts.location


async def test_a_rewrite_that_began_before_the_deletion_does_not_count(redis_binary: Path) -> None:
    """The server rewrites its file by itself, too, with what was there when it began."""
    # Of each key the rewrite waits for so many microseconds; a running one does not notice changes.
    settings = RedisSettings(options={"rdb-key-save-delay": "500000"})
    async with RedisProcess(redis_binary, settings=settings) as server:
        async with Redis.from_url(server.url) as redis:
            await redis.mset({"doomed": "canary", **{f"key{n}": "" for n in range(5)}})
            await redis.bgrewriteaof()
            await redis.config_set("rdb-key-save-delay", "0")
            await redis.delete("doomed")
        store = RedisStore.connect(server.url)
        assert await store.scrub("main") == ""
        assert not files_with(server.directory, b"canary")
        await store.aclose()
