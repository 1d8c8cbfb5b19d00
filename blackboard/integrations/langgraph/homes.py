"""The event loop that a board lives in, and the ways into it: from the loop itself, from another
one, and from any thread."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final, Generic, TypeVar

import blackboard
import blackboard.sync
from blackboard import Board

T = TypeVar("T")
Work = Callable[[], Awaitable[T]]


class LoopHome:
    """A board of `blackboard.open` or `connect`: it lives in the loop in which this was made."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._loop = asyncio.get_running_loop()

    def run(self, work: Work[T]) -> T:
        """Wait for `work` in a thread without this loop. Errors: asyncio.InvalidStateError in the
        loop itself, which would wait for itself."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            raise asyncio.InvalidStateError(
                "this loop would wait for itself: use the method whose name begins with `a`"
                " (`await graph.ainvoke(...)`), or another thread"
            )
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop).result()

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the board's loop."""
        return asyncio.get_running_loop() is self._loop

    async def arun(self, work: Work[T]) -> T:
        """Await `work`, in the board's own loop."""
        if self.is_here:
            return await work()
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(_awaited(work), self._loop)
        )


class SyncHome:
    """A board of `blackboard.sync`: any thread and any loop may use it."""

    def __init__(self, board: "blackboard.sync.Board") -> None:
        self._sync = board
        self.board, self._loop = board.run(_with_loop)

    def run(self, work: Work[T]) -> T:
        """Wait for `work`."""
        return self._sync.run(lambda _: work())

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the loop of `blackboard.sync`."""
        return asyncio.get_running_loop() is self._loop

    async def arun(self, work: Work[T]) -> T:
        """Await `work`, in the loop of `blackboard.sync`; a thread waits for it."""
        if self.is_here:
            return await work()
        return await asyncio.to_thread(self.run, work)


Home = LoopHome | SyncHome


class Pulled(Generic[T]):
    """The items of an asynchronous generator of a board's loop, for somebody outside of it.

    A caller that is cancelled or interrupted may leave its request behind, still running: a
    generator must not be closed, or asked again, before that one has ended.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._turn = asyncio.Lock()

    async def next(self) -> T:
        """The next one. Errors: StopAsyncIteration at the end."""
        async with self._turn:
            return await anext(self._items)

    async def close(self) -> None:
        """Close the generator."""
        async with self._turn:
            await self._items.aclose()


@asynccontextmanager
async def within(home: Home, block: AbstractAsyncContextManager[Any]) -> AsyncIterator[None]:
    """`block`, which is entered and left in the board's loop."""
    if home.is_here:  # in the task of the caller, which the block may cancel
        async with block:
            yield
        return
    visit = _BlockVisit(block)
    try:
        await home.arun(visit.enter)
    except asyncio.CancelledError:
        # Its request may go on there, and must not enter the block when nobody is left in it.
        await asyncio.shield(home.arun(visit.give_up))
        raise
    try:
        yield
    except BaseException as error:
        details = (type(error), error, error.__traceback__)
        await home.arun(lambda: block.__aexit__(*details))
        raise
    await home.arun(lambda: block.__aexit__(None, None, None))


class _BlockVisit:
    """Enters a block of a board's loop for a caller in another one. All of it runs in that loop."""

    def __init__(self, block: AbstractAsyncContextManager[Any]) -> None:
        self._block = block
        self._entering: asyncio.Task[Any] | None = None
        self._is_given_up = False

    async def enter(self) -> None:
        """Enter the block, unless the caller has gone already."""
        if not self._is_given_up:
            self._entering = asyncio.create_task(_awaited(self._block.__aenter__))
            await self._entering

    async def give_up(self) -> None:
        """Enter the block no more; leave it if it was entered."""
        self._is_given_up = True
        if self._entering is None:
            return
        self._entering.cancel()
        await asyncio.wait([self._entering])
        if not self._entering.cancelled() and self._entering.exception() is None:
            await self._block.__aexit__(None, None, None)


def home_of(board: "Board | blackboard.sync.Board") -> Home:
    """The home of a board. Errors: RuntimeError for an asynchronous board outside of any loop."""
    return LoopHome(board) if isinstance(board, Board) else SyncHome(board)


