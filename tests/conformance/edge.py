"""A service on a real socket of this process, for tests that connect to it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial

import uvicorn

from blackboard.core.access import Narrowing, Principal
from blackboard.integrity.tokens import attenuate, issue, new_secret, verify
from blackboard.limits import FRAME_BYTES_MAX
from blackboard.server.http.app import create_app
from blackboard.server.http.serve import listen
from blackboard.server.service import Service

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a service is reached, and how one gets in."""

    url: str
    secret: str

    def token(self, principal: Principal) -> str:
        """A token of `principal`, valid for an hour; narrowed, if the principal's is."""
        whole = issue(self.secret, replace(principal, name=principal.account), HOUR_MS)
        if principal.account == principal.name:
            return whole
        return attenuate(whole, Narrowing(name=principal.name))


@contextlib.asynccontextmanager
async def serving(service: Service) -> AsyncIterator[Edge]:
    """Serve `service` on a port of its own until the block ends."""
    secret = new_secret()
    app = create_app(service, partial(verify, secret))
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        ws_max_size=FRAME_BYTES_MAX,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with contextlib.closing(listen("127.0.0.1", 0)) as listener:
        # Without `Server.serve`, whose main loop takes 0.1 s to notice that it should end.
        await server.startup([listener])
        try:
            yield Edge(f"ws://127.0.0.1:{listener.getsockname()[1]}", secret)
        finally:
            await app.state.gate.drain()
            await server.shutdown([listener])
