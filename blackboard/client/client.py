"""The way to one service: its boards, who I am there, and, for admins, tokens and keys."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType

from blackboard.client.audit_record import AuditRecord
from blackboard.client.board import Board
from blackboard.client.export import import_board
from blackboard.client.link import Transport
from blackboard.core.access import Principal
from blackboard.core.checkpoints import LostBoard, Redaction, RedactRequest
from blackboard.core.freeze import FROZEN_KEY, Freeze, freeze_in
from blackboard.limits import LIST_ENTRIES_MAX
from blackboard.units import Key, Milliseconds

DEFAULT_BOARD = "main"


class Client:
    """A way to the boards of one service, as one principal."""

    def __init__(
        self,
        link: Transport,
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

    async def lost_boards(self) -> Sequence[LostBoard]:
        """Boards of which the archive has what their engine lost; `Board.recover` brings one back.

        Errors: AccessDenied unless you are an admin of everything.
        """
        return await self.link.lost_boards()

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

    async def remove_board(self, name: str) -> None:
        """Remove a board for good: entries, leases, documents, log, archive, data keys.

        Earlier boards of that name that are kept in the archive (`<name>~1`) are removed too. The
        history that a branch shares is kept until the branch is removed. Further requests to the
        board fail with NoSuchBoard. A board that begins under its name later is a different one, in
        a new epoch above all revisions of this one. Repeating the call is safe, also after a crash
        in the middle.

        Errors: AccessDenied without the admin right on the whole board; NoSuchBoard when there is
        none; OutcomeUnknown. Cancellation: it is removed, or it is not.
        """
        await self.link.remove(name)

    async def erase(self, agent: str, *, board: str | None = None) -> int:
        """Destroy the data keys of an agent, on one board or on all: nobody reads it any more.

        Log, archive, exports and copies of them stay, but their values can no longer be decrypted.
        Returns the number of destroyed keys. Errors: AccessDenied; InvalidRequest without
        encryption at rest.
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
        spec = RedactRequest(key, why, secrets.token_hex(8))
        step = ""
        while True:
            found = await self.link.redact(board or self._board, spec)
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

    async def freeze(self, board: str | None = None, *, note: str = "") -> Freeze:
        """Let a board (None = the one meant by default) refuse every commit (BoardFrozen) until it
        is thawed, through restarts and restores: the first act in an incident.

        Reading, watching, checkpoints and restores go on, and leases are kept. A board that is
        frozen stays as it is: what is returned says who froze it, and why.
        Errors: AccessDenied without the admin right on the whole board; NoSuchBoard.
        """
        return await self.link.freeze(board or self._board, note)

    async def thaw(self, board: str | None = None, *, note: str = "") -> Freeze | None:
        """Let a board take commits again; returns the freeze that this ended, None if there was
        none. Errors: as of `freeze`."""
        return await self.link.thaw(board or self._board, note)

    async def frozen(self, board: str | None = None) -> Freeze | None:
        """Who froze a board, and why; None if it is not frozen. Errors: AccessDenied without the
        right to read FROZEN_KEY, which agents have."""
        reading = await self.link.read(board or self._board, [FROZEN_KEY])
        for entry in reading.entries:
            return freeze_in(entry.value, entry.time_ms, entry.mod_revision)
        return None

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
