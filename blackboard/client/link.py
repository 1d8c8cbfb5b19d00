"""The port between a Board and the service, which runs in this process or elsewhere.

Two implementations: `server/requests.py` (the service itself) and `client/remote/link.py` (a
WebSocket). The conformance suite runs the same tests over both.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from blackboard.client.audit_record import AuditRecord
from blackboard.client.views import Cause, Receipt
from blackboard.core.access import Principal, TokenRequest
from blackboard.core.checkpoints import (
    Activity,
    BranchRequest,
    Checkpoint,
    CheckpointInfo,
    CheckpointRequest,
    Differences,
    DiffRequest,
    ExportPage,
    ImportRequest,
    LostBoard,
    Moment,
    Pruned,
    Recovered,
    RecoverRequest,
    Redaction,
    RedactRequest,
    RefusedCommit,
    Restored,
    RestoreRequest,
    RetentionPolicy,
    Verified,
    Version,
)
from blackboard.core.commit import (
    FORWARD,
    Commit,
    Entry,
    Head,
    ListOptions,
    LogEntry,
    LogPage,
    Reading,
)
from blackboard.core.freeze import Freeze
from blackboard.core.watch import Position
from blackboard.limits import Limits
from blackboard.units import Key, Milliseconds, Revision


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What to watch: changes of keys that match `patterns`, after `after` (None = from now on).

    With `coalesce` a watcher that is behind may get several revisions as one, with the last change
    of each key; it always gets the newest state.
    """

    patterns: tuple[str, ...]
    after: Position | None = None
    coalesce: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery to a watcher: whole revisions, in order, and its new position.

    Each revision holds only the changes that match and may be read. Without revisions it is a
    progress mark: everything up to `position` has been delivered.
    """

    revisions: tuple[LogEntry, ...]
    position: Position
    frames: dict[tuple[str, int | None], list[bytes]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Encoded forms by encoding and number of the watch (None: of any). Watchers with the same view
    share one Delivery: the first to encode it leaves the bytes here for the others."""


