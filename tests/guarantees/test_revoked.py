"""Nothing is done under a token after its revocation was answered, whichever process was frozen
meanwhile.

Two service processes over one Redis. One is stopped by a signal, with clients connected to it whose
commits pile up before its door; the token is revoked through the other one; then the stopped one
goes on, and carries out what it has, before or after it hears of the revocation.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from blackboard.core import access
from blackboard.integrity.tokens import issue, unverified
from tests.guarantees.processes import HOUR_MS, ServiceProcess

PATIENCE_S = 120
COMMITS = 40
CONNECTIONS = 4
PROTOCOL = Subprotocol("blackboard.v1+json")


async def greeted(service: ServiceProcess, token: str) -> ClientConnection:
    """A connection that has said hello."""
    headers = {"Authorization": f"Bearer {token}"}
    socket = await connect(
        f"{service.url}/v1", subprotocols=[PROTOCOL], additional_headers=headers, proxy=None
    )
    await socket.send('[{"id":0,"method":"hello"}]')
    await socket.recv()
    return socket


def put(number: int, key: str, epoch: str) -> dict[str, Any]:
    """A commit that writes `key`."""
    params = {
        "board": "main",
        "epoch": epoch,
        "id": {"lane": 0, "incarnation": f"{number}", "step": 1},
        "ops": [{"kind": "put", "key": key, "value": number}],
    }
    return {"id": number, "method": "commit", "params": params}


async def answers(socket: ClientConnection) -> list[dict[str, Any]]:
    """What comes until the service ends the connection."""
    found: list[dict[str, Any]] = []
    try:
        async for frame in socket:
            found += json.loads(frame)
    except ConnectionClosed:
        pass
    return found


async def test_a_frozen_process_does_nothing_under_a_revoked_token(
    redis_url: str, tmp_path: Path
) -> None:
    """Not one of many commits that were waiting when it was let go on took effect."""
    async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
        one = await stack.enter_async_context(ServiceProcess(redis_url, tmp_path / "one"))
        two = await stack.enter_async_context(
            ServiceProcess(redis_url, tmp_path / "two", secret=one.secret)
        )
        operator = await stack.enter_async_context(one.connect())
        board = operator.board("main")
        token = issue(one.secret, access.agent("ada"), HOUR_MS)
        epoch = (await board.head()).epoch.id
        sockets = [await greeted(two, token) for _ in range(CONNECTIONS)]
        await sockets[0].send(json.dumps([put(1, "public/first", epoch)]))
        assert "result" in json.loads(await sockets[0].recv())[0]
        before = await board.head()

        two.pause()
        for number, socket in enumerate(sockets):
            wishes = [put(n, f"public/{number}/{n}", epoch) for n in range(2, COMMITS + 2)]
            for spec in wishes:
                await socket.send(json.dumps([spec]))
        credential = unverified(token).credential
        assert credential is not None
        await operator.link.revoke(tokens=[credential.ids[-1]])
        two.resume()

        told = [answer for socket in sockets for answer in await answers(socket)]
        after = await board.head()
        assert [answer for answer in told if "result" in answer] == []
        assert after.revision == before.revision