# `run_coroutine_threadsafe` takes a coroutine, and `work` may return any awaitable.
async def _awaited(work: Work[T]) -> T:
    return await work()


async def _with_loop(board: Board) -> tuple[Board, asyncio.AbstractEventLoop]:
    return board, asyncio.get_running_loop()


# --- from a connection string ---------------------------------------------------------------------

Made = TypeVar("Made")
SCHEMES: Final = ("ws", "wss", "http", "https")


class FromConnString(Generic[Made]):
    """Opens a board when it is entered, with or without `async`, and closes it at the end.

    A directory can be open once in a process: those who name the same one share its client, which
    the last of them closes.
    """

    def __init__(
        self,
        make: "Callable[[Board | blackboard.sync.Board], Made]",
        conn_string: str,
        board: str | None,
        token: str | None,
    ) -> None:
        is_remote = conn_string.partition("://")[0] in SCHEMES
        self._make = make
        # Resolved, so that two spellings of a directory share one client.
        self._where = conn_string if is_remote else str(Path(conn_string).resolve())
        self._is_remote = is_remote
        self._board = board
        self._token = token
        self._exits: AsyncExitStack | ExitStack | None = None

    def __enter__(self) -> Made:
        with ExitStack() as exits:  # closed, too, when there is nothing to make of the board
            made = self._make(self._opened_sync(exits).board(self._board))
            self._exits = exits.pop_all()
        return made

    def _opened_sync(self, exits: ExitStack) -> blackboard.sync.Client:
        if self._is_remote:
            return exits.enter_context(blackboard.sync.connect(self._where, token=self._token))
        with _sync_lock:
            # Under the lock until it is open: a second opening of the directory would be refused.
            shared = _sync_clients.get(self._where)
            if shared is None:
                shared = _sync_clients[self._where] = _SharedClient(
                    blackboard.sync.open(self._where)
                )
            shared.users += 1
        exits.callback(_leave, self._where)
        return shared.client

    def __exit__(self, *error: Any) -> None:
        assert isinstance(self._exits, ExitStack)
        self._exits.close()

    async def __aenter__(self) -> Made:
        async with AsyncExitStack() as exits:
            made = self._make((await self._opened(exits)).board(self._board))
            self._exits = exits.pop_all()
        return made

    async def _opened(self, exits: AsyncExitStack) -> blackboard.Client:
        if self._is_remote:
            opening = blackboard.connect(self._where, token=self._token)
            return await exits.enter_async_context(opening)
        key = (asyncio.get_running_loop(), self._where)
        shared = _clients.get(key)
        if shared is None:
            shared = _clients[key] = _SharedClient(asyncio.ensure_future(_opened(self._where)))
        shared.users += 1
        exits.push_async_callback(_aleave, key)
        # Others may wait for the same opening, so a cancelled one must not end it.
        return await asyncio.shield(shared.client)

    async def __aexit__(self, *error: Any) -> None:
        assert isinstance(self._exits, AsyncExitStack)
        await self._exits.aclose()


@dataclass(slots=True)
class _SharedClient(Generic[T]):
    """A client, and how many use it."""

    client: T
    users: int = 0


_sync_lock = Lock()
_sync_clients: "dict[str, _SharedClient[blackboard.sync.Client]]" = {}
_clients: dict[
    tuple[asyncio.AbstractEventLoop, str], _SharedClient[asyncio.Future[blackboard.Client]]
] = {}


async def _opened(path: str) -> blackboard.Client:
    return await blackboard.open(path)


def _leave(path: str) -> None:
    with _sync_lock:
        shared = _sync_clients[path]
        shared.users -= 1
        if not shared.users:
            del _sync_clients[path]
            shared.client.close()


async def _aleave(key: tuple[asyncio.AbstractEventLoop, str]) -> None:
    shared = _clients[key]
    shared.users -= 1
    if not shared.users:
        del _clients[key]
        if shared.client.cancelled() or (shared.client.done() and shared.client.exception()):
            return
        await (await shared.client).aclose()
