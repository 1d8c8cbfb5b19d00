"""Run the service on a port: `serve(settings)`.

An orderly stop (SIGTERM, SIGINT, cancellation) has this order: `/readyz` answers 503, and all else
goes on for the setting `drain_delay_ms`, in which balancers stop sending connections here; then the
port is closed, every connection gets `draining`, requests in flight are answered, watches end with
their position, connections close; then the queues run empty and the store is closed. Connections
are closed in any case DRAIN_TIMEOUT_MS after the port. A second signal ends the delay.

The module also finds the name by which clients reach a service over TLS: its certificate must
contain it.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from cryptography import x509
from rich.console import Console
from rich.markup import escape
from starlette.applications import Starlette

from blackboard import telemetry
from blackboard.backup.place import BackupPlace
from blackboard.core.access import operator
from blackboard.engines.base import EngineFacts
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import InvalidRequest
from blackboard.integrity.private_files import UMASK
from blackboard.integrity.tokens import issue, verify
from blackboard.limits import DEFAULT, FRAME_BYTES_MAX, PAGE_TOKEN_TTL_MS, Limits
from blackboard.server.assembly import sealed
from blackboard.server.http.app import create_app
from blackboard.server.http.handshake import Handshake, OriginPolicy, log as refusals
from blackboard.server.http.http_protocol import bounded
from blackboard.server.http.page import OneTimeLink, Page
from blackboard.server.http.uvicorn_protocol import counting
from blackboard.server.overload.connections import Intake, Strangers
from blackboard.server.overload.log_thinning import Thinned
from blackboard.server.redlock_votes import masters_at
from blackboard.server.service import Service
from blackboard.server.settings import (
    Settings,
    automatic_of,
    limits_of,
    make_archive,
    make_store,
    rates_of,
    secret_of,
    wrapper_of,
    write_operator_token,
)
from blackboard.telemetry import logs, metrics, sending
from blackboard.units import Milliseconds

_BOTH: Final = (x509.DNSName, x509.IPAddress)


def host_for_clients(host: str, certificate: Path, let_in: Collection[str]) -> str:
    """`host`, on which the service listens, or the first name in `certificate` that can replace it.

    Only an address that the certificate does not contain is replaced, and only by a name that the
    service accepts (`let_in`, empty = any). Names with `*` do not count, because they are not
    complete. `certificate` is a PEM file; one that cannot be parsed counts as empty.
    """
    try:
        address = ip_address(host)
    except ValueError:  # a name already
        return host
    names = _names_in(certificate)
    if address in names:
        return host
    good = (name for name in names if isinstance(name, str) and "*" not in name)
    return next((name for name in good if not let_in or name in let_in), host)


def _names_in(certificate: Path) -> "list[object]":
    """The names (as text) and addresses of the first certificate in a file, in its order."""
    try:
        own = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
        found = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    return [name.value for name in found if isinstance(name, _BOTH)]


__all__ = ["Serving", "create_app", "listen", "run", "serve", "serve_app"]

log = logging.getLogger(__name__)
_BACKLOG: Final = 1024
_SERVICE: Final = "blackboard"
"""The name of a service in traces, metrics and logs, if no variable gives another."""
_SURVIVES: Final = {
    "disk": "a power failure",
    "second": "a crash of any process; a power failure may cost the last second",
    "replica": "the loss of the primary",
    "memory": "a crash of the service, but not of the machine",
}


GC_THRESHOLDS: Final = (5_000, 20, 1_000)
"""When the garbage collector runs. Its first pass visits as many objects as the first number says,
and stops everything else for a few milliseconds. It visits old objects only once in days, so
objects that end must not leave large reference cycles; tests that run with the collector off check
that."""

SWITCH_INTERVAL_S: Final = 0.001
"""How long a thread runs while another one waits for the interpreter lock. A transaction is a dozen
calls of SQLite, each of which releases the lock and may then wait for it. Beside an archive that
writes, the default of five milliseconds added 10 to 15 milliseconds to each commit."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A running service: its `url`, the file with the operator's token, if any, whether it has
    an archive (`archived`), and where its `page` is, if it has one."""

    url: str
    facts: EngineFacts
    token_path: Path | None
    archived: bool = True
    page: str | None = None


NO_ARCHIVE: Final = (
    "none (BLACKBOARD_ARCHIVE): nothing can be restored, branched or read as of an earlier time"
)


def run(
    settings: Settings,
    *,
    ready: Callable[[Serving], None] | None = None,
    limits: Limits = DEFAULT,
) -> None:
    """Serve until SIGTERM or SIGINT, on uvloop if it is installed. See `serve`.

    From then on, only their owner can read the files that this process creates.
    """
    os.umask(UMASK)
    tune_interpreter()
    raise_file_limit(limits_of(settings, limits))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(settings, ready=ready, limits=limits))


def tune_interpreter() -> None:
    """Tune the interpreter for the process of a service. An embedded board leaves that to its
    program.

    Boards and requests are millions of objects without cycles. With the default thresholds, the
    search for cycles takes a tenth of the time, and causes long pauses with large boards.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    # What is loaded by now lives as long as the process, and need not be searched any more.
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def raise_file_limit(limits: Limits = DEFAULT) -> None:
    """Raise the number of files that this process may open to what its limits need, if the system
    allows it.

    256 boards use up the usual 1,024, and then no client can connect any more.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    most = limits.open_files_max
    wanted = most if hard == unlimited else min(most, hard)
    if soft != unlimited and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # the system allows less, or no change
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < most:
        # `doctor` reports it. At every start it would be noise.
        log.debug("this process may open %d files; %d would be enough", wanted, most)


async def serve(
    settings: Settings,
    *,
    ready: Callable[[Serving], None] | None = None,
    signals: bool = True,
    limits: Limits = DEFAULT,
) -> None:
    """Serve until SIGTERM, SIGINT or cancellation; `ready` is called once the port answers.

    Without `ready` a banner is printed. Without `signals` only cancellation ends it. `limits` are
    those of the process, but for the ones that a setting changes.
    Errors: InvalidRequest for unsafe settings, or an address that cannot be bound;
    DataDirectoryInUse; EngineRefused; Unavailable. ValueError outside the main thread, which alone
    can handle signals.
    """
    settings.check()
    settings.check_certificate()
    with _told(settings):
        await _serve(settings, ready, signals=signals, limits=limits)


@contextlib.contextmanager
def _told(settings: Settings) -> Iterator[None]:
    """With the setting `telemetry`, a block that makes spans and whose log lines are sent."""
    if not settings.telemetry:
        yield
        return
    sending.check()
    telemetry.start(_SERVICE)
    with logs.sent(_SERVICE):
        yield


async def _serve(
    settings: Settings,
    ready: Callable[[Serving], None] | None,
    *,
    signals: bool,
    limits: Limits,
) -> None:
    secret, limits = secret_of(settings), limits_of(settings, limits)
    with contextlib.closing(listen(settings.host, settings.port, limits)) as listener:
        port = listener.getsockname()[1]
        lock_masters = masters_at(settings.lock_masters, limits)
        store = await make_store(settings, limits)
        try:
            archive = await make_archive(settings, limits, store, may_spawn=True)
        except BaseException:
            # Else the data directory would stay in use.
            await store.aclose()
            raise
        try:
            wrapper = await wrapper_of(settings)
            front, archive = await sealed(
                store, archive, wrapper, public=settings.seal_public, limits=limits
            )
        except BaseException:
            if archive is not None:
                await archive.aclose()
            await store.aclose()
            raise
        service = Service(
            front,
            lock_masters=lock_masters,
            archive=archive,
            automatic=automatic_of(settings),
            rates=rates_of(settings),
            limits=limits,
        )
        # Before the service starts: its first record of the audit must be signed, too.
        service.host.audit.seal_with(secret.splitlines())
        service.host.signer = partial(issue, secret, audience=settings.audience)
        service.host.directory = settings.data
        async with service:
            if settings.backup is not None:
                await service.follow(BackupPlace.at(settings.backup, limits))
            token = write_operator_token(settings, secret) if settings.is_loopback else None
            archived, url = archive is not None, _url(settings, port)
            page = _page(settings, secret)
            serving = Serving(url, service.facts(), token, archived, _page_url(url, page))
            if isinstance(store, SqliteStore):
                store.announce(serving.url)
            origin_policy = OriginPolicy(settings.hosts, settings.allowed_origins)
            app = create_app(
                service,
                partial(verify, secret, audience=settings.audience),
                origin_policy=origin_policy,
                page=page,
            )
            started = partial(ready or show, serving)
            await serve_app(app, listener, settings=settings, started=started, signals=signals)


async def serve_app(
    app: Starlette,
    listener: socket.socket,
    *,
    settings: Settings,
    started: Callable[[], None],
    signals: bool = True,
) -> None:
    """Serve an application of `create_app` on a socket of `listen`, until a signal or cancellation.

    Both end it in the same orderly way. `started` is called once connections are accepted. With
    the setting `telemetry`, its metrics are sent meanwhile.
    """
    limits = app.state.gate.limits
    delay_ms = settings.drain_delay_ms
    server = _Server(_config(app, settings, limits), app, signals=signals, delay_ms=delay_ms)
    server.on_started = started
    errors = logging.getLogger("uvicorn.error")
    errors.addFilter(_is_news)
    collect, is_told = app.state.metrics.collect, settings.telemetry
    sent = metrics.sent(_SERVICE, collect) if is_told else contextlib.nullcontext()
    with Thinned(errors, limits), Thinned(refusals, limits), sent:
        running = asyncio.create_task(server.serve([listener]), name="uvicorn")
        try:
            # A cancellation must not reach the server, which has an order in which it stops.
            await asyncio.shield(running)
        except asyncio.CancelledError:
            server.should_exit = True
            await running
            raise


def listen(host: str, port: int, limits: Limits = DEFAULT) -> socket.socket:
    """A bound socket, without Nagle's delay for the connections that it will accept.

    IPPROTO_TCP is named because asyncio sets TCP_NODELAY only on sockets that say what they are;
    Linux also hands the options on to accepted sockets. TCP_USER_TIMEOUT ends a connection whose
    peer has not opened its window for SEND_TIMEOUT_MS; the kernel then drops what we have sent to
    it.
    Errors: InvalidRequest when the address cannot be bound.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            # Else a restart is refused as long as old connections are in TIME_WAIT.
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                timeout_ms = limits.service.send_timeout_ms
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
            found.bind((host, port))
            found.listen(_BACKLOG)
        except BaseException:
            found.close()
            raise
    # UnicodeError: a host with an empty label, or a label of more than 63 characters.
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(field="host", reason=f"{host}:{port}: {error}") from error
    return found


