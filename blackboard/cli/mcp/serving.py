"""Serves a board over MCP in this process: where it is, as whom, and for how long."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from blackboard.cli import screen, session as boards, target as places
from blackboard.cli.errors import LOOPBACK, CommandError, Exit, wrong_usage
from blackboard.cli.options import Flags
from blackboard.cli.serve import configure, forget, make_private, port_of, remember

if TYPE_CHECKING:
    from blackboard.cli.mcp.shared_directory import SharedDirectory
    from blackboard.client.board import Board
    from blackboard.client.client import Client
    from blackboard.integrations.mcp import AgentSession
    from blackboard.server.http.serve import Serving
    from blackboard.server.settings import Settings

log = logging.getLogger("blackboard.mcp")
TOKEN_MS: Final = 3_600_000
"""Tokens that a process makes for its own agent; it makes the next one before that is over."""
PATIENCE_MS: Final = 20_000
"""How long a call waits for a service that is away: a client gives up after a minute."""
RETRY_S: Final = 1.0
"""The pause before this process connects again to where a directory is served."""


def run(work: Callable[[], Awaitable[int]]) -> int:
    """Run `work` until it ends or a signal comes; returns the exit code."""
    from blackboard.server.http.serve import loop_factory, raise_file_limit, tune_interpreter

    tune_interpreter()
    configure("text")
    logging.getLogger("blackboard").setLevel(logging.WARNING)
    log.setLevel(logging.INFO)
    raise_file_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_until_signal(work))


async def _until_signal(work: Callable[[], Awaitable[int]]) -> int:
    """Run `work` to its end, or cancel it for a signal; returns the exit code."""
    code, running = 0, asyncio.ensure_future(work())

    def stop(number: int) -> None:
        nonlocal code
        code = Exit.INTERRUPTED if number == signal.SIGINT else 128 + number
        running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # on Windows they end it at once
            loop.add_signal_handler(number, stop, number)
    # Waited for, not awaited: a cancellation is no error here, but what `stop` has done.
    await asyncio.wait([running])
    if code:
        # A thread may be reading standard input, which only the client can end.
        sys.stderr.flush()
        os._exit(code)
    return running.result()


# --- where the board is ---------------------------------------------------------------------------


Open = Callable[[str | None], Awaitable["Client"]]
"""Connects: with a token, or as this process's own agent (None)."""


class BoardPlace:
    """Where the board is, and how to connect to it."""

    def __init__(self, board: str, connect: Open, shared: "SharedDirectory | None") -> None:
        self.board = board
        self.connect = connect
        self.shared = shared


@asynccontextmanager
async def _place(flags: Flags, agent: str | None) -> AsyncIterator[BoardPlace]:
    """Find the service, or serve the directory with others."""
    # In a thread, because it may ask a service over HTTP whether it answers.
    settings = await asyncio.to_thread(_local, flags)
    if settings is None:
        target = boards.target_of(flags)
        yield BoardPlace(target.board, _connecting(target, agent), None)
        return
    from blackboard.cli.mcp.shared_directory import SharedDirectory, own_name

    make_private(settings.data)
    async with AsyncExitStack() as stack:
        saved = _Saved(settings)
        # Before the service is begun, so that it goes last: then nothing is served there any more.
        stack.callback(saved.forget)
        shared = await stack.enter_async_context(SharedDirectory(settings, saved.save).running())
        token = flags.token or os.environ.get("BLACKBOARD_TOKEN")
        if token is None:
            own = _signing(settings, agent or stack.enter_context(own_name(settings.data)))
        else:
            own = _Identity(token, agent)
        board = flags.board or os.environ.get("BLACKBOARD_BOARD") or places.BOARD_DEFAULT
        yield BoardPlace(board, _connecting_locally(shared, own), shared)


def _local(flags: Flags) -> "Settings | None":
    """The settings for the data directory of this machine; None if a service is meant."""
    from blackboard.server import settings as config

    if flags.url or flags.context or (not flags.data and os.environ.get("BLACKBOARD_URL")):
        return None
    known = places.load(places.config_directory())
    if flags.data is None and known.chosen not in (None, places.LOCAL):
        return None
    chosen = known.in_use() if flags.data is None and known.chosen else None
    data = flags.data or (chosen.data if chosen and not os.environ.get("BLACKBOARD_DATA") else None)
    settings = config.load({"host": "127.0.0.1", **({"data": data} if data else {})})
    if flags.data is None and chosen is not None and not _is_embedded(chosen, settings):
        return None
    if settings.engine != "sqlite":
        raise wrong_usage(
            "the settings name an engine that is not in a directory",
            "Start the service with: blackboard serve",
        )
    return settings


def _is_embedded(chosen: places.ServiceContext, settings: "Settings") -> bool:
    """Whether a service that answers at `chosen` serves that directory; none answers: yes."""
    from blackboard.cli.mcp.shared_directory import announced_url

    return announced_url(settings.data) == chosen.url or not places.answering(chosen)


