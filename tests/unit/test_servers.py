"""The servers that other tests rely on are what they say."""

import pytest
from redis.asyncio.cluster import RedisCluster

from tests.redis_process import RedisProcess
from tests.servers import RedisCluster3, ask, server_binaries
from tests.waiting import wait_until


async def test_the_cluster_spreads_keys_over_three_nodes(redis_cluster: RedisCluster3) -> None:
    """A cluster client writes everywhere, and each node holds its part."""
    await redis_cluster.flush()
    async with RedisCluster.from_url(redis_cluster.url) as client:
        for number in range(64):
            await client.set(f"{{board{number}}}:m", number)
        assert await client.get("{board7}:m") == b"7"
    sizes = [await ask(node, "DBSIZE") for node in redis_cluster.nodes]
    assert sum(map(int, map(str, sizes))) == 64
    assert 0 not in sizes


async def test_a_cluster_node_comes_back_after_a_crash() -> None:
    """A killed master restarts with its slots and its data."""
    async with RedisCluster3(server_binaries()[0].path) as cluster:
        async with RedisCluster.from_url(cluster.url) as client:
            await client.set("{board}:m", "kept")
            node = client.get_node_from_key("{board}:m")
        assert node is not None
        owner = next(process for process in cluster.nodes if process.port == node.port)
        await owner.kill()
        await owner.restart()
        await cluster.wait_until_ok()
        async with RedisCluster.from_url(cluster.url) as client:
            assert await client.get("{board}:m") == b"kept"


async def test_the_shared_server_is_empty_for_each_test(
    redis_url: str, redis_server: RedisProcess
) -> None:
    """What an earlier test wrote is gone."""
    assert redis_url == redis_server.url
    assert await ask(redis_server, "DBSIZE") == 0
    await ask(redis_server, "SET", "left", "over")


test_it_is_empty_for_the_next_test_too = test_the_shared_server_is_empty_for_each_test


async def test_waiting_is_bounded() -> None:
    """A condition that never holds is a TimeoutError, not a hang."""

    async def never() -> bool:
        return False

    with pytest.raises(TimeoutError):
        await wait_until(never, timeout_s=0.05)