def show(serving: Serving) -> None:
    """Print the banner: what runs here, and how to use it."""
    facts, console = serving.facts, Console(stderr=True, highlight=False)
    lines = [
        f"[bold]Blackboard[/] serves [bold]{escape(serving.url)}[/]",
        f"  engine   {escape(f'{facts.name} {facts.version}')}, in {escape(facts.location)}",
        f"  safety   a commit that was answered survives {_SURVIVES[facts.level]}",
        *(f"  [yellow]warning[/]  {escape(warning)}" for warning in facts.warnings),
    ]
    if not serving.archived:
        lines.append(f"  archive  {NO_ARCHIVE}")
    if serving.token_path is not None:
        lines.append(
            f'  token    export BLACKBOARD_TOKEN="$(cat {escape(str(serving.token_path))})"'
        )
    if serving.page is not None:
        lines.append(f"  page     {escape(serving.page)}")
    lines += [
        "  shell    blackboard set public/hello 1; blackboard watch 'public/**'",
        f'  Python   async with blackboard.connect("{escape(serving.url)}") as client: ...',
        "  stop     Ctrl-C",
    ]
    for line in lines:
        console.print(line, soft_wrap=True)


def _page(settings: Settings, secret: str) -> Page | None:
    """The page, if it is wanted; only on loopback with a link for the operator."""
    if not settings.page:
        return None
    if not settings.is_loopback:
        return Page()
    own = partial(issue, secret, operator(), PAGE_TOKEN_TTL_MS, audience=settings.audience)
    return Page(OneTimeLink(own))


