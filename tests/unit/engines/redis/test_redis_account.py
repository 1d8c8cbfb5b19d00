"""The account of the documentation may do what is needed, and nothing else."""

import re
from pathlib import Path

import pytest
from redis.asyncio import Redis

from blackboard.cli import doctor as checks
from blackboard.engines.redis.account import ERASES, NEEDED, TOLD, RedisAccount, command_of
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import EngineRefused, Unavailable
from blackboard.server.settings import load
from tests.redis_accounts import PASSWORD, acl_lines, make_account
from tests.redis_process import RedisProcess
from tests.servers import RedisCluster3, ask
from tests.source_tree import ROOT

_CALL = re.compile(r"(?:call|pcall)\('([A-Z]+)'")
_SENT = re.compile(
    r"(?:(?:budget|_once\(\)|_driver), [\w\[\]]+, |command = \(|ask_all\((?:driver, )?|tell\("
    r"|send_command\()"
    r"\"([A-Z]+)\""
)
_REFUSED = re.compile(r"permission|user executing the script can't")


def test_the_lines_of_the_page_are_what_is_needed() -> None:
    """No more and no less; `reset` takes everything else away."""
    words = [word for line in acl_lines() for word in line]
    assert words[3] == "reset"
    given = {word[1:] for word in words if word.startswith("+")}
    assert given == {command_of(line) for line in (*NEEDED, TOLD, ERASES)}
    assert not any(word.startswith(("+@", "allkeys", "nopass")) for word in words)


def test_every_command_of_the_engine_is_in_the_list() -> None:
    """What scripts run and what the driver sends, found in their texts."""
    folder = ROOT / "blackboard/engines/redis"
    scripts = "".join(path.read_text("utf-8") for path in folder.glob("scripts/*.lua"))
    own = {"account.py", "process.py", "redlock.py"}
    modules = [path for path in folder.glob("*.py") if path.name not in own]
    sources = "".join(path.read_text("utf-8") for path in modules)
    found = {name.lower() for name in (*_CALL.findall(scripts), *_SENT.findall(sources))}
    assert {"xadd", "hset", "sadd", "xread", "evalsha"} <= found
    assert found - {"config", command_of(ERASES)} <= {command_of(line) for line in NEEDED}


async def test_it_is_right_and_everything_else_is_refused(redis_url: str) -> None:
    """Other commands, and keys that are not a board's."""
    url = make_account(redis_url)
    store = RedisStore.connect(url)
    assert await store.account() == RedisAccount((), ())
    assert PASSWORD not in repr(await store.facts())
    await store.aclose()
    async with Redis.from_url(url) as client:
        for command in (
            "FLUSHALL",
            "KEYS *",
            "CONFIG SET save 1",
            "ACL LIST",
            "GET {b}:m",
            "MONITOR",
        ):
            with pytest.raises(Exception, match=_REFUSED):
                await client.execute_command(*command.split())
        for command in ("HGET other f", "HSET {b f v", "XADD blackboard:other * f v"):
            with pytest.raises(Exception, match=_REFUSED):
                await client.execute_command(*command.split())
        with pytest.raises(Exception, match=_REFUSED):
            await client.eval("return redis.call('FLUSHALL')", 0)


async def test_an_account_that_may_not_do_enough_is_refused_before_anything_is_written(
    redis_binary: Path,
) -> None:
    """A script that is refused half way would leave a board torn."""
    async with RedisProcess(redis_binary) as server:
        url = make_account(server.url, "-hdel", "-spublish", "resetkeys", "~{*}:*")
        store = RedisStore.connect(url)
        with pytest.raises(EngineRefused) as refused:
            await store.facts()
        await store.aclose()
        assert refused.value.value == "without sadd, sismember, smembers, srem, hdel, spublish"
        assert await ask(server, "DBSIZE") == 0
        told = await checks.engine(load({"engine": url}))
        assert [finding.status for finding in told] == ["fail"]
        assert "hdel" in told[0].text
        assert PASSWORD not in repr(told)


async def test_an_account_without_the_right_to_ask_gets_an_error(redis_binary: Path) -> None:
    """The server's own words name the command."""
    async with RedisProcess(redis_binary) as server:
        store = RedisStore.connect(make_account(server.url, "-eval"))
        with pytest.raises(Unavailable, match="'eval'"):
            await store.facts()
        await store.aclose()


async def test_doctor_tells_of_rights_that_are_too_many(redis_binary: Path) -> None:
    """And, of the account of the page, that there are none."""
    async with RedisProcess(redis_binary) as server:
        url = make_account(server.url)
        (account,) = [f for f in await checks.engine(load({"engine": url})) if f.check == "account"]
        assert account.status == "ok"
        url = make_account(server.url, "+flushall", "+config", "~*")
        (account,) = [f for f in await checks.engine(load({"engine": url})) if f.check == "account"]
        assert account.status == "warn"
        for name in ("flushall", "config|set", "keys of others"):
            assert name in account.text
        assert "deploy_redis" in account.fix
        (account,) = [
            f for f in await checks.engine(load({"engine": server.url})) if f.check == "account"
        ]
        assert "shutdown" in account.text


@pytest.mark.parametrize("line", acl_lines()[1:], ids=lambda line: line[3])
async def test_each_right_is_missed(redis_url: str, line: list[str]) -> None:
    """Whichever is taken away is named."""
    for right in line[3:]:
        store = RedisStore.connect(make_account(redis_url, right.replace("+", "-")))
        if right in ("+info", "+config|get", "+bgrewriteaof"):
            await store.aclose()
            continue
        if right in ("+eval",):
            with pytest.raises(Unavailable):
                await store.account()
        else:
            assert (await store.account()).lacking == (right[1:],)
        await store.aclose()


async def test_a_cluster_needs_two_more(redis_cluster: RedisCluster3) -> None:
    """The account works on every node; what it may not do is asked of each."""
    await redis_cluster.flush()  # others have used it
    for node in redis_cluster.nodes:
        url = make_account(node.url, cluster=True)
    store = RedisStore.connect(url.replace("redis://", "redis+cluster://"))
    try:
        for name in ("a", "b", "c", "d"):
            await store.open(name)
        assert await store.boards() == ["a", "b", "c", "d"]
        assert await store.account() == RedisAccount((), ())
        make_account(redis_cluster.nodes[1].url, "-xadd", cluster=True)
        assert (await store.account()).lacking == ("xadd",)
    finally:
        await store.aclose()
        for node in redis_cluster.nodes:
            await ask(node, "ACL DELUSER blackboard")
        await redis_cluster.flush()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{PASSWORD}/x@127.0.0.1:1",
        f"redis://:{PASSWORD}@127.0.0.1:port",
        f"redis://user:pass:{PASSWORD}@[::1",
        f"mysql://user:{PASSWORD}@127.0.0.1",
        f"{PASSWORD}://x",
    ],
)
async def test_no_password_is_in_what_is_said_of_a_url(url: str) -> None:
    """After a slash in it Python takes what is before for a port, and shows it."""
    (finding,) = await checks.engine(load({"engine": url}))
    assert finding.status == "fail"
    assert PASSWORD not in repr(finding)
    assert "canary" not in repr(finding)
