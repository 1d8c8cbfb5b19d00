"""The Client without async.

Written by `python -m tools.sync_client`: do not edit.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from blackboard.client.audit_record import AuditRecord
from blackboard.core.access import Principal
from blackboard.core.checkpoints import LostBoard, Redaction
from blackboard.core.freeze import Freeze
from blackboard.limits import TOKEN_TTL_MS
from blackboard.sync import asynchronous
from blackboard.sync.board import Board
from blackboard.sync.portal import Mirror
from blackboard.units import Key, Milliseconds


class Client(Mirror[asynchronous.Client]):
    """Access to the boards of one service, as one principal."""

    def board(self, name: str | None = None) -> Board:
        """The board `name` (None = the default one). Reading does not create it."""
        return Board(self._portal, self._inner.board(name))

    def boards(self) -> Sequence[str]:
        """Names of the boards that exist and that you may use."""
        return self._portal.run(self._inner.boards)

    def import_board(self, file: str | Path, board: str, *, note: str = "") -> Board:
        """Make a new board of what `Board.export` wrote into `file`, on any engine.

        Errors: InvalidRequest when there is a board of that name; Corrupt when the file was
        altered. The board exists completely or not at all.
        """
        return Board(
            self._portal, self._portal.run(lambda: self._inner.import_board(file, board, note=note))
        )

    def lost_boards(self) -> Sequence[LostBoard]:
        """Boards whose engine lost revisions that the archive has; `Board.recover` recovers one.

        Errors: AccessDenied unless you are an admin of everything.
        """
        return self._portal.run(self._inner.lost_boards)

    def whoami(self) -> Principal:
        """The principal that the service authenticated, with its rights."""
        return self._portal.run(self._inner.whoami)

    def audit(self) -> Iterator[AuditRecord]:
        """Every record of the audit, the oldest first.

        Errors: AccessDenied unless you are an admin of everything.
        """
        return self._portal.iterate(self._inner.audit())

    def remove_board(self, name: str) -> None:
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
        self._portal.run(lambda: self._inner.remove_board(name))

    def erase(self, agent: str, *, board: str | None = None) -> int:
        """Destroy the data keys of an agent, on one board or on all, so that its values become
        unreadable.

        Log, archive, exports and copies of them stay, but their values can no longer be decrypted.
        Returns the number of destroyed keys. Errors: AccessDenied; InvalidRequest without
        encryption at rest.
        """
        return self._portal.run(lambda: self._inner.erase(agent, board=board))

    def redact(
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
        return self._portal.run(
            lambda: self._inner.redact(key, board=board, why=why, progress=progress)
        )

    def rewrap(self) -> int:
        """Wrap every data key with the first master key, after a new one was put first; returns how
        many.
        """
        return self._portal.run(self._inner.rewrap)

    def revoke(
        self, *tokens: str, principal: str | None = None, until_ms: Milliseconds | None = None
    ) -> int:
        """Revoke tokens by their ids, and all that were issued to `principal` until now, at once.

        Returns how many are revoked. Errors: AccessDenied unless they are your own, or you are an
        admin of everything.
        """
        return self._portal.run(
            lambda: self._inner.revoke(*tokens, principal=principal, until_ms=until_ms)
        )

    def token(
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
        return self._portal.run(
            lambda: self._inner.token(name, grants=grants, boards=boards, ttl_ms=ttl_ms)
        )

    def freeze(self, board: str | None = None, *, note: str = "") -> Freeze:
        """Freeze a board (None = the default one): it refuses every commit (BoardFrozen) until it
        is thawed, also after restarts and restores. This is the first measure in an incident.

        Reads, watches, checkpoints and restores continue, and leases can be renewed. If the board
        is already frozen, nothing changes. Returns the freeze, with its author and note. Errors:
        AccessDenied without the admin right on the whole board; NoSuchBoard; Conflict when somebody
        else has frozen and thawed it just now; OutcomeUnknown: repeat the call.
        """
        return self._portal.run(lambda: self._inner.freeze(board, note=note))

    def thaw(self, board: str | None = None, *, note: str = "") -> Freeze | None:
        """Thaw a board, so that it accepts commits again; returns the freeze that this ended, None
        if there was none. Errors: as of `freeze`; Conflict when somebody else has frozen it just
        now.
        """
        return self._portal.run(lambda: self._inner.thaw(board, note=note))

    def frozen(self, board: str | None = None) -> Freeze | None:
        """The freeze of a board, with its author and note; None if it is not frozen. Errors:
        AccessDenied without the right to read FROZEN_KEY, which agents have.
        """
        return self._portal.run(lambda: self._inner.frozen(board))

    def close(self) -> None:
        """Close every watch, and the connection or embedded service of the client.

        Commits in flight finish. Later calls raise Unavailable. A second call does nothing.
        """
        self._portal.forget(id(self._inner))
        self._portal.run(self._inner.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
