"""A real service on a real port of this process, and clients of it, for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from blackboard.archive.sql import archive_beside
from blackboard.client.remote.link import connect
from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Conflict
from blackboard.integrity.tokens import issue, new_secret, verify
from blackboard.limits import Limits
from blackboard.server.http.app import create_app
from blackboard.server.http.handshake import Handshake, OriginPolicy
from blackboard.server.http.page import Page
from blackboard.server.http.serve import listen, serve_app
from blackboard.server.service import Service
from blackboard.server.settings import Settings, load
from tests.certificates import Pair
from tests.waiting import TIMEOUT_S

TOKEN_TTL_MS = 3_600_000


@dataclass(frozen=True)
class Served:
    """A service, the application around it, and where it answers."""

    service: Service
    app: Starlette
    port: int
    secret: str
    has_tls: bool = False

    @property
    def url(self) -> str:
        """For clients: `ws://127.0.0.1:<port>`, or `wss://...`."""
        return f"{'wss' if self.has_tls else 'ws'}://127.0.0.1:{self.port}"

    @property
    def gate(self) -> Handshake:
        """The open connections."""
        gate: Handshake = self.app.state.gate
        return gate

    def token(self, principal: Principal | None = None, ttl_ms: int = TOKEN_TTL_MS) -> str:
        """A token of `principal`, by default the operator."""
        return issue(self.secret, principal or access.operator(), ttl_ms)


@asynccontextmanager
async def serving(
    service: Service,
    *,
    port: int = 0,
    secret: str | None = None,
    origin_policy: OriginPolicy | None = None,
    pair: Pair | None = None,
    page: Page | None = None,
) -> AsyncIterator[Served]:
    """Serve `service` on a free port, or on `port`; with `pair`, over TLS.

    Leaving ends it as a signal would.
    """
    tls = {} if pair is None else {"tls_cert": pair.cert, "tls_key": pair.key}
    settings: Settings = load({"port": port, **tls})
    secret = secret or new_secret()
    app = create_app(service, partial(verify, secret), origin_policy=origin_policy, page=page)
    service.host.signer = partial(issue, secret)
    listener = listen(settings.host, port)
    started = asyncio.Event()
    running = asyncio.create_task(
        serve_app(app, listener, settings=settings, started=started.set, signals=False)
    )
    try:
        await asyncio.wait_for(started.wait(), TIMEOUT_S)
        yield Served(service, app, listener.getsockname()[1], secret, pair is not None)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        listener.close()


@asynccontextmanager
async def serving_a_used_service(directory: Path, limits: Limits) -> AsyncIterator[Served]:
    """A service with an archive, of which a board was watched, written, refused a commit, and
    restored."""
    store, archive = await SqliteStore.at(directory, "memory"), await archive_beside(directory)
    async with (
        Service(store, archive=archive, limits=limits) as service,
        serving(service) as served,
        connect(served.url, token=served.token()) as client,
    ):
        board = client.board("main")
        async with board.watch("public/**") as watch:
            await board.put("public/plan", 1)
            await anext(watch)
        with pytest.raises(Conflict):
            await board.put("public/plan", 2, expected=0)
        await board.checkpoint("before")
        await board.restore("before")
        yield served


async def scraped(served: Served, name: str) -> dict[str, float]:
    """The samples whose names begin with `name`, as a scrape of `/metrics` gets them."""
    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as http:
        text = (await http.get(f"http://127.0.0.1:{served.port}/metrics")).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(name)]
    return {sample: float(value) for sample, value in lines}
