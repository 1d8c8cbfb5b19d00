"""The service as one ASGI application: WebSocket, JSON-RPC by POST, the page, health, metrics.

`create_app(service, authenticator)` can be mounted in an application of yours;
`server/http/serve.py` runs it on a port of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from blackboard import telemetry
from blackboard.core.access import Principal
from blackboard.errors import (
    BlackboardError,
    LimitExceeded,
    Overloaded,
    RateLimited,
    RemoteProtocolError,
    Unauthenticated,
    Unavailable,
)
from blackboard.limits import FRAME_BYTES_MAX
from blackboard.server.http.dispatch import call, describe, is_read
from blackboard.server.http.documents import DocumentDoor
from blackboard.server.http.handshake import (
    Authenticator,
    Handshake,
    OriginPolicy,
    Receive,
    Scope,
    Send,
    abort_of,
    bearer_token,
    header,
    release_of,
    trust_of,
)
from blackboard.server.http.metrics import Metrics
from blackboard.server.http.page import Page
from blackboard.server.http.schema import asyncapi
from blackboard.server.overload.admission import Admission
from blackboard.server.overload.charges import READ_US
from blackboard.server.service import Service
from blackboard.units import Milliseconds
from blackboard.wire.errors import write_error
from blackboard.wire.frames import CLOSE_TOO_BIG, JSON
from blackboard.wire.methods import CommitParams, WhoAmIParams
from blackboard.wire.session import RequestReceived, ServerSession

Handler = Callable[[Request], Awaitable[Response]]
_PIECE_BYTES: Final = 64 * 1024
_READY_S: Final = 1.0  # the engine is asked at most this often


def create_app(
    service: Service,
    authenticator: Authenticator,
    *,
    origin_policy: OriginPolicy | None = None,
    page: Page | None = None,
) -> Starlette:
    """The application of a running `service`; `app.state.gate` is its `Handshake`, to be drained,
    and `app.state.metrics` its `Metrics`.

    `authenticator` turns a bearer token into a principal or raises Unauthenticated. `origin_policy`
    has the allowed hosts and origins: by default any host, and no web page. With `page`, it is
    served at `/`, and is a web page that may connect.
    """
    origin_policy = origin_policy or OriginPolicy()
    gate = Handshake(
        service, authenticator, origin_policy if page is None else replace(origin_policy, own=True)
    )
    routes = _Routes(gate)
    app = Starlette(
        routes=[
            *(() if page is None else _page_routes(page, routes)),
            WebSocketRoute("/v1", gate),
            WebSocketRoute("/v1/boards/{board}/docs/{key:path}", DocumentDoor(gate)),
            Route("/v1/rpc", routes.behind_doors(routes.rpc), methods=["POST"]),
            Route("/v1/schema", routes.behind_doors(routes.schema)),
            Route("/healthz", routes.healthz),
            Route("/readyz", routes.behind_doors(routes.readyz)),
            Route("/metrics", routes.behind_doors(routes.metrics)),
        ]
    )
    # The redirect for a slash at the end would name whatever host the request does, unchecked.
    app.router.redirect_slashes = False
    app.state.gate, app.state.metrics = gate, routes.counted
    return app


def _page_routes(page: Page, routes: "_Routes") -> list[Route]:
    return [
        Route("/", routes.behind_doors(page.index)),
        Route("/page/enter", routes.behind_doors(page.enter), methods=["POST"]),
        Route("/page/{path:path}", routes.behind_doors(page.file)),
    ]


class _Routes:
    """The handlers of plain HTTP requests."""

    def __init__(self, gate: Handshake) -> None:
        self._gate = gate
        self.counted = Metrics(
            gate.traffic,
            statistics=gate.service.statistics,
            sockets=lambda: (gate.connections, gate.waiting_bytes),
        )
        self._looked_at = 0.0
        self._failure: str | None = None

    def behind_doors(self, answer: Handler) -> Handler:
        """`answer`, if this Host and Origin are allowed; else 403. It continues the request's
        trace."""

        async def guarded(request: Request) -> Response:
            with telemetry.entering(header(request.scope, b"traceparent")):
                unknown = self._gate.origin_policy.refusal(request.scope)
                if unknown is None:
                    return await answer(request)
                self._gate.note_refusal(unknown)
                return JSONResponse({"reason": unknown}, 403)

        return guarded

    async def healthz(self, _: Request) -> Response:
        """The process is alive. Any Host is allowed, because the answer only says that it
        listens."""
        return JSONResponse({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        """The engine answers too, and the service takes requests.

        It also reports which engine that is, how many warnings there are, and how far archive and
        backup are behind. That does not affect readiness, because no commit waits for them.
        """
        reason = "stopping" if self._gate.stopping else await self._engine_failure()
        if reason is not None:
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        facts = self._gate.service.facts()
        engine = {"name": facts.name, "level": facts.level}
        ready: dict[str, Any] = {"status": "ready", "engine": engine}
        if facts.warnings:
            ready["warnings"] = len(facts.warnings)
        if telemetry.is_on():
            ready["traces"] = True
        found = self._gate.service.statistics()
        if (archive := found.archive) is not None:
            names = ("behind", "lag_ms", "failing")
            ready["archive"] = {name: getattr(archive, name) for name in names}
        if (backup := found.backup) is not None:
            ready["backup"] = {"lag_ms": backup.lag_ms, "failing": backup.failing}
        return JSONResponse(ready)

    async def metrics(self, _: Request) -> Response:
        """Prometheus' text format."""
        return Response(self.counted.text(), media_type=Metrics.content_type)

    async def schema(self, _: Request) -> Response:
        """The AsyncAPI description of the protocol."""
        return Response(_description(), media_type="application/json")

    async def rpc(self, request: Request) -> Response:
        """One JSON-RPC request, or a batch of requests, which are carried out one after the
        other."""
        try:
            await self._gate.ready()
            principal = self._gate.authenticate(bearer_token(request.scope) or "")
            with ExitStack() as counted:
                counted.enter_context(self._gate.post(principal))
                trust_of(request.scope)(principal.account)
                counted.callback(release_of(request.scope))
                admission = self._gate.admission(principal)
                body = await _body(request, self._gate.limits.connection.request_timeout_ms)
                if refusal := admission.over(len(body)):
                    raise refusal
                answers = await self._answers(principal, admission, body)
                timeout_ms = self._gate.limits.service.send_timeout_ms
                return _InPieces(answers, timeout_ms, counted.pop_all())
        except Unauthenticated as error:
            headers = {"WWW-Authenticate": "Bearer"}
            return JSONResponse(_failure(error), 401, headers=headers)
        except Overloaded as error:
            return _later(error)
        except LimitExceeded as error:
            return JSONResponse(_failure(error), 429, {"Retry-After": "1"})
        except Unavailable as error:
            return JSONResponse(_failure(error), 503)
        except RemoteProtocolError as error:
            return JSONResponse(_failure(error), 413 if error.close_code == CLOSE_TOO_BIG else 400)

    async def _answers(self, principal: Principal, admission: Admission, body: bytes) -> bytes:
        """Errors: RemoteProtocolError when `body` is not JSON-RPC."""
        session = ServerSession.greeted(JSON)
        received = [e for e in session.receive(body) if isinstance(e, RequestReceived)]
        for event in received:
            await self._serve(session, principal, admission, event)
        arrays = session.bytes_to_send()
        if body.lstrip().startswith(b"{"):
            # The session writes arrays; without its brackets this one is the single answer.
            return arrays[0][1:-1]
        return b"[" + b",".join(array[1:-1] for array in arrays) + b"]"

    async def _serve(
        self,
        session: ServerSession,
        principal: Principal,
        admission: Admission,
        event: RequestReceived,
    ) -> None:
        method, outcome, begun_s = event.params.method, "ok", time.monotonic()
        await asyncio.sleep(0)  # let other tasks run between the requests of a batch
        await admission.shares.wait(admission.account, READ_US)
        bill = admission.charges.bill(admission.account, method)
        try:
            if refusal := admission.refusal(method):
                raise refusal
            # Before it is carried out: nothing is done whose answer has no room.
            if session.outgoing_bytes > FRAME_BYTES_MAX:
                size = session.outgoing_bytes
                raise LimitExceeded("FRAME_BYTES_MAX", size, FRAME_BYTES_MAX, "batch")
            if is_read(event.params):
                await bill.begin()
            with telemetry.continuing(event.traceparent):
                await bill.run(partial(self._carry_out, session, principal, event))
        except BlackboardError as error:
            outcome = error.code
            session.respond_error(event.id, error)
        self._gate.traffic.count(method, outcome)
        if method != CommitParams.method:
            self._gate.latencies.requests[method].observe(time.monotonic() - begun_s)

    async def _carry_out(
        self, session: ServerSession, principal: Principal, event: RequestReceived
    ) -> None:
        params = event.params
        link = self._gate.link(principal, params.agent)
        if isinstance(params, WhoAmIParams):
            session.respond(event.id, describe(principal, link.agent))
        else:
            session.respond(event.id, await call(link, params, JSON))

    async def _engine_failure(self) -> str | None:
        """Why the engine does not serve; None if it does. The answer is cached for `_READY_S`."""
        if time.monotonic() - self._looked_at > _READY_S:
            # Before the question, so that many requests at once ask it once.
            self._looked_at = time.monotonic()
            try:
                await self._gate.service.host.look_at_engine()
                self._failure = None
            except BlackboardError as error:
                self._failure = str(error)
        return self._failure