def _page_url(url: str, page: Page | None) -> str | None:
    if page is None:
        return None
    once = "" if page.link is None else f"#once={page.link.code}"
    return f"http{url.removeprefix('ws')}/{once}"


def _url(settings: Settings, port: int) -> str:
    host = settings.host
    if settings.tls_cert is not None:
        host = host_for_clients(host, settings.tls_cert, settings.hosts)
    host = f"[{host}]" if ":" in host else host
    return f"{'wss' if settings.has_tls else 'ws'}://{host}:{port}"


def _config(app: Starlette, settings: Settings, limits: Limits = DEFAULT) -> uvicorn.Config:
    chosen, ping_s = limits.service, limits.connection.ping_interval_ms / 1000
    strangers = Strangers(chosen.strangers_max, chosen.strangers_per_peer_max)
    intake = Intake(chosen)
    return uvicorn.Config(
        app,
        http=bounded(intake, strangers),
        ws=counting(intake, strangers),
        ws_max_size=FRAME_BYTES_MAX,
        # An attack surface before authentication, and slow for small messages (decision 4).
        ws_per_message_deflate=False,
        ws_ping_interval=ping_s,
        ws_ping_timeout=ping_s,
        lifespan="off",
        # uvicorn would replace the logging of the whole process.
        log_config=None,
        access_log=False,
        log_level="warning",
        server_header=False,
        # Strangers are counted by the address of their socket, which no header can change.
        proxy_headers=False,
        backlog=_BACKLOG,
        ssl_certfile=None if settings.tls_cert is None else str(settings.tls_cert),
        ssl_keyfile=None if settings.tls_key is None else str(settings.tls_key),
    )


