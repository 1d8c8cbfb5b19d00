"""Whole messages go straight on, and fragments, as a proxy may make them, are put together."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

import blackboard
from blackboard.client.remote.channel import Channel, Open
from blackboard.client.remote.connect import Address
from blackboard.core.commit import Epoch, Head
from blackboard.errors import InvalidRequest, LocalProtocolError, Unavailable
from blackboard.limits import Limits
from blackboard.wire.answers import write_noun
from blackboard.wire.frames import MSGPACK
from tests.lowered import lowered
from tests.ports import free_port
from tests.waiting import wait_until

HEADS = [Head(revision, Epoch(1, "e"), 1) for revision in range(1, 5)]


def answer(number: int, result: Any) -> bytes:
    """A frame with one answer."""
    return MSGPACK.join([MSGPACK.pack({"id": number, "result": result})])


async def service(peer: ServerConnection) -> None:
    """Answers the second request, and then every other one, in three fragments."""
    heads = iter(HEADS)
    async for frame in peer:
        assert isinstance(frame, bytes)
        for request in MSGPACK.split(frame):
            if request["method"] == "hello":
                await peer.send(answer(request["id"], {"agent": "ada"}))
                continue
            head = next(heads)
            told = answer(request["id"], write_noun(head))
            parts = [told[:1], told[1:9], told[9:]]
            await peer.send(parts if head.revision % 2 == 0 else told)


async def test_fragments_are_put_together() -> None:
    """Before and after whole messages, which do not overtake them."""
    subprotocols = [Subprotocol("blackboard.v1+msgpack")]
    async with serve(service, "127.0.0.1", 0, subprotocols=subprotocols) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with blackboard.connect(f"ws://127.0.0.1:{port}", token="t") as client:
            board, told = client.board("b"), []

            async def ask() -> None:
                told.append(await board.head())

            await ask()
            await asyncio.gather(*(ask() for _ in HEADS[1:]))
            assert told == HEADS


@pytest.mark.limits(connect_pauses_ms=(0, 3_600_000))
async def test_what_is_no_frame_ends_the_connection(limits: Limits) -> None:
    """The client comes again, and says why once it has no patience left."""

    connections = 0

    async def rude(peer: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        async for frame in peer:
            assert isinstance(frame, bytes)
            (request,) = MSGPACK.split(frame)
            hello = request["method"] == "hello"
            await peer.send(answer(request["id"], {"agent": "ada"}) if hello else b"\xc1")

    subprotocols = [Subprotocol("blackboard.v1+msgpack")]
    async with serve(rude, "127.0.0.1", 0, subprotocols=subprotocols) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with blackboard.connect(url, token="t", patience_ms=60_000, limits=limits) as client:
            with pytest.raises(Unavailable, match="not msgpack"):
                await client.board("b").head()
        assert connections == 2


@pytest.mark.limits(connect_pauses_ms=(0, 1))
@pytest.mark.parametrize("status", [400, 403, 404])
async def test_a_proxy_that_does_not_know_the_service_for_a_moment_ends_no_client(
    limits: Limits, status: int
) -> None:
    """As during a rollout. Where the first connection fails so, it is another server."""
    answers = iter([None, *[HTTPStatus(status)] * 3, None])

    def proxy(peer: ServerConnection, _request: Request) -> Response | None:
        found = next(answers, HTTPStatus(status))
        return None if found is None else peer.respond(found, "no such service")

    async def brief(peer: ServerConnection) -> None:
        """Answers one request, and breaks the connection."""
        async for frame in peer:
            assert isinstance(frame, bytes)
            for request in MSGPACK.split(frame):
                if request["method"] != "hello":
                    await peer.send(answer(request["id"], write_noun(HEADS[0])))
                    return
                await peer.send(answer(request["id"], {"agent": "ada"}))

    subprotocols = [Subprotocol("blackboard.v1+msgpack")]
    async with serve(
        brief, "127.0.0.1", 0, subprotocols=subprotocols, process_request=proxy
    ) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with blackboard.connect(url, token="t", limits=limits, patience_ms=60_000) as client:
            for _ in range(2):
                assert await client.board("b").head() == HEADS[0]
        assert next(answers, "all") == "all"
        with pytest.raises(InvalidRequest, match="no such service"):
            async with blackboard.connect(url, token="t"):
                pass
        answers = iter([None])
        async with blackboard.connect(url, token="t", limits=limits, patience_ms=300) as client:
            assert await client.board("b").head() == HEADS[0]
            with pytest.raises(Unavailable, match="no connection in 300 ms: no such service"):
                await client.board("b").head()


async def test_a_service_that_stops_while_it_greets_is_unavailable() -> None:
    """Both messages in one frame: no request is sent on that connection any more."""

    async def leaving(peer: ServerConnection) -> None:
        async for frame in peer:
            assert isinstance(frame, bytes)
            (request,) = MSGPACK.split(frame)
            welcome = MSGPACK.pack({"id": request["id"], "result": {"agent": "ada"}})
            draining = MSGPACK.pack({"method": "draining", "params": {}})
            await peer.send(MSGPACK.join([welcome, draining]))

    subprotocols = [Subprotocol("blackboard.v1+msgpack")]
    async with serve(leaving, "127.0.0.1", 0, subprotocols=subprotocols) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        with pytest.raises(Unavailable, match="stopping"):
            async with blackboard.connect(url, token="t", patience_ms=300) as client:
                await client.board("b").head()


async def test_nobody_waits_for_a_connection_that_a_fault_of_ours_ended() -> None:
    @asynccontextmanager
    async def broken(_address: Address, _token: str | None) -> AsyncIterator[Open]:
        raise NameError("a fault of ours")
        yield

    opened = Channel(Address("ws://127.0.0.1:1", "t"), patience_ms=300, dial=broken)
    with pytest.raises(LocalProtocolError, match="a fault of ours"):
        async with asyncio.timeout(60):
            await opened.open()


async def test_the_first_connection_waits_for_a_service_that_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    url = f"ws://127.0.0.1:{port}"

    async def is_waiting() -> bool:
        return "no connection yet" in caplog.text

    with caplog.at_level(logging.WARNING):
        connecting = asyncio.ensure_future(
            blackboard.connect(
                url, token="t", patience_ms=60_000, limits=lowered(connect_wait_ms=60_000)
            )._begin()
        )
        await wait_until(is_waiting)
        subprotocol = Subprotocol("blackboard.v1+msgpack")
        async with serve(service, "127.0.0.1", port, subprotocols=[subprotocol]):
            client = await connecting
            try:
                assert await client.board("b").head() == HEADS[0]
            finally:
                await client.aclose()
    assert caplog.text.count("no connection yet") == 1


@pytest.mark.parametrize(("wait_ms", "patience_ms"), [(1, 60_000), (60_000, 1)])
async def test_it_says_why_when_it_gives_up(wait_ms: int, patience_ms: int) -> None:
    url = f"ws://127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match="Connect call failed"):
        await blackboard.connect(
            url, token="t", patience_ms=patience_ms, limits=lowered(connect_wait_ms=wait_ms)
        )


async def test_it_does_not_wait_where_waiting_does_not_help() -> None:
    attempts = 0

    @asynccontextmanager
    async def unknown(_address: Address, _token: str | None) -> AsyncIterator[Open]:
        nonlocal attempts
        attempts += 1
        raise socket.gaierror("Name or service not known")
        yield

    opened = Channel(Address("ws://nowhere.example", "t"), patience_ms=300, dial=unknown)
    with pytest.raises(Unavailable, match="not known"):
        await opened.open(60_000_000)
    assert attempts == 1
