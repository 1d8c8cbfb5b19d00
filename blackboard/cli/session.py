"""From the flags of a command to a board to work with."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from blackboard.cli import screen, target as places
from blackboard.cli.errors import CommandError, not_found
from blackboard.cli.options import Flags
from blackboard.errors import AccessDenied, BlackboardError, InvalidRequest
from blackboard.limits import COMMAND_PATIENCE_MS, DEFAULT
from blackboard.units import Key, Milliseconds

if TYPE_CHECKING:
    from blackboard.client.board import Board
    from blackboard.client.client import Client
    from blackboard.core.checkpoints import LostBoard

T = TypeVar("T")
NEAR_MAX: Final = 3
"""Most names that are suggested in place of a mistyped one."""
_ANY_KEY: Final = "public/~"
_AT_ONCE: Final = replace(DEFAULT, client=replace(DEFAULT.client, connect_wait_ms=0))
"""Somebody sits in front of a command: it says at once that nothing runs there."""


def target_of(flags: Flags) -> places.Target:
    """The target, from the flags, the environment and the contexts."""
    return places.resolve(flags, os.environ, places.load(places.config_directory()))


def data_of(flags: Flags) -> str | None:
    """The selected data directory; None leaves it to the settings."""
    return places.data_directory(flags, os.environ, places.load(places.config_directory()))


def with_board(
    flags: Flags,
    work: Callable[["Board"], Awaitable[T]],
    *,
    create: bool = False,
    patience_ms: Milliseconds = COMMAND_PATIENCE_MS,
) -> T:
    """Run `work` on the selected board; with `create`, `--data` may name a new directory.

    It waits up to `patience_ms` for an answer, and for a broken connection, before it is
    Unavailable.
    """

    async def on_board(_: "Client", board: "Board") -> T:
        return await work(board)

    return with_client_and_board(flags, on_board, create=create, patience_ms=patience_ms)


def with_client_and_board(
    flags: Flags,
    work: Callable[["Client", "Board"], Awaitable[T]],
    *,
    create: bool = False,
    patience_ms: Milliseconds = COMMAND_PATIENCE_MS,
) -> T:
    """As `with_board`, for work that also uses the client."""
    target = target_of(flags)

    async def on_both(client: "Client") -> T:
        return await work(client, client.board(target.board))

    return _run(target, on_both, create=create, patience_ms=patience_ms)


def with_client(flags: Flags, work: Callable[["Client"], Awaitable[T]]) -> T:
    """Run `work` on the selected service."""
    return _run(target_of(flags), work, create=False, patience_ms=COMMAND_PATIENCE_MS)


async def has_begun(board: "Board") -> bool:
    """Whether anything was ever committed to the board.

    It uses a listing, which needs no right and creates no board. Reading the head of a board with a
    mistyped name would create it, if the caller may change anything there.
    """
    return (await board.list(_ANY_KEY, limit=1)).revision > 0


async def first_revision(made: "Board") -> int | None:
    """The revision of a board that was just made; None if it cannot be read.

    It is made all the same: an error would say that nothing was changed.
    """
    try:
        return (await made.head()).revision
    except BlackboardError:
        return None


async def absent(client: "Client", board: "Board", key: Key) -> CommandError:
    """The error for an absent key; the board itself may not exist."""
    if await has_begun(board):
        return not_found(f"{key} is absent", "See what there is with: blackboard ls")
    fix = await _likely(client, board) or "See which boards there are with: blackboard boards"
    return not_found(f"{key} is absent: {_no_commits(board)}", fix)


async def tell_no_commits(client: "Client", board: "Board") -> None:
    """Say that the board has no commits yet, and which one is likely meant."""
    screen.say(_no_commits(board))
    if likely := await _likely(client, board):
        screen.say(likely)


def _no_commits(board: "Board") -> str:
    return f"board {board.name} has no commits yet"


async def _likely(client: "Client", board: "Board") -> str:
    """A suggestion of visible boards with a similar name; "" for none."""
    from difflib import get_close_matches

    others = [name for name in await client.boards() if name != board.name]
    near = get_close_matches(board.name, others, n=NEAR_MAX)
    begun = [name for name in near if await has_begun(client.board(name))]
    return f"Did you mean {' or '.join(begun)}?" if begun else ""


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
            limits=_AT_ONCE,
        )
        async with connecting as client:
            yield client
        return
    # A mistyped name would otherwise become a new, empty directory.
    if not create and not holds_boards(Path(target.data)):
        raise not_found(
            f"{target.data} is no data directory", "Write to it first, or check its name."
        )
    from blackboard.embedded import open_as_set

    async with open_as_set(target.data, agent=target.agent) as client:
        yield client


def holds_boards(data: Path) -> bool:
    """Whether a data directory was used, as far as this process may look."""
    # Path.is_dir raises an error for a name that is too long, or in a closed directory.
    return os.path.isdir(data / "boards")  # noqa: PTH112


async def lost_boards(client: "Client") -> "Sequence[LostBoard]":
    """As `Client.lost_boards`; none without the right to know, or from an older service."""
    try:
        return await client.lost_boards()
    except (AccessDenied, InvalidRequest):
        return ()


def describe_loss(loss: "LostBoard") -> tuple[str, str]:
    """A description of a loss that the archive can recover, and the commands for it."""
    what = f"board {loss.board} is in the archive alone"
    if loss.apart_from:
        what += f", set apart from {loss.apart_from}"
    elif loss.survived:
        what = f"board {loss.board}: its engine lost revisions {loss.survived + 1}"
        what += f" to {loss.through}"
    back = f"blackboard recover {loss.board}"
    return what, back if loss.survived else f"{back}, or blackboard board remove {loss.board}"
