"""The client of one service: its boards, the caller's principal, and, for admins, tokens and
keys."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

from blackboard.arguments import checks_arguments
from blackboard.client.audit_record import AuditRecord
from blackboard.client.board import Board
from blackboard.client.export import import_board
from blackboard.client.link import Transport
from blackboard.core.access import (
    Principal,
    TokenRequest,
    check_agent_name,
    check_grants,
    parse_grant,
)
from blackboard.core.checkpoints import LostBoard, Redaction, RedactRequest
from blackboard.core.commit import Reading
from blackboard.core.freeze import FROZEN_KEY, Freeze, freeze_in
from blackboard.core.path import check_name
from blackboard.errors import InvalidRequest, StaleEpoch
from blackboard.limits import LIST_ENTRIES_MAX, TOKEN_TTL_MS, TOKEN_TTL_MS_MAX
from blackboard.units import Key, Milliseconds

T = TypeVar("T")
DEFAULT_BOARD = "main"
_SEEN_TRIES: Final = 5
"""Attempts at a request about what was seen of a board. A board begins no epoch for minutes, but
for one under repeated restores or restarts."""


@checks_arguments
class Client:
    """Access to the boards of one service, as one principal."""

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
        """The board `name` (None = the default one). Reading does not create it."""
        return Board(self.link, self._named(name))

    async def boards(self) -> Sequence[str]:
        """Names of the boards that exist and that you may use."""
        return await self.link.boards()

    async def import_board(self, file: str | Path, board: str, *, note: str = "") -> Board:
        """Make a new board of what `Board.export` wrote into `file`, on any engine.

        Errors: InvalidRequest when there is a board of that name; Corrupt when the file was
        altered. The board exists completely or not at all.
        """
        await import_board(self.link, Path(file), board, note)
        return Board(self.link, board)

    async def lost_boards(self) -> Sequence[LostBoard]:
        """Boards whose engine lost revisions that the archive has; `Board.recover` recovers one.

        Errors: AccessDenied unless you are an admin of everything.
        """
        return await self.link.lost_boards()

    async def whoami(self) -> Principal:
        """The principal that the service authenticated, with its rights."""
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
            # Not "until a page is empty": this request is recorded, too.
            if len(page) < LIST_ENTRIES_MAX:
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
        none; StaleEpoch when it was restored, or another one began, just now; OutcomeUnknown.
        Cancellation: it may have been removed.
        """
        # Another board of that name is in another epoch: a late copy of the request spares it.
        await self.link.remove(name, (await self._seen(name)).epoch)

    async def erase(self, agent: str, *, board: str | None = None) -> int:
        """Destroy the data keys of an agent, on one board or on all, so that its values become
        unreadable.

        Log, archive, exports and copies of them stay, but their values can no longer be decrypted.
        Returns the number of destroyed keys. Errors: AccessDenied; InvalidRequest without
        encryption at rest.
        """
        # The id makes a late copy of this request known: it must destroy no key
        # that was made since.
        return await self.link.erase(agent, board, secrets.token_hex(8))

    async def redact(
        self,
        key: Key,
        *,
        board: str | None = None,
        why: str = "",
        progress: Callable[[str], None] | None = None,
    ) -> Redaction:
        """Remove every value that `key` ever had from a board, for good: from the state, log,
        archive and blobs, and from all boards that share history with it. A document at `key` is
        removed likewise.

        The facts that it changed, when, and by whom, stay, and a marker, `{"$redacted": true}`,
        which a restore puts back. Copies of a value at other keys are not found; earlier exports
        and backups are not reached. `progress` is called with each step. Author and reason are in
        the audit.

        Errors: AccessDenied without the admin right on the whole board, or on one that shares its
        history; NoSuchBoard; InvalidRequest for a record of the service; Corrupt when the archive
        is damaged; Unavailable and OutcomeUnknown: repeat the call. Cancellation: it continues in
        the service.
        """
        name = self._named(board)

        async def redact(seen: Reading) -> Redaction:
            spec, step = RedactRequest(key, why, secrets.token_hex(8), seen.revision), ""
            while True:
                # Each request waits for a part of the work only, which may take
                # longer than any request.
                found = await self.link.redact(name, spec)
                if found.done:
                    return found
                if progress is not None and found.step != step:
                    progress(step := found.step)

        return await self._since_seen(name, redact)

    async def rewrap(self) -> int:
        """Wrap every data key with the first master key, after a new one was put first; returns how
        many."""
        return await self.link.rewrap()

    async def revoke(
        self,
        *tokens: str,
        principal: str | None = None,
        until_ms: Milliseconds | None = None,
    ) -> int:
        """Revoke tokens by their ids, and all that were issued to `principal` until now, at once.

        Returns how many are revoked. Errors: AccessDenied unless they are your own, or you are an
        admin of everything.
        """
        return await self.link.revoke(tokens=tokens, principal=principal, until_ms=until_ms)

    async def token(
        self,
        name: str,
        *,
        grants: Sequence[str] | None = None,
        boards: Sequence[str] = (),
        ttl_ms: Milliseconds = TOKEN_TTL_MS,
    ) -> str:
        """A token for the agent `name`, signed by the service and stored nowhere.

        `grants` are texts such as `public/**=read,write` (None = an agent's default rights; see
        docs/howto/tokens.md), `boards` the only boards on which it is valid (empty = all). It is
        valid for `ttl_ms`, at most TOKEN_TTL_MS_MAX, and ends when the token of this client expires
        or is revoked. Each call makes another token.

        Errors: AccessDenied unless you are an admin of everything; InvalidRequest for more rights
        than your own, and where no service signs tokens (a client from
        `blackboard.open`, an application with tokens of its own). Cancellation: nothing is stored.
        """
        if not 1 <= ttl_ms <= TOKEN_TTL_MS_MAX:
            raise InvalidRequest("ttl_ms", f"{ttl_ms} is not in 1..{TOKEN_TTL_MS_MAX}")
        given = None if grants is None else check_grants(map(parse_grant, grants))
        only = frozenset(check_name(board, "board") for board in boards)
        return await self.link.issue(TokenRequest(check_agent_name(name), given, only, ttl_ms))

    async def freeze(self, board: str | None = None, *, note: str = "") -> Freeze:
        """Freeze a board (None = the default one): it refuses every commit (BoardFrozen) until it
        is thawed, also after restarts and restores. This is the first measure in an incident.

        Reads, watches, checkpoints and restores continue, and leases can be renewed. If the board
        is already frozen, nothing changes. Returns the freeze, with its author and note. Errors:
        AccessDenied without the admin right on the whole board; NoSuchBoard; Conflict when somebody
        else has frozen and thawed it just now; OutcomeUnknown: repeat the call.
        """
        name = self._named(board)

        async def freeze(seen: Reading) -> Freeze:
            # A late copy of the request is older than the freeze that it asked for, or found.
            known = seen.entries[0].mod_revision - 1 if seen.entries else seen.revision
            return await self.link.freeze(name, note, known)

        return await self._since_seen(name, freeze)

    async def thaw(self, board: str | None = None, *, note: str = "") -> Freeze | None:
        """Thaw a board, so that it accepts commits again; returns the freeze that this ended, None
        if there was none. Errors: as of `freeze`; Conflict when somebody else has frozen it just
        now."""
        name = self._named(board)
        return await self.link.thaw(name, note, (await self._seen(name)).revision)

    def _named(self, board: str | None) -> str:
        """The board `board`; None = the default one, which "" is not: that is no name."""
        return self._board if board is None else board

    async def _seen(self, board: str) -> Reading:
        """The revision and epoch of a board, and its freeze if it may be read. Unlike `head`, this
        does not begin a board."""
        return await self.link.list(board, FROZEN_KEY, limit=1)

    async def _since_seen(self, board: str, ask: Callable[[Reading], Awaitable[T]]) -> T:
        """What `ask` returns, which requests something as of what was seen of a board; seen again
        when the board began an epoch in between, so that nothing was done. Errors: StaleEpoch when
        it does so all the time."""
        # The last attempt is outside of the loop, so that its StaleEpoch reaches the caller.
        for _ in range(_SEEN_TRIES - 1):
            with suppress(StaleEpoch):
                return await ask(await self._seen(board))
        return await ask(await self._seen(board))

    async def frozen(self, board: str | None = None) -> Freeze | None:
        """The freeze of a board, with its author and note; None if it is not frozen. Errors:
        AccessDenied without the right to read FROZEN_KEY, which agents have."""
        reading = await self.link.read(self._named(board), [FROZEN_KEY])
        for entry in reading.entries:
            return freeze_in(entry.value, entry.time_ms, entry.mod_revision)
        return None

    async def aclose(self) -> None:
        """Close every watch, and the connection or embedded service of the client.

        Commits in flight finish. Later calls raise Unavailable. A second call does nothing.
        """
        await self._close()


class Opening:
    """The result of `open` and `connect`; await it or enter it to get a Client.

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
