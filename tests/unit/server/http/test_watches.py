"""The watches of a connection: what is sent at once, what waits, and in which order."""

import asyncio
import random
from typing import Any

import pytest

import blackboard
from blackboard.core import access
from blackboard.errors import Unauthenticated
from blackboard.limits import DEFAULT
from blackboard.server.overload.charges import DELIVERY_US, Shares
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from tests.serving import Served
from tests.unit.server.http.conversation import PATIENCE_S, Talk, talking

pytestmark = pytest.mark.limits(progress_interval_ms=3_600_000)
ROOM = DEFAULT.watch.watch_batch_bytes_max
both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)


async def _true(value: bool) -> bool:
    return value


async def watch(talk: Talk, number: int, patterns: list[str], request: int = 1) -> None:
    """Open a watch."""
    params = {"board": "b", "watch": number, "patterns": patterns}
    answer = await talk.ask(request, "watch", params)
    assert "result" in answer, answer


def revisions(message: Any) -> list[int]:
    """The revisions of a delivery."""
    return [each["revision"] for each in message["params"]["revisions"]]


@both
async def test_a_delivery_is_sent_without_the_pump_and_the_writer(
    served: Served, encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the peer keeps up, neither task of its connection is woken."""
    costs: list[float] = []
    sent: list[bytes] = []
    async with (
        blackboard.connect(served.url, token=served.token()) as client,
        talking(served.url, served.token(), encoding=encoding, greeting={}) as talk,
    ):
        board = client.board("b")
        await board.put("public/a", 0)
        await watch(talk, 1, ["public/**"])
        [connection] = [each for each in served.gate._open if len(each._watches)]
        at_once, send = Shares.at_once, connection._socket.send

        def noted(shares: Shares, account: str, cost_us: float) -> bool:
            costs.append(cost_us)
            return at_once(shares, account, cost_us)

        async def noted_send(frame: bytes) -> None:
            sent.append(frame)
            await send(frame)

        monkeypatch.setattr(Shares, "at_once", noted)
        monkeypatch.setattr(connection._socket, "send", noted_send)
        for number in range(20):
            receipt = await board.put("public/a", number)
            assert revisions(await talk.receive()) == [receipt.revision]
        assert costs
        assert DELIVERY_US not in costs
        assert sent == []
        [opened] = connection._watches._open.values()
        assert opened.sent is not None
        assert opened.sent.revision == receipt.revision


@both
async def test_many_watches_of_a_connection_share_a_frame(
    served: Served, encoding: Encoding
) -> None:
    """Not a frame, and a system call, for each of them."""
    async with (
        blackboard.connect(served.url, token=served.token()) as client,
        talking(served.url, served.token(), encoding=encoding, greeting={}) as talk,
    ):
        board = client.board("b")
        await board.put("public/a", 0)
        for number in range(10):
            await watch(talk, number, ["public/**"], number + 1)
        await board.put("public/a", 1)
        message = await talk.receive()
        told = [message, *talk.waiting]
        assert {each["params"]["watch"] for each in told} == set(range(10))


@both
async def test_a_peer_that_reads_now_and_then_misses_nothing(
    served: Served, encoding: Encoding
) -> None:
    """It fills its socket again and again, so that deliveries change between the ways to it."""
    chance = random.Random(7)
    async with (
        blackboard.connect(served.url, token=served.token()) as client,
        talking(served.url, served.token(), encoding=encoding, greeting={}) as talk,
    ):
        board = client.board("b")
        await board.put("public/a", 0)
        await watch(talk, 1, ["public/**"])
        got: list[int] = []

        async def read() -> None:
            while not got or got[-1] < last:
                got.extend(revisions(await talk.receive()))

        last = 1_000_000
        reading = asyncio.create_task(read())
        try:
            for _ in range(12):
                talk.socket.transport.pause_reading()
                for _ in range(chance.randrange(1, 12)):
                    size = chance.choice([1, 1, 60_000, 400_000])
                    receipt = await board.put("public/a", b"x" * size)
                talk.socket.transport.resume_reading()
            last = receipt.revision
            await board.put("public/a", "end")
            async with asyncio.timeout(PATIENCE_S):
                await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    assert got[: last - 1] == list(range(2, last + 1))


async def test_little_waits_for_a_watcher_that_stopped_reading(served: Served) -> None:
    """Its deliveries stay in the log, beyond what one delivery holds; it gets them when it reads
    again, and others get theirs meanwhile."""
    async with (
        blackboard.connect(served.url, token=served.token()) as client,
        talking(served.url, served.token(), encoding=MSGPACK, greeting={}) as stalled,
        talking(served.url, served.token(), encoding=MSGPACK, greeting={}) as other,
    ):
        board = client.board("b")
        await board.put("public/a", 0)
        await watch(stalled, 1, ["public/**"])
        await watch(other, 1, ["public/**"])
        stalled.socket.transport.pause_reading()
        value = b"x" * (ROOM // 4)
        for _ in range(100):
            receipt = await board.put("public/a", value)
            assert revisions(await other.receive()) == [receipt.revision]
            assert served.gate.waiting_bytes < 2 * ROOM
        stalled.socket.transport.resume_reading()
        got: list[int] = []
        while not got or got[-1] < receipt.revision:
            got += revisions(await stalled.receive())
    assert got == list(range(2, receipt.revision + 1))


async def test_after_unwatch_is_answered_nothing_comes_for_it(served: Served) -> None:
    """While others commit all the time."""
    async with (
        blackboard.connect(served.url, token=served.token()) as client,
        talking(served.url, served.token(), encoding=MSGPACK, greeting={}) as talk,
    ):
        board = client.board("b")
        await board.put("public/a", 0)

        async def write() -> None:
            while True:
                await board.increment("public/n")

        writing = asyncio.create_task(write())
        try:
            for number in range(1, 30):
                params = {"board": "b", "watch": number, "patterns": ["public/**"]}
                await talk.send({"id": 2 * number, "method": "watch", "params": params})
                gone = {"watch": number}
                await talk.send({"id": 2 * number + 1, "method": "unwatch", "params": gone})
                answered = False
                while not answered:
                    message = await talk.receive()
                    if "method" in message:
                        assert message["params"]["watch"] == number
                    answered = message.get("id") == 2 * number + 1
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def test_a_revoked_agent_gets_no_delivery_that_others_get(served: Served) -> None:
    """They share a view and its frames; its own token is checked before each delivery."""
    rita = served.token(access.agent("rita"))
    async with (
        blackboard.connect(served.url, token=served.token()) as client,
        blackboard.connect(served.url, token=rita) as revoked,
        blackboard.connect(served.url, token=served.token(access.agent("sam"))) as other,
    ):
        board = client.board("b")
        await board.put("public/a", 0)
        async with (
            revoked.board("b").watch("public/**") as first,
            other.board("b").watch("public/**") as second,
        ):
            await board.put("public/a", 1)
            assert (await anext(first)).changes == (await anext(second)).changes
            await client.revoke(principal="rita")
            receipt = await board.put("public/a", 2)
            assert (await anext(second)).revision == receipt.revision
            with pytest.raises(Unauthenticated):
                await asyncio.wait_for(anext(first), PATIENCE_S)