class _Server(uvicorn.Server):
    """uvicorn, but it drains our connections before it closes them, and no signal kills it."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: Starlette,
        *,
        signals: bool,
        delay_ms: Milliseconds = 0,
    ) -> None:
        super().__init__(config)
        self._delay_s = delay_ms / 1000
        self._is_hurried = False
        self._signals = _SIGNALS if signals else ()
        self._gate: Handshake = app.state.gate
        self._handshake_s = self._gate.limits.connection.handshake_timeout_ms / 1000
        self._idle = Idle(self._gate.limits)
        self.on_started: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, then report it."""
        if self.config.ssl is None:
            await super().startup(sockets)
        else:
            await self._start_tls(sockets or [])
        if self.on_started is not None:
            self.on_started()

    async def _start_tls(self, sockets: list[socket.socket]) -> None:
        """As `super().startup`, but with HANDSHAKE_TIMEOUT_MS for a TLS handshake.

        uvicorn allows a minute, during which no limit counts the connection.
        """
        make: Any = self.config.http_protocol_class
        protocol = partial(
            make,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                protocol,
                sock=listener,
                ssl=self.config.ssl,
                backlog=_BACKLOG,
                ssl_handshake_timeout=self._handshake_s,
            )
            for listener in sockets
        ]
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; returns whether to stop. Once a second it closes idle
        connections."""
        if counter % 10 == 0:
            self._idle.sweep(self.server_state.connections, time.monotonic())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let balancers notice, then let connections finish."""
        self._gate.stopping = True
        await self._be_left()
        began = time.monotonic()
        # The port first: a client that is sent away must not come back here through a balancer.
        for server in self.servers:
            server.close()
        await self._gate.drain()
        # What is left of the time is for HTTP requests and documents, and a second to close.
        left_s = self._gate.limits.service.drain_timeout_ms / 1000 - (time.monotonic() - began)
        self.config.timeout_graceful_shutdown = max(1, int(left_s))
        await super().shutdown(sockets)

    async def _be_left(self) -> None:
        """Serve on for the delay, or until a second signal."""
        until, counter = time.monotonic() + self._delay_s, 0
        while time.monotonic() < until and not self._is_hurried:
            await asyncio.sleep(_TICK_S)
            counter += 1
            await self.on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on the first signal. uvicorn would raise it again afterwards, before the store is
        closed."""
        before = {number: signal.signal(number, self._stop) for number in self._signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self.force_exit = self.should_exit and number == signal.SIGINT
        self._is_hurried = self.should_exit
        self.should_exit = True


class Idle:
    """Ends HTTP connections that complete no request for HANDSHAKE_TIMEOUT_MS, even if bytes
    trickle in, and those whose answer is not read for SEND_TIMEOUT_MS.

    uvicorn would wait for ever for the end of a request's head. It closes connections without a
    next request by itself, once all of the last answer is sent. WebSockets have their own timeouts.
    """

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._asking_s = limits.connection.handshake_timeout_ms / 1000
        self._sending_s = limits.service.send_timeout_ms / 1000
        self._since: dict[Any, tuple[Any, bool, float]] = {}
        """Of each idle connection the last request that was completed, whether the head of another
        one has begun, and since when that is so."""

    def sweep(self, connections: Iterable[Any], now_s: float) -> None:
        """Check every connection of uvicorn; `now_s` is the time by a clock that never jumps."""
        before, self._since = self._since, {}
        for connection in list(connections):
            if not _is_idle(connection):
                continue
            # A client that asks often may be between two requests at each look.
            last, is_asking = connection.cycle, connection.is_asking
            since = now_s
            if connection in before and before[connection][:2] == (last, is_asking):
                since = before[connection][2]
            self._since[connection] = last, is_asking, since
            patience_s = self._asking_s if is_asking or last is None else self._sending_s
            if now_s - since >= patience_s:
                connection.transport.abort()


def _is_idle(connection: Any) -> bool:
    """Whether a connection speaks HTTP (it has a `cycle` after the first request) and has no
    request to answer."""
    if not hasattr(connection, "cycle"):
        return False
    return connection.cycle is None or bool(connection.cycle.response_complete)


def _is_news(record: logging.LogRecord) -> bool:
    """Filter uvicorn's error message about a handshake that was refused with an HTTP response."""
    return "without completing handshake" not in record.getMessage()


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_TICK_S: Final = 0.1  # as of uvicorn


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """That of uvloop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
