"""uvicorn as this command runs it: ended by a cancellation, and quiet."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.applications import Starlette

HTTP_CONNECTIONS_MAX: Final = 1_024
"""Connections at a time; a subscription keeps one."""
GRACE_S: Final = 2
"""How long requests have to end when the server stops; subscriptions do not end by themselves."""


class _HttpServer(uvicorn.Server):
    """Leaves signals to the command."""

    def __init__(self, config: uvicorn.Config, greet: Callable[[], None]) -> None:
        super().__init__(config)
        self._greet = greet

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, then say so."""
        await super().startup(sockets)
        self._greet()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As of uvicorn, which would handle them itself."""
        yield


async def serve_http(app: Starlette, listener: socket.socket, greet: Callable[[], None]) -> None:
    """Serve on a bound socket; `greet` is called once connections are accepted.

    Cancellation: an orderly end, within GRACE_S.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        log_level="warning",
        limit_concurrency=HTTP_CONNECTIONS_MAX,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        proxy_headers=False,
    )
    server = _HttpServer(config, greet)
    running = asyncio.create_task(server.serve(sockets=[listener]), name="uvicorn")
    try:
        # Shielded: uvicorn ends in order only if it is asked to, and not if it is cancelled.
        await asyncio.shield(running)
    except asyncio.CancelledError:
        server.should_exit = True
        await running
        raise