class Stream(Protocol):
    """An open watch: iterate for deliveries."""

    @property
    def position(self) -> Position:
        """Everything up to here was delivered, or is not visible."""

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Deliveries without end. Errors: Compacted, RolledBack, AccessDenied, Unavailable."""

    async def request_progress(self) -> None:
        """Ask for a progress mark; it comes through the iteration, after what is before it."""


class Pipe(Protocol):
    """A connection to one document, in the y-websocket protocol (wire/ysync.py)."""

    async def send(self, frame: bytes) -> None:
        """Send a frame, when there is room. Errors: DocumentRefused, Unavailable."""

    async def receive(self) -> bytes:
        """The next frame. Errors: DocumentRefused when the service ended it; Unavailable."""

    async def ended(self) -> None:
        """Wait until it has ended."""


class Transport(Protocol):
    """A principal's way to the boards. Errors are those of blackboard/errors only.

    Methods that change something also raise OutcomeUnknown: it may have been done.
    """

    @property
    def limits(self) -> Limits:
        """How long this process waits, how often it tries, and how much it keeps."""

    @property
    def agent(self) -> str:
        """The name under which this link commits."""

    @property
    def account(self) -> str | None:
        """The account on which it acts; it differs from `agent` if that name was narrowed from it.

        None when an older service does not report it.
        """

    @property
    def origin(self) -> object:
        """Identifies the service; equal for two links if they certainly lead to the same
        service."""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed for good, with its client or the service of this process: nothing
        need be tried again."""

    def acting_as(self, agent: str) -> "Transport":
        """The same link with the rights and the name of `agent`; AccessDenied on use if not
        allowed."""

    async def head(self, board: str) -> Head:
        """The head of `board`, which is created by this if you may change anything there.

        Reading creates no board, and a missing board reads as empty. Errors: NoSuchBoard when there
        is none, and you may only read.
        """

    async def commit(self, board: str, commit: Commit) -> Receipt:
        """Send one attempt of a commit.

        Errors: a Rejected (nothing changed); Unavailable (certainly not applied);
        OutcomeUnknown (perhaps applied: send the same commit again with `retry_since`).
        """

    async def read(self, board: str, keys: Sequence[Key], *, at: Moment | None = None) -> Reading:
        """Entries of up to READ_KEYS_MAX keys as of one revision; absent ones are left out.

        With `at`, as they were then.
        """

    async def list(
        self,
        board: str,
        pattern: str,
        *,
        after: Key | None = None,
        limit: int,
        at: Moment | None = None,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """A page of the entries that match `pattern` and may be read, in key order.

        With `at`, as they were then. In descending order, `after` is the key before which it goes
        on. A value that is left out is `b""`.
        """

    async def leases(
        self, board: str, pattern: str, *, after: Key | None = None, limit: int
    ) -> Reading:
        """A page of the leases whose keys match `pattern` and may be read, in key order."""

    async def log(
        self,
        board: str,
        after: Revision,
        *,
        limit: int,
        pattern: str | None = None,
        author: str | None = None,
        proofs: bool = False,
    ) -> LogPage:
        """A page of the log after revision `after`, with what may be read of each entry.

        Up to `limit` entries are read, and those returned that match `pattern` and `author`, if
        given. With `proofs`, which exclude a pattern, it includes the data to compute their
        digests.
        """

    async def activity(
        self, board: str, *, after: Revision, until: Revision | None, parts: int
    ) -> Activity:
        """How many commits that may be seen each agent made after revision `after`, up to `until`
        (None: now), in `parts` of that span."""

    async def refusals(self, board: str, *, after: int) -> Sequence[RefusedCommit]:
        """The newest refused commits that may be seen, above number `after`, as far as the process
        that is asked remembers them."""

    async def why(self, board: str, key: Key) -> Sequence[Cause]:
        """The commits that led to `key`, breadth first."""

    def watch(self, board: str, request: WatchRequest) -> AbstractAsyncContextManager[Stream]:
        """Open a watch. It is live when the context is entered."""

    # --- history (client/board.py says what each means) ------------------------------------------

    async def checkpoint(self, board: str, spec: CheckpointRequest) -> Checkpoint:
        """Take a checkpoint; the same request again gets the same answer."""

    async def checkpoints(self, board: str, *, after: Revision, limit: int) -> Sequence[Checkpoint]:
        """A page of the checkpoints above revision `after`, the oldest first."""

    async def manifest(self, board: str, name: str) -> CheckpointInfo:
        """A checkpoint with its manifest."""

    async def pin(self, board: str, name: str, *, pinned: bool) -> None:
        """Protect a checkpoint from pruning, or end that."""

    async def prune(self, board: str, policy: RetentionPolicy, *, dry_run: bool) -> Pruned:
        """Remove what `policy` does not keep, or say what that would be."""

    async def restore(self, board: str, spec: RestoreRequest) -> Restored:
        """Bring back the content of a moment; the same request again gets the same answer."""

    async def recover(self, board: str, spec: RecoverRequest) -> Recovered:
        """Recover a board that its engine lost from the archive; repeat the call until it is
        done."""

    async def redact(self, board: str, spec: RedactRequest) -> Redaction:
        """Remove every value of a key from a board, and from all boards that share its history;
        repeat the call until it is done."""

    async def freeze(self, board: str, note: str, known: Revision | None = None) -> Freeze:
        """Freeze the board; if it is already frozen, returns the existing freeze.

        `known` is the revision at which the request was made. Errors: Conflict for a copy that
        comes late: another freeze began since then, and was thawed.
        """

    async def thaw(self, board: str, note: str, known: Revision | None = None) -> Freeze | None:
        """Thaw the board; returns the freeze that this ended, None if it was not frozen. `known` as
        in `freeze`: Conflict for a freeze that began since then."""

    async def remove(self, board: str, epoch: str | None = None) -> None:
        """Remove a board for good; see `Client.remove_board`.

        With `epoch`, StaleEpoch unless the board is in that epoch; "" = there is none.
        """

    async def branch(self, board: str, spec: BranchRequest) -> Head:
        """Make a board that begins with the content of this one; a repeated request changes
        nothing."""

    async def differences(self, board: str, spec: DiffRequest) -> Differences:
        """A page of what differs between two moments and may be read."""

    async def history(
        self,
        board: str,
        key: Key,
        *,
        before: Revision | None,
        after: Revision | None = None,
        author: str | None = None,
        limit: int,
    ) -> Sequence[Version]:
        """Versions of a key, the newest first; above `after` and of `author`, if given. About
        PAGE_BYTES_MAX bytes of them."""

    async def verify(self, board: str, at: Moment) -> Verified:
        """Check everything that is stored up to a moment."""

    async def export(self, board: str, name: str, *, after: Key | None) -> ExportPage:
        """A page of a checkpoint, every namespace of it."""

    async def import_begin(self, board: str, spec: ImportRequest) -> None:
        """Begin to make `board` of what was exported; its pages follow."""

    async def import_page(
        self, board: str, request: str, number: int, entries: Sequence[Entry]
    ) -> None:
        """The next page of an import, counted from 0."""

    async def import_end(self, board: str, request: str) -> Head:
        """After the last page: the board exists, if the digests are those of the manifest."""

    def document(self, board: str, key: Key) -> AbstractAsyncContextManager[Pipe]:
        """Connect to the document at `key`. Errors: AccessDenied, Unavailable, LimitExceeded."""

    async def boards(self) -> Sequence[str]:
        """Names of the boards that the principal may use."""

    async def lost_boards(self) -> Sequence[LostBoard]:
        """Boards whose engine lost revisions that the archive has, by name.

        Errors: AccessDenied unless the principal is an admin of everything.
        """

    async def whoami(self) -> Principal:
        """The principal that the service authenticated, with its rights."""

    async def audit(self, *, after: Key | None, limit: int) -> Sequence[tuple[Key, AuditRecord]]:
        """Records of the audit after the one with key `after`, the oldest first, with their keys.

        Errors: AccessDenied unless the principal is an admin of everything.
        """

    async def erase(self, agent: str, board: str | None = None, request: str | None = None) -> int:
        """Destroy the data keys of an agent's namespaces, on one board or on all, for good.

        Returns how many there were. A `request` (a random id) that was carried out before destroys
        nothing, and gets its first answer: a late copy of it spares newer keys. Errors:
        AccessDenied unless the principal is an admin of everything; InvalidRequest when the service
        does not encrypt.
        """

    async def rewrap(self) -> int:
        """Wrap every data key with the first master key; returns how many. Errors: as `erase`."""

    async def revoke(
        self,
        *,
        tokens: Sequence[str] = (),
        principal: str | None = None,
        until_ms: Milliseconds | None = None,
    ) -> int:
        """Revoke tokens by id, and all that `principal` was issued until now; they end at once.

        `until_ms` is when they expire, if that is known. Returns how many are revoked. Errors:
        AccessDenied unless they are the principal's own, or it is an admin of everything.
        """

    async def issue(self, request: TokenRequest) -> str:
        """A token for an agent, signed by the service, with no more rights than the principal.

        Errors: AccessDenied unless the principal is an admin of everything; InvalidRequest when
        more is asked for, or by a service that signs no tokens.
        """

    async def aclose(self) -> None:
        """Close the link and every watch on it."""
