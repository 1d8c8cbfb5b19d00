"""One attempt at a command, what became of it, and when it is made again."""

import asyncio
import contextlib
from pathlib import Path

import anyio
import pytest

from blackboard.engines.redis.driver import (
    Cluster,
    NotNowError,
    OneServer,
    RetryBudget,
    ScriptMissingError,
    ask,
    connect,
    repeated,
)
from blackboard.errors import Corrupt, InvalidRequest, Unavailable
from tests.faults.tcp_proxy import TcpProxy
from tests.lowered import lowered
from tests.ports import free_port
from tests.redis_process import RedisProcess
from tests.servers import RedisCluster3
from tests.waiting import wait_until


@pytest.mark.parametrize("url", ["http://x", "redis+sentinel://x", "x", "redis://h:port/0"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidRequest):
        connect(url)


async def test_the_address_shown_holds_no_password() -> None:
    """It goes into logs and error texts."""
    driver, shown = connect("redis://ada:secret@127.0.0.1:7000/2")
    assert shown == "127.0.0.1:7000/2"
    await driver.aclose()
    driver, shown = connect("redis+cluster://ada:secret@127.0.0.1:7000")
    assert shown == "127.0.0.1:7000"
    await driver.aclose()


async def test_an_attempt_without_connection_executed_nothing() -> None:
    """So the commit is certainly not done."""
    driver, trial = OneServer(f"redis://127.0.0.1:{free_port()}/0"), RetryBudget()
    with pytest.raises(NotNowError):
        await driver.send(trial, "", "PING")
    assert not trial.maybe_executed
    await driver.aclose()


async def test_an_attempt_without_answer_may_have_been_executed(redis_url: str) -> None:
    """An answered one was, and an error reply says that it was not."""
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    async with TcpProxy(port) as proxy:
        driver = OneServer(f"redis://127.0.0.1:{proxy.port}/0")
        answered, refused, lost = RetryBudget(), RetryBudget(), RetryBudget()
        assert await driver.send(answered, "", "EVAL", "return {1}", 0) == [1]
        assert not answered.maybe_executed
        with pytest.raises(ScriptMissingError):
            await driver.send(refused, "", "EVALSHA", "0" * 40, 0)
        assert not refused.maybe_executed
        proxy.drop_replies()
        with pytest.raises(NotNowError):
            await driver.send(lost, "", "EVAL", "return {1}", 0)
        assert lost.maybe_executed
        with pytest.raises(ScriptMissingError):
            await driver.send(lost, "", "EVALSHA", "0" * 40, 0)
        assert lost.maybe_executed  # the first attempt still may have been
        await driver.aclose()


@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("unable to perform operation on <TCPTransport closed=True>"),
        TypeError("'NoneType' object is not callable"),
    ],
    ids=["uvloop", "asyncio"],
)
async def test_a_socket_that_was_closed_before_it_is_written_to_is_a_lost_one(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, listening: bool, error: Exception
) -> None:
    """So say uvloop, and asyncio in Python 3.12; nobody above would take it for a lost engine."""
    driver, trial = OneServer(redis_url), RetryBudget()
    assert await driver.send(trial, "", "PING")

    def closed(*_: object) -> None:
        raise error

    async with contextlib.AsyncExitStack() as stack:
        heard = await stack.enter_async_context(driver.listening("")) if listening else None
        monkeypatch.setattr(asyncio.StreamWriter, "writelines", closed)
        with pytest.raises(NotNowError, match=type(error).__name__):
            await (heard.tell("PING") if heard else driver.send(trial, "", "PING"))
        monkeypatch.undo()
    assert await driver.send(RetryBudget(), "", "PING")
    await driver.aclose()


async def test_a_cancelled_attempt_never_answers_the_next(redis_url: str) -> None:
    """Its connection is closed: a reply that comes late belongs to nobody."""
    driver, trial = OneServer(redis_url), RetryBudget()
    for number in range(50):
        with anyio.move_on_after(0.0005 * number):
            await driver.send(trial, "", "BLPOP", "nothing", 1)
        assert await driver.send(RetryBudget(), "", "ECHO", number) == b"%d" % number
    assert trial.maybe_executed  # at least one was cancelled while it waited for its answer
    await driver.aclose()


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("return redis.error_reply('ERR broken')", Corrupt),
        ("return redis.error_reply('WRONGTYPE broken')", Corrupt),
        ("return redis.error_reply('OOM no memory')", Unavailable),
        ("return redis.error_reply('MISCONF no disk')", Unavailable),
        ("return redis.error_reply('NOREPLICAS too few')", Unavailable),
        ("return redis.error_reply('READONLY replica')", NotNowError),
        ("return redis.error_reply('LOADING data')", NotNowError),
        ("return redis.error_reply('CLUSTERDOWN slot')", NotNowError),
    ],
)
async def test_an_error_reply_says_whether_to_come_again(
    redis_url: str, script: str, kind: type[Exception]
) -> None:
    """Only what ends by itself is tried again; what looks like damage may have been executed."""
    driver, trial = OneServer(redis_url), RetryBudget()
    with pytest.raises(kind):
        await driver.send(trial, "", "EVAL", script, 0)
    assert trial.maybe_executed == (kind is Corrupt)
    await driver.aclose()


