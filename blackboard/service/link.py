"""The port between a Board and whatever answers it: this process, or a service far away.

Two implementations: `service/local.py` (the service itself) and `net/client.py` (a WebSocket). The
conformance suite runs the same tests over both.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from blackboard.core.commit import Commit, Head, LogEntry, LogPage, Reading
from blackboard.core.watch import Position
from blackboard.service.views import Cause, Receipt
from blackboard.types import Key, Revision


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What to watch: changes of keys that match `patterns`, after `after` (None = from now on).

    With `coalesce` a watcher that is behind may get several revisions as one, with the last change
    of each key; it is never told less than the newest state.
    """

    patterns: tuple[str, ...]
    after: Position | None = None
    coalesce: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a watcher gets at once: whole revisions, in order, and how far it is now.

    Each revision holds only the changes that match and may be read. Without revisions it is a
    progress mark: everything up to `position` has been delivered.
    """

    revisions: tuple[LogEntry, ...]
    position: Position
    frames: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """Encoded forms by encoding name: watchers with the same view share one Delivery, so whoever
    encodes it first leaves the bytes here for the others."""


class Stream(Protocol):
    """An open watch: iterate for deliveries."""

    @property
    def position(self) -> Position:
        """Everything up to here was delivered, or is not visible."""

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Deliveries without end. Errors: Compacted, RolledBack, AccessDenied, Unavailable."""

    async def request_progress(self) -> None:
        """Ask for a progress mark; it comes through the iteration, after what is before it."""


class Link(Protocol):
    """A principal's way to the boards. Errors are those of blackboard/errors.py only."""

    @property
    def agent(self) -> str:
        """The name under which this link commits."""

    @property
    def origin(self) -> object:
        """The service that this leads to; equal for two links if they surely lead to the same."""

    def acting_as(self, agent: str) -> "Link":
        """The same way with the rights and name of `agent`; AccessDenied on use if not allowed."""

    async def head(self, board: str) -> Head:
        """Where `board` stands; the board is created if it does not exist."""

    async def commit(self, board: str, commit: Commit) -> Receipt:
        """Send one attempt of a commit.

        Errors: a Rejected (nothing changed); Unavailable (certainly not applied);
        OutcomeUnknown (perhaps applied: send the same commit again with `retry_since`).
        """

    async def read(self, board: str, keys: Sequence[Key]) -> Reading:
        """Entries of up to READ_KEYS_MAX keys as of one revision; absent ones are left out."""

    async def list(
        self, board: str, pattern: str, *, after: Key | None = None, limit: int
    ) -> Reading:
        """A page of the entries that match `pattern` and may be read, in key order."""

    async def leases(
        self, board: str, pattern: str, *, after: Key | None = None, limit: int
    ) -> Reading:
        """A page of the leases whose keys match `pattern` and may be read, in key order."""

    async def log(self, board: str, after: Revision, *, limit: int) -> LogPage:
        """A page of the log after revision `after`, with what may be read of each entry."""

    async def why(self, board: str, key: Key) -> Sequence[Cause]:
        """The commits that led to `key`, breadth first."""

    def watch(self, board: str, request: WatchRequest) -> AbstractAsyncContextManager[Stream]:
        """Open a watch. It is live when the context is entered."""

    async def boards(self) -> Sequence[str]:
        """Names of the boards that the principal may use."""

    async def aclose(self) -> None:
        """Close the link and every watch on it."""