class _Saved:
    """The context that other commands use to find what this process serves."""

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._name = places.LOCAL

    def save(self, serving: "Serving") -> None:
        """This process serves."""
        try:
            known = places.load(places.config_directory()).by_name.get(places.LOCAL)
        except CommandError:
            known = None  # `remember` says what is wrong, and the boards are served all the same
        # `local` may name the service of another directory, which other commands rely on.
        ours = known is None or known.data == str(self._settings.data.resolve())
        self._name = places.LOCAL if ours else f"{places.LOCAL}-{port_of(serving.url)}"
        remember(self._name, serving, self._settings.data)

    def forget(self) -> None:
        """It does not any more."""
        if self._name != places.LOCAL:
            forget(self._name)


def _connecting(target: places.Target, agent: str | None) -> Open:
    import blackboard

    async def connect(token: str | None) -> "Client":
        return await blackboard.connect(
            target.url,
            token=token or target.token,
            agent=None if token else agent,
            ca=target.ca,
            patience_ms=PATIENCE_MS,
        )

    return connect


@dataclass(frozen=True, slots=True)
class _Identity:
    """Whose board it is: a token, or what makes one; and the name to act as, if it is another."""

    token: str | Callable[[], str]
    agent: str | None = None


def _signing(settings: "Settings", name: str) -> _Identity:
    """An agent of a directory, whose secret is here: its tokens are made when they are needed."""
    from blackboard.core import access
    from blackboard.integrity.tokens import issue
    from blackboard.server.settings import secret_of

    whole = access.AccessGrant("**", frozenset({access.Right.CHECKPOINT, access.Right.RESTORE}))
    principal = access.Principal(name, (*access.agent(name).grants, whole))

    def own() -> str:
        return issue(secret_of(settings), principal, TOKEN_MS, audience=settings.audience)

    return _Identity(own)


def _connecting_locally(shared: "SharedDirectory", own: _Identity) -> Open:
    import blackboard

    async def connect(token: str | None) -> "Client":
        agent = None if token else own.agent
        return await blackboard.connect(
            shared.url, token=token or own.token, agent=agent, patience_ms=PATIENCE_MS
        )

    return connect


# --- standard input and output --------------------------------------------------------------------


async def over_stdio(flags: Flags, agent: str | None) -> int:
    """Serve one client until it closes standard input."""
    from blackboard.integrations.mcp import AgentSession, OldSubscriptions, board_server

    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(_place(flags, agent))
        joined = Joined(place)
        stack.push_async_callback(joined.aclose)
        first = AgentSession(await joined.open())
        stack.push_async_callback(first.aclose)
        if place.shared is not None:
            following = asyncio.create_task(joined.follow(first), name="following the service")
            stack.callback(following.cancel)
        old = OldSubscriptions()
        stack.push_async_callback(old.aclose)
        log.info("serving board %s to %s", place.board, first.board.agent)
        await _serve_stdio(board_server(lambda _: first, old))
    return 0


async def _serve_stdio(server: Any) -> None:
    """Serve standard input to its end. Cancellation: leaves the thread that reads it."""
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    serving = asyncio.ensure_future(serve())
    await asyncio.wait([serving])
    serving.result()


class Joined:
    """The connection of this process; a new one when the service is at another address."""

    def __init__(self, place: BoardPlace, *, retry_s: float = RETRY_S) -> None:
        self._place = place
        self._retry_s = retry_s
        self._client: Client | None = None

    async def open(self) -> "Board":
        """Connect. Errors: as of `blackboard.connect`."""
        while True:
            url = self._place.shared and self._place.shared.url
            try:
                client = await self._place.connect(None)
            except Exception:
                if self._place.shared is None or self._place.shared.url == url:
                    raise
                continue  # it moved while this waited
            self._client = client
            return client.board(self._place.board)

    async def follow(self, first: "AgentSession") -> None:
        """Connect again whenever the directory is served at another address."""
        assert self._place.shared is not None
        while True:
            await self._place.shared.moved()
            while True:
                if await self._moved(first, self._place.shared):
                    break
                # It is where it is: nothing tells when it answers.
                await asyncio.sleep(self._retry_s)

    async def _moved(self, first: "AgentSession", shared: "SharedDirectory") -> bool:
        """Let `first` go on where the directory is served now; False if nobody answers there."""
        from blackboard.errors import BlackboardError

        old = self._client
        assert old is not None
        try:
            board = await self.open()
        except BlackboardError as error:
            log.warning("cannot connect to %s: %s", shared.url, error)
            return False
        try:
            # If the old connection cannot be left in order, the new one is used all the same.
            await first.move(board, old.aclose)
        except BlackboardError as error:
            log.warning("left a connection to %s: %s", shared.url, error)
        return True

    async def aclose(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.aclose()


# --- HTTP -----------------------------------------------------------------------------------------


async def over_http(flags: Flags, host: str, port: int) -> int:
    """Serve until a signal."""
    from blackboard.cli.mcp.http_server import serve_http
    from blackboard.integrations.mcp import board_app
    from blackboard.server.http.serve import listen

    if host not in LOOPBACK:
        raise wrong_usage(
            f"--host {host}: tokens would cross the network in the clear",
            "Serve on 127.0.0.1, behind a proxy that adds TLS.",
        )
    # First: a port that is taken is reported before a directory is opened or served.
    listener = listen(host, port)
    async with _place(flags, None) as place:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/mcp"

        def greet() -> None:
            screen.say(f"serving board {place.board} at {address}")
            screen.say("each request needs a token: blackboard token create NAME")

        await serve_http(board_app(place.connect, board=place.board), listener, greet)
    return 0