async def test_a_reader_comes_again_when_its_server_becomes_a_replica(redis_binary: Path) -> None:
    """The server ends each blocked command with an error of its own; nothing is damaged."""
    async with RedisProcess(redis_binary) as server:
        driver, trial = OneServer(server.url), RetryBudget()
        blocked = ("XREAD", "BLOCK", 600_000, "STREAMS", "log", "0-0")
        reading = asyncio.create_task(driver.send(trial, "", *blocked))

        async def is_blocked() -> bool:
            return b"blocked_clients:1" in await driver.send(RetryBudget(), "", "INFO", "clients")

        await wait_until(is_blocked)
        await driver.send(RetryBudget(), "", "REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(NotNowError, match="UNBLOCKED"):
            await reading
        assert not trial.maybe_executed
        await driver.aclose()


async def test_a_wrong_password_is_not_tried_again(redis_binary: Path) -> None:
    """Waiting does not make it right."""
    async with RedisProcess(redis_binary) as server:
        driver = OneServer(server.url.replace("redis://", "redis://ada:wrong@"))
        with anyio.fail_after(60), pytest.raises(Unavailable):
            await ask(driver, "", "PING")
        await driver.aclose()


async def test_attempts_end_when_time_is_up() -> None:
    """Whether an attempt fails or hangs."""
    limits = lowered(engine_retry_ms=1_000).engine
    attempts = 0

    async def fails() -> None:
        nonlocal attempts
        attempts += 1
        raise NotNowError("later")

    with anyio.fail_after(60), pytest.raises(Unavailable) as refused:
        await repeated(fails, RetryBudget(limits))
    assert refused.value.reason == "later"
    assert 2 <= attempts <= 20
    with anyio.fail_after(60), pytest.raises(Unavailable):
        await repeated(anyio.sleep_forever, RetryBudget(limits))


async def test_a_cancellation_that_an_attempt_swallowed_counts() -> None:
    """A driver may answer a cancellation with the error of the connection that it closed."""
    waiting = asyncio.Event()

    async def swallows() -> None:
        waiting.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            raise NotNowError("connection closed") from None

    task = asyncio.create_task(repeated(swallows, RetryBudget()))
    await waiting.wait()
    task.cancel()
    with anyio.fail_after(60), pytest.raises(asyncio.CancelledError):
        await task


async def test_a_closed_driver_opens_no_connection(redis_url: str) -> None:
    """Somebody who was cancelled and did not notice may still use it."""
    driver = OneServer(redis_url)
    await driver.send(RetryBudget(), "", "PING")
    await driver.aclose()
    with pytest.raises(Unavailable):
        await driver.send(RetryBudget(), "", "PING")
    assert driver._pool.made == []


async def test_a_connection_that_the_pool_forgot_is_closed(redis_url: str) -> None:
    """As it does when a release is cancelled while it closes the connection."""
    driver = OneServer(redis_url)
    await driver.send(RetryBudget(), "", "PING")
    [forgotten] = driver._pool.made
    driver._pool._available_connections.clear()
    assert forgotten.is_connected
    await driver.aclose()
    assert not forgotten.is_connected


async def test_a_cluster_that_lost_its_map_is_closed_all_the_same(
    redis_cluster: RedisCluster3,
) -> None:
    """After a failure redis-py reads the map of the nodes again, and until then closes none."""
    driver = Cluster(redis_cluster.url)
    assert await ask(driver, "a", "EXISTS", "a") == 0
    client = driver._client
    connections = [one for node in client.get_nodes() for one in node._connections]
    assert any(connection.is_connected for connection in connections)
    client._initialize = True  # as after a ConnectionError
    await driver.aclose()
    assert not any(connection.is_connected for connection in connections)