class _InPieces(Response):
    """An answer that may be large, in pieces: each is given to the socket once the peer has read
    those before it. Until the last one the request is being carried out."""

    media_type = "application/json"

    def __init__(self, content: bytes, timeout_ms: Milliseconds, counted: ExitStack) -> None:
        super().__init__(content)
        self._timeout_s = timeout_ms / 1000
        self._counted = counted  # until the answer is sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. A peer that leaves a piece unread for SEND_TIMEOUT_MS is cut off."""
        try:
            with self._counted:
                for message in self._messages():
                    async with asyncio.timeout(self._timeout_s):
                        await send(message)
        except TimeoutError:
            abort_of(scope)()

    def _messages(self) -> Iterator[dict[str, Any]]:
        yield {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        content = memoryview(self.body)
        for first in range(0, len(content), _PIECE_BYTES):
            end = first + _PIECE_BYTES
            piece = {"body": bytes(content[first:end]), "more_body": end < len(content)}
            yield {"type": "http.response.body", **piece}


async def _body(request: Request, timeout_ms: Milliseconds) -> bytes:
    """Errors: RemoteProtocolError above FRAME_BYTES_MAX, or when the body does not arrive in
    time."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            async for part in request.stream():
                size += len(part)
                if size > FRAME_BYTES_MAX:
                    reason = f"a body of more than {FRAME_BYTES_MAX} bytes"
                    raise RemoteProtocolError(reason, CLOSE_TOO_BIG)
                parts.append(part)
    except (ClientDisconnect, TimeoutError) as error:
        raise RemoteProtocolError("the body did not come") from error
    return b"".join(parts)


def _later(error: Overloaded) -> Response:
    """An answer that plain HTTP clients understand."""
    headers = {"Retry-After": str(-(-error.retry_after_ms // 1000))}
    return JSONResponse(_failure(error), 429 if isinstance(error, RateLimited) else 503, headers)


def _failure(error: BlackboardError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": write_error(error)}


@lru_cache(maxsize=1)
def _description() -> bytes:
    return JSON.pack(asyncapi())
