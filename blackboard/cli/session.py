"""From the flags of a command to a board to work with."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from blackboard.cli import places
from blackboard.cli.exits import not_found
from blackboard.cli.options import Flags
from blackboard.types import COMMAND_PATIENCE_MS, Milliseconds

if TYPE_CHECKING:
    from blackboard.service.board import Board, Client

T = TypeVar("T")


def target_of(flags: Flags) -> places.Target:
    """What the flags, the environment and the contexts mean together."""
    return places.resolve(flags, os.environ, places.load(places.config_directory()))


def data_of(flags: Flags) -> str | None:
    """The data directory that is meant; None leaves it to the settings."""
    return places.data_directory(flags, os.environ, places.load(places.config_directory()))


def with_board(
    flags: Flags,
    work: Callable[["Board"], Awaitable[T]],
    *,
    create: bool = False,
    patience_ms: Milliseconds = COMMAND_PATIENCE_MS,
) -> T:
    """Run `work` on the board that is meant; with `create`, `--data` may name a new directory.

    So long it waits for an answer, and for a connection that broke, before it is Unavailable.
    """
    target = target_of(flags)

    async def on_board(client: "Client") -> T:
        return await work(client.board(target.board))

    return _run(target, on_board, create=create, patience_ms=patience_ms)


def with_client(flags: Flags, work: Callable[["Client"], Awaitable[T]]) -> T:
    """Run `work` on the service that is meant."""
    return _run(target_of(flags), work, create=False, patience_ms=COMMAND_PATIENCE_MS)


async def has_begun(board: "Board") -> bool:
    """Whether anything was ever committed to the board; reading does not begin one."""
    return (await board.head()).revision > 0


def _run(
    target: places.Target,
    work: Callable[["Client"], Awaitable[T]],
    *,
    create: bool,
    patience_ms: Milliseconds,
) -> T:
    import anyio

    async def run() -> T:
        async with _opened(target, create=create, patience_ms=patience_ms) as client:
            return await work(client)

    return anyio.run(run)


@asynccontextmanager
async def _opened(
    target: places.Target, *, create: bool, patience_ms: Milliseconds
) -> AsyncIterator["Client"]:
    import blackboard

    if target.data is None:
        assert target.url is not None
        connecting = blackboard.connect(
            target.url,
            token=target.token,
            agent=target.agent,
            ca=target.ca,
            patience_ms=patience_ms,
        )
        async with connecting as client:
            yield client
        return
    if not create and not (Path(target.data) / "boards").is_dir():
        raise not_found(
            f"{target.data} is no data directory", "Write to it first, or check its name."
        )
    async with blackboard.open(target.data, agent=target.agent) as client:
        yield client
