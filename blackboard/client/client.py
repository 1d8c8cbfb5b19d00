"""The way to one service: its boards, who I am there, and, for admins, tokens and keys."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType

from blackboard.client.audit_record import AuditRecord
from blackboard.client.board import Board
from blackboard.client.export import import_board
from blackboard.client.link import Link
from blackboard.core.access import Principal
from blackboard.core.checkpoints import Redaction, RedactWish
from blackboard.types import LIST_ENTRIES_MAX, Key, Milliseconds

DEFAULT_BOARD = "main"


class Client:
    """A way to the boards of one service, as one principal."""

    def __init__(
        self,
        link: Link,
        *,
        board: str = DEFAULT_BOARD,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.link = link
        self._board = board
        self._close = close or link.aclose

    def board(self, name: str | None = None) -> Board:
        """The board `name` (None = the one meant by default). Reading begins none."""
        return Board(self.link, name or self._board)

    async def boards(self) -> Sequence[str]:
        """Names of the boards that exist and that you may use."""
        return await self.link.boards()

    async def import_board(self, file: str | Path, board: str, *, note: str = "") -> Board:
        """Make a new board of what `Board.export` wrote into `file`, on any engine.

        Errors: InvalidRequest when there is a board of that name; Corrupt when the file is not what
        was exported. The board exists whole, or not at all.
        """
        await import_board(self.link, Path(file), board, note)
        return Board(self.link, board)

    async def whoami(self) -> Principal:
        """Whom the service takes you for, and what that one may do."""
        return await self.link.whoami()

    async def audit(self) -> AsyncIterator[AuditRecord]:
        """Every record of the audit, the oldest first.

        Errors: AccessDenied unless you are an admin of everything.
        """
        after: Key | None = None
        while True:
            page = await self.link.audit(after=after, limit=LIST_ENTRIES_MAX)
            for _, record in page:
                yield record
            if len(page) < LIST_ENTRIES_MAX:  # not "until nothing comes": this look is recorded too
                return
            after = page[-1][0]

    async def erase(self, agent: str, *, board: str | None = None) -> int:
        """Destroy the data keys of an agent, on one board or on all: nobody reads it any more.

        Log, archive, exports and copies of them stay as they are, and open no more. Returns how
        many keys there were. Errors: AccessDenied; InvalidRequest when nothing is sealed.
        """
        return await self.link.erase(agent, board)

    async def redact(
        self,
        key: Key,
        *,
        board: str | None = None,
        why: str = "",
        progress: Callable[[str], None] | None = None,
    ) -> Redaction:
        """Take every value that `key` ever had out of a board, for good: out of present and past,
        log, archive, blobs, and all boards that share history with it. So for the document there.

        What stays is that it changed, when, by whom, and a marker, `{"$redacted": true}`; a restore
        brings back the marker. A value that was copied to another key is not found; exports and
        backups that were made before are not reached. `progress` is called with each step. Author
        and reason are in the audit.

        Errors: AccessDenied without the admin right on the whole board, or on one that shares its
        history; NoSuchBoard; InvalidRequest for a record of the service; Corrupt when the archive
        is damaged; Unavailable: ask again. Cancellation: it goes on in the service.
        """
        wish = RedactWish(key, why, secrets.token_hex(8))
        step = ""
        while True:
            found = await self.link.redact(board or self._board, wish)
            if found.done:
                return found
            if progress is not None and found.step != step:
                progress(step := found.step)

    async def rewrap(self) -> int:
        """After a new master key was put in front: wrap every data key with it."""
        return await self.link.rewrap()

    async def revoke(
        self,
        *tokens: str,
        principal: str | None = None,
        until_ms: Milliseconds | None = None,
    ) -> int:
        """End tokens by their ids, and all that `principal` was issued until now, at once.

        Returns how many are revoked. Errors: AccessDenied unless they are your own, or you are an
        admin of everything.
        """
        return await self.link.revoke(tokens=tokens, principal=principal, until_ms=until_ms)

    async def aclose(self) -> None:
        """Close every watch, and what the client opened: a connection, or an embedded service.

        Commits that are under way are carried out. Everything asked afterwards is Unavailable. A
        second call does nothing.
        """
        await self._close()


class Opening:
    """What `open` and `connect` return: a client to be.

        client = await blackboard.open("data")            # a notebook: `await client.aclose()` ends
        async with blackboard.open("data") as client:     # a program: the block ends it

    The client lives until it is closed, in whatever task that happens.
    """

    def __init__(self, begin: Callable[[], Awaitable[Client]]) -> None:
        self._begin = begin
        self._client: Client | None = None

    def __await__(self) -> Generator[object, None, Client]:
        return self._begin().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._begin()
        return self._client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.aclose()
