"""The only way into the service: every request of a principal is checked here, then carried out.

Data that the principal may not read is neither returned nor hinted at: keys are checked before the
engine is asked, and the results of patterns are filtered afterwards.

The right to checkpoint or restore a whole board does not include the right to read it. Comparisons,
histories and historical reads show what the principal may read now, a manifest shows the digests of
fully readable namespaces, and no refusal names a key that was not requested. An export and an
import carry everything, private namespaces included, and need the admin right on the whole board.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Final

from msgspec.structs import replace

from blackboard import telemetry
from blackboard.client.audit_record import AuditRecord
from blackboard.client.link import Stream, Transport, WatchRequest
from blackboard.client.views import Cause, Receipt
from blackboard.core import access, history, log_entry, path as paths
from blackboard.core.access import Checked, Principal, Right, TokenRequest
from blackboard.core.checkpoints import (
    AUTOMATIC,
    NAMED,
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
    Point,
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
    checkpoint_key,
)
from blackboard.core.commit import (
    FORWARD,
    PRESENT,
    Commit,
    Committed,
    Entry,
    Epoch,
    Head,
    ListOptions,
    LogPage,
    Reading,
    signature,
)
from blackboard.core.digest import content_of
from blackboard.core.directories import parse_listing
from blackboard.core.fields import check_note
from blackboard.core.freeze import Freeze
from blackboard.core.history import Tally
from blackboard.core.lease import page_of
from blackboard.core.model import Outcome
from blackboard.core.path import check_key, parse_pattern, parse_patterns
from blackboard.core.view import View
from blackboard.core.watch import Position
from blackboard.encryption.archive import sealed_entry
from blackboard.encryption.data_keys import DataKeys
from blackboard.encryption.store import SealedStore
from blackboard.errors import (
    BlackboardError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NoSuchBoard,
    RateLimited,
    Unavailable,
)
from blackboard.integrity.digest_check import sealed_form
from blackboard.limits import (
    CHECKPOINTS_PAGE_MAX,
    EXPORT_ITEMS_MAX,
    FINDINGS_MAX,
    HISTORY_VERSIONS_MAX,
    LIST_ENTRIES_MAX,
    LOG_ENTRIES_MAX,
    READ_KEYS_MAX,
    REVISION_MAX,
)
from blackboard.server.boards import Boards, OpenBoard
from blackboard.server.checkpoints.branch import Branches
from blackboard.server.checkpoints.reader import HistoryReader, begin_archive, causes
from blackboard.server.checkpoints.recover import Recoveries
from blackboard.server.checkpoints.redact import Redactions
from blackboard.server.checkpoints.restore import Restores
from blackboard.server.checkpoints.schedule import Retention
from blackboard.server.checkpoints.take import Checkpoints, info_of
from blackboard.server.commit_queue import Answered, Outcomes, Ticket, new_salt
from blackboard.server.documents.session import Session
from blackboard.server.feed import Permitted
from blackboard.server.gates import CommitGates
from blackboard.server.host import Host
from blackboard.server.overload.rate_limits import clock_ms
from blackboard.server.pages import (
    ArchivedSource,
    PresentSource,
    Source,
    check_limit,
    listed,
    listed_one,
)
from blackboard.server.security.audit import UNRECORDED, Audited, audited
from blackboard.server.security.revocations import Permit
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import decode_value
from blackboard.wire.methods import RIGHTS, CommitParams


class RequestHandler:
    """A `Transport` (client/link.py) into the service of this process."""

    def __init__(
        self, boards: Boards, principal: Principal, permitted: Principal | None = None
    ) -> None:
        self.principal = principal
        """The principal. A newer token replaces it by the same principal with the same rights."""
        self._permitted, self._boards = permitted, boards
        self._host = host = boards.host
        self.limits = host.limits
        self._readable = access.readable(principal.grants)
        self._opener = None if principal.acts_for_any else principal.account
        self._beginner = None if principal.credential is None else self._opener
        self._meter = host.meters.meter(principal)
        self._has_token = principal.credential is not None
        self._narrowed_from = access.narrowed_from(principal)
        self.gates = CommitGates(host, principal, served=False)
        """The gates for commits from programs in this process."""
        self.served_gates = CommitGates(host, principal, served=True)
        """The gates for commits from a connection, which has validated them already (`start`)."""

    @property
    def agent(self) -> str:
        """The name under which this link commits."""
        return self.principal.name

    @property
    def account(self) -> str:
        """The account for which it acts."""
        return self.principal.account

    @property
    def origin(self) -> object:
        """The service of this process."""
        return self._host

    @property
    def is_closed(self) -> bool:
        """Whether that service stops, which is for good."""
        return self._host.draining

    def acting_as(self, agent: str) -> Transport:
        """A link with the rights and the name of `agent`. Errors: AccessDenied."""
        return RequestHandler(self._boards, access.acting_as(self.principal, agent))

    async def head(self, board: str) -> Head:
        """The head of `board`. Creates the board if the principal may change anything there.

        Errors: NoSuchBoard.
        """
        with self._audited("head", board):
            self._check(board)
            return await (await self._begin(board, again=True)).head()

    async def commit(self, board: str, commit: Commit) -> Receipt:
        """Check and carry out one attempt at a commit. See `Transport.commit`."""
        with self._audited("commit", board):
            self.gates.check_board(self.principal, board)
            permit = self._permit()
            commit = replace(commit, salt=new_salt(), account=self._narrowed_from)
            prepared = self.gates.passed(self.principal, commit)
            opened = self._boards.get(board)
            if opened is None and self._beginner is not None:
                opened = await self._begin(board)
            elif opened is None:
                opened = await self._boards.use(board, self._opener)
            outcome = await opened.submit(prepared, permit)
        return self.finish(board, outcome)

    def start(
        self, board: str, wanted: Sequence[tuple[Ticket, CommitParams, str]], answered: Answered
    ) -> Outcomes:
        """Queue commits that came together and that the wire layer has validated; `can_start` must
        hold. `answered` gets their outcomes, which `finish` takes; those that are refused before
        they are sent are returned, and `answered` does not get them.
        """
        opened = self._boards.get(board)
        assert opened is not None, "see can_start"
        principal, gates, permit = self.principal, self.served_gates, self._permit()
        try:
            gates.check_board(principal, board)
        except BlackboardError as error:
            return [(ticket, self._refused(board, error)) for ticket, *_ in wanted]
        refused: Outcomes = []
        for ticket, params, trace in wanted:
            try:
                commit = params.to_core(principal.name, self._narrowed_from, new_salt())
                opened.queue.add(gates.passed(principal, commit), permit, answered, ticket, trace)
            except BlackboardError as error:
                refused.append((ticket, self._refused(board, error)))
        return refused

    def _refused(self, board: str, error: BlackboardError) -> BlackboardError:
        """Audit the refusal of a commit."""
        if self._has_token:
            Audited(self._host.audit, self.principal, "commit", board, ()).note_error(error)
        return error

    @property
    def _signature(self) -> str:
        """The signature of the principal in the service's own records."""
        return signature(self.principal.name, self._narrowed_from)

    def can_start(self, board: str) -> bool:
        """Whether `start` may be called: the board is open, and there are no lock masters to
        ask."""
        return self._host.lock_masters is None and self._boards.get(board) is not None

    def finish(self, board: str, outcome: Outcome | BlackboardError) -> Receipt:
        """The receipt of a commit to `board` that took effect. Errors: why it did not."""
        if isinstance(outcome, Committed):  # a success is not audited: the log has it
            level = outcome.level or self._host.level
            return Receipt(
                outcome.revision, outcome.time_ms, outcome.results, level, outcome.duplicate
            )
        raise self._refused(board, self._as_seen(outcome))

    async def read(self, board: str, keys: Sequence[Key], *, at: Moment | None = None) -> Reading:
        """Entries of `keys` as of one revision. Errors: AccessDenied for the first unreadable
        key."""
        with self._audited("read", board, keys):
            self._check(board)
            if len(keys) > READ_KEYS_MAX:
                raise LimitExceeded("READ_KEYS_MAX", len(keys), READ_KEYS_MAX, "keys")
            for key in keys:
                access.require(self.principal, Right.READ, check_key(key))
            opened = await self._boards.find(board, self._opener)
            if opened is None:
                return _NOTHING
            if at is not None:
                return await HistoryReader(opened).read(keys, at)
            return await opened.read(keys)

    async def list(
        self,
        board: str,
        pattern: str,
        *,
        after: Key | None = None,
        limit: int = LIST_ENTRIES_MAX,
        at: Moment | None = None,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """A page of the readable entries that match `pattern`."""
        with self._audited("list", board, pattern):
            self._check(board)
            check_limit(limit, LIST_ENTRIES_MAX)
            parsed = parse_listing(pattern, options.delimiter)
            opened = await self._boards.find(board, self._opener)
            if opened is None:
                return _NOTHING
            source: Source = PresentSource(opened.store, board)
            if at is not None:
                past = HistoryReader(opened)
                source = ArchivedSource(past.archive, await past.point(at))
            if parsed.literal:
                readable = self._readable(check_key(pattern))
                return await listed_one(source, pattern if readable else None, after, options)
            reach = access.reach(self.principal.grants, pattern)
            reading = await listed(source, reach, parsed, after, limit, options)
            if reading is None:
                raise Unavailable(f"board {board}", "it changed between the pages of a listing")
            return reading

    async def leases(
        self, board: str, pattern: str, *, after: Key | None = None, limit: int = LIST_ENTRIES_MAX
    ) -> Reading:
        """A page of the readable leases whose keys match `pattern`."""
        with self._audited("leases", board, pattern):
            self._check(board)
            check_limit(limit, LIST_ENTRIES_MAX)
            parsed = parse_pattern(pattern)
            opened = await self._boards.find(board, self._opener)
            if opened is None:
                return _NOTHING
            reading = await opened.store.leases(board)
            found = [
                lease
                for lease in reading.leases
                if (after is None or lease.key > after)
                and parsed.matches(lease.key)
                and self._readable(lease.key)
            ]
            page = page_of(found, limit)
            next_key = page[-1].key if len(page) < len(found) else None
            return replace(reading, leases=tuple(page), next_key=next_key)

    async def log(
        self,
        board: str,
        after: Revision,
        *,
        limit: int = LOG_ENTRIES_MAX,
        pattern: str | None = None,
        author: str | None = None,
        proofs: bool = False,
    ) -> LogPage:
        """A page of the log, with the readable part of each entry; entries without one are left
        out.

        Cost: `limit` entries are read, however few of them match.
        """
        with self._audited("log", board, after):
            self._check(board)
            check_limit(limit, LOG_ENTRIES_MAX)
            author = None if author is None else paths.check_name(author, "author")
            wanted = None if pattern is None else parse_pattern(pattern)
            if proofs and wanted is not None:
                raise InvalidRequest("proofs", "they are of all that may be read: no pattern")
            show = partial(history.logged, readable=self._readable, pattern=wanted, author=author)
            opened = await self._boards.find(board, self._opener)
            if opened is None:
                return _NO_LOG
            prove = partial(log_entry.proof_of, readable=self._readable, content=_content_of)
            gathered = history.Gathered(after, limit, show, prove if proofs else None)
            return await HistoryReader(opened).gather_log(gathered)

    async def activity(
        self, board: str, *, after: Revision, until: Revision | None, parts: int
    ) -> Activity:
        """How many readable commits each agent made along a span of revisions."""
        with self._audited("activity", board, after):
            self._check(board)
            opened = await self._boards.find(board, self._opener)
            if opened is None:
                return Tally(0, 0, parts).activity(0)
            reach = access.reach(self.principal.grants, "**")
            return await HistoryReader(opened).activity((after, until), parts, reach)

    async def refusals(self, board: str, *, after: int) -> Sequence[RefusedCommit]:
        """The newest refused commits that the principal may see."""
        with self._audited("refusals", board, after):
            self._check(board)
            if (opened := self._boards.get(board)) is None:
                return ()
            return opened.refusals.shown(self.principal, self._readable, after)

    async def why(self, board: str, key: Key) -> Sequence[Cause]:
        """The readable commits that led to `key`."""
        with self._audited("why", board, key):
            self._check(board)
            access.require(self.principal, Right.READ, check_key(key))
            opened = await self._boards.find(board, self._opener)
            if opened is None:
                return ()
            entries = (await opened.read([key])).entries
            return await causes(HistoryReader(opened), entries, self._readable)

    def watch(self, board: str, request: WatchRequest) -> AbstractAsyncContextManager[Stream]:
        """Open a watch. It delivers only what the principal may read."""
        with self._audited("watch", board, request):
            self._check(board)
            patterns, grants = parse_patterns(request.patterns), self.principal.grants
            view = View.of(patterns, grants, coalesce=request.coalesce)
            return self._watch(board, view, request.after)

    @asynccontextmanager
    async def _watch(self, board: str, view: View, after: Position | None) -> AsyncIterator[Stream]:
        feed = (await self._begin(board)).feed
        with self._host.watches.one(self.principal.account):
            async with feed.watch(view, after, self._readable) as watcher:
                if self.principal.credential is None:
                    yield watcher
                else:
                    yield Permitted(watcher, self._check_token)

    def document(self, board: str, key: Key) -> AbstractAsyncContextManager[Session]:
        """Join the document at `key`. See `Documents.join`."""
        with self._audited("document", board, key):
            self._check(board)
            prefix = paths.document_prefix(paths.check_document(key))
            access.require_below(self.principal, Right.READ, prefix)
            return self._document(board, key)

    @asynccontextmanager
    async def _document(self, board: str, key: Key) -> AsyncIterator[Session]:
        assert self._host.documents is not None, "a service has documents"
        await self._begin(board)
        joined = self._host.documents.join(
            board, key, self.principal, self._check_token, self._take_log
        )
        async with joined as session:
            yield session

    # --- history ----------------------------------------------------------------------------------

    async def checkpoint(self, board: str, spec: CheckpointRequest) -> Checkpoint:
        """Take a checkpoint."""
        with self._audited("checkpoint", board, spec):
            await self._check_whole("checkpoint", board)
            opened = await self._begin(board)
            if spec.kind not in (NAMED, AUTOMATIC):
                raise InvalidRequest(field="kind", reason=f"{spec.kind!r} is the service's own")
            check_note(spec.note)
            return await Checkpoints(opened).take(spec, self._signature)

    async def checkpoints(
        self, board: str, *, after: Revision = 0, limit: int = CHECKPOINTS_PAGE_MAX
    ) -> Sequence[Checkpoint]:
        """A page of the readable checkpoints."""
        with self._audited("checkpoints", board):
            self._check(board)
            check_limit(limit, CHECKPOINTS_PAGE_MAX)
            opened = await self._boards.find(board, self._opener)
            if opened is None:
                return ()
            found = await Checkpoints(opened).all()
            shown = [
                c for c in found if c.revision > after and self._readable(checkpoint_key(c.name))
            ]
            return shown[:limit]

    async def manifest(self, board: str, name: str) -> CheckpointInfo:
        """A checkpoint with the readable part of its manifest."""
        with self._audited("manifest", board):
            self._check(board)
            access.require(self.principal, Right.READ, check_key(checkpoint_key(name)))
            opened = await self._use(board)
            checkpoint, stored = await Checkpoints(opened).sealed(name)
            return info_of(checkpoint, stored, self.principal.grants)

    async def pin(self, board: str, name: str, *, pinned: bool) -> None:
        """Protect a checkpoint from pruning, or end the protection."""
        with self._audited("pin", board, name, pinned):
            opened = await self._use(board, "pin")
            await Checkpoints(opened).pin(name, pinned=pinned)

    async def prune(self, board: str, policy: RetentionPolicy, *, dry_run: bool = False) -> Pruned:
        """Remove what `policy` does not keep."""
        with self._audited("prune", board, policy, dry_run):
            opened = await self._use(board, "prune")
            return await Retention(opened).prune(policy, dry_run=dry_run)

    async def restore(self, board: str, spec: RestoreRequest) -> Restored:
        """Restore the content of an earlier moment."""
        with self._audited("restore", board, spec):
            opened = await self._use(board, "restore")
            check_note(spec.note)
            return await Restores(opened).restore(spec, self.principal)

    async def recover(self, board: str, spec: RecoverRequest) -> Recovered:
        """Rebuild from the archive a board that its engine lost."""
        with self._audited("recover", board, spec):
            await self._check_whole("recover", board)
            check_note(spec.note)
            return await Recoveries.of(self._boards).recover(board, spec)

    async def redact(self, board: str, spec: RedactRequest) -> Redaction:
        """Remove every value of a key from a board and from all boards that share its history."""
        with self._audited("redact", board, spec):
            await self._use(board, "redact")
            redactions = Redactions.of(self._boards)
            redactions.check(spec)
            for name in await redactions.boards(board):
                access.require_board(self.principal, name)
            return await redactions.redact(board, spec, self._signature)

    async def freeze(self, board: str, note: str, known: Revision | None = None) -> Freeze:
        """Freeze the board: from now on its commits are refused. See `Transport.freeze`."""
        with self._audited("freeze", board, note):
            opened = await self._use(board, "freeze")
            return await opened.freeze(self._signature, note, known)

    async def thaw(self, board: str, note: str, known: Revision | None = None) -> Freeze | None:
        """Thaw the board: commits are accepted again. See `Transport.thaw`."""
        with self._audited("thaw", board, note):
            opened = await self._use(board, "thaw")
            return await opened.thaw(self._signature, note, known)

    async def remove(self, board: str, epoch: str | None = None) -> None:
        """Remove a board for good. See `Transport.remove`."""
        with self._audited("remove", board):
            await self._check_whole("remove", board)
            await self._boards.remove(board, epoch)

    async def branch(self, board: str, spec: BranchRequest) -> Head:
        """Make a board that begins with the content of this one at a moment."""
        with self._audited("branch", board, spec):
            opened = await self._use(board, "branch")
            self._check(spec.new)
            await self._boards.check_new(spec.new)
            if await self._host.store.removed(spec.new) is not None:
                reason = f"a board {spec.new!r} was removed: a branch needs a name of its own"
                raise InvalidRequest(field="new", reason=reason)
            check_note(spec.note)
            await self._note_begun(spec.new)
            head = await Branches(opened).branch(spec, self._signature)
            await self._boards.use_new(spec.new, self._opener)
            return head

    async def differences(self, board: str, spec: DiffRequest) -> Differences:
        """A page of the readable differences."""
        with self._audited("differences", board, spec):
            opened = await self._use(board)
            other = None if spec.other is None else await self._use(spec.other)
            check_limit(spec.limit, LIST_ENTRIES_MAX)
            reach = access.reach(self.principal.grants, spec.pattern)
            return await HistoryReader(opened).differences(spec, reach, other)

    async def history(
        self,
        board: str,
        key: Key,
        *,
        before: Revision | None = None,
        after: Revision | None = None,
        author: str | None = None,
        limit: int = HISTORY_VERSIONS_MAX,
    ) -> Sequence[Version]:
        """Versions of a key, the newest first."""
        with self._audited("history", board, key):
            self._check(board)
            check_limit(limit, HISTORY_VERSIONS_MAX)
            for field, bound in (("before", before), ("after", after)):
                if bound is not None and not 0 <= bound <= REVISION_MAX:
                    raise InvalidRequest(field=field, reason=f"not in 0..{REVISION_MAX}")
            access.require(self.principal, Right.READ, check_key(key))
            opened = await self._use(board)
            read = partial(HistoryReader(opened).history, key, before=before, after=after)
            return await read(author=author, limit=limit)

    async def verify(self, board: str, at: Moment) -> Verified:
        """Check everything that is stored up to a moment. Findings name keys, so this needs the
        admin right."""
        with self._audited("verify", board, at):
            opened = await self._use(board, "verify")
            past = HistoryReader(opened)
            point = await past.point(at)
            store = opened.store
            erased = tuple(await store.keys.erased(board)) if isinstance(store, SealedStore) else ()
            findings: list[str] = []
            async for finding in past.archive.verify(point):
                findings.append(finding)
                if len(findings) > FINDINGS_MAX:
                    first = tuple(findings[:FINDINGS_MAX])
                    return Verified(point.revision, first, more=True, erased=erased)
            return Verified(point.revision, tuple(findings), erased=erased)

    async def export(self, board: str, name: str, *, after: Key | None = None) -> ExportPage:
        """A page of a checkpoint, with all namespaces."""
        with self._audited("export", board, name, after):
            opened = await self._use(board, "export")
            past = HistoryReader(opened)
            checkpoint, stored = await Checkpoints(opened).sealed(name)
            at = Point(board, checkpoint.revision)
            page, next_key = await past.page(at, after)
            entries = tuple(sealed_entry(entry) for entry in page)
            if after is not None:
                return ExportPage(at.revision, entries, next_key)
            items = tuple(await past.archive.items(at))[:EXPORT_ITEMS_MAX]
            sealed = (stored.manifest, stored.signature, items)
            return ExportPage(at.revision, entries, next_key, *sealed)

    async def import_begin(self, board: str, spec: ImportRequest) -> None:
        """Begin an import, which creates `board` from an export."""
        with self._audited("import_begin", board, spec):
            await self._check_whole("import_begin", board)
            check_note(spec.note)
            if self._host.imports.has_begun(board, spec.request, self._signature):
                return  # its answer was lost
            await self._boards.check_new(board)
            await self._host.imports.give_up(board, self._signature)
            if await self._boards.exists(board):
                raise InvalidRequest(field="board", reason=f"there is a board {board!r}")
            await self._host.finish_removal(board)
            await self._host.imports.begin(board, spec, self._signature)

    async def import_page(
        self, board: str, request: str, number: int, entries: Sequence[Entry]
    ) -> None:
        """The next page of an import."""
        with self._audited("import_page", board, request, number):
            await self._check_whole("import_page", board)
            await self._host.imports.page(board, request, number, entries)

    async def import_end(self, board: str, request: str) -> Head:
        """Finish an import after its last page."""
        with self._audited("import_end", board, request):
            await self._check_whole("import_end", board)
            archived = partial(begin_archive, self._host, board)
            head = await self._host.imports.end(board, request, archived)
            await self._boards.use_new(board, self._opener)
            return head

    # --- the service ------------------------------------------------------------------------------

    async def boards(self) -> Sequence[str]:
        """Names of the existing boards that the principal may use."""
        with self._audited("boards"):
            self._check_service("boards")
            mine, found = self.principal.boards, await self._host.store.boards()
            return [n for n in found if (not mine or n in mine) and not access.is_reserved(n)]

    async def lost_boards(self) -> Sequence[LostBoard]:
        """See `Transport.lost_boards`."""
        with self._audited("lost_boards"):
            self._check_service("lost_boards")
            return await self._host.lost_boards()

    @property
    def host(self) -> Host:
        """The service behind this link."""
        return self._host

    async def audit(self, *, after: Key | None, limit: int) -> Sequence[tuple[Key, AuditRecord]]:
        """See `Transport.audit`."""
        with self._audited("audit", "", after, limit):
            self._check_service("audit")
            check_limit(limit, LIST_ENTRIES_MAX)
            return await self._host.audit.read(after, limit)

    async def whoami(self) -> Principal:
        """The principal of this link."""
        with self._audited("whoami"):
            self._check_token()
            return self.principal

    async def erase(self, agent: str, board: str | None = None, request: str | None = None) -> int:
        """See `Transport.erase`."""
        with self._audited("erase", board or "", agent):
            keys = self._data_keys("erase")
            await self._host.revocations.confirm(self.principal)
            access.check_agent_name(agent)
            if board is not None:
                access.require_board(self.principal, board)
            namespaces = [f"private/{agent}", f"inbox/{agent}"]
            return await keys.destroy(namespaces, board, request=request)

    async def rewrap(self) -> int:
        """See `Transport.rewrap`."""
        with self._audited("rewrap"):
            return await self._data_keys("rewrap").rewrap()

    def _data_keys(self, verb: str) -> DataKeys:
        self._check_service(verb)
        if not isinstance(self._host.store, SealedStore):
            raise InvalidRequest(field="master_key", reason="this service has none")
        return self._host.store.keys

    async def revoke(
        self,
        *,
        tokens: Sequence[str] = (),
        principal: str | None = None,
        until_ms: Milliseconds | None = None,
    ) -> int:
        """Revoke tokens by id, and all that were issued to `principal`. See `Transport.revoke`.

        Every principal may revoke the token in use, or all of its own tokens.
        """
        with self._audited("revoke", "", tokens, principal, until_ms):
            self._host.check_serving()
            known, by = self._host.revocations, self.principal
            await known.confirm(by)
            access.require_revoke(by, tokens, principal)
            try:
                count = await known.revoke(tokens, principal, until_ms, by=by)
                # Commits that had already left for an engine are decided before this is answered.
                await self._boards.settled()
            finally:
                known.tell_soon()
            return count

    async def issue(self, request: TokenRequest) -> str:
        """A token for an agent, with no more rights than the principal. See `Transport.issue`."""
        with self._audited("issue", "", request.name):
            self._check_service("issue")
            await self._host.revocations.confirm(self.principal)
            return self._host.issue(self.principal, request)

    async def aclose(self) -> None:
        """Does nothing: the service is closed by its owner."""

    def _audited(
        self, verb: str, board: str = "", *about: object
    ) -> AbstractContextManager[None, None]:
        """A block that audits a request by the rules of `server/security/audit.py`."""
        if not (self._has_token or telemetry.is_on()):
            return UNRECORDED
        return audited(self._host.audit, self.principal, verb, board, about)

    async def _use(self, board: str, verb: str | None = None) -> OpenBoard:
        """Open a board that the principal may use, with the right that `verb` needs on all of it.

        Errors: NoSuchBoard.
        """
        if verb is None:
            self._check(board)
        else:
            await self._check_whole(verb, board)
        opened = await self._boards.find(board, self._opener)
        if opened is None:
            raise NoSuchBoard(board)
        return opened

    async def _begin(self, board: str, *, again: bool = False) -> OpenBoard:
        """Open a board; create it if the principal may change anything there.

        Errors: NoSuchBoard if the principal may not create it, or if it was removed and `again` is
        false: clients that still use a removed board do not bring it back.
        """
        found = await self._boards.find(board, self._opener)
        if found is not None:
            return found
        is_gone = not again and await self._host.store.removed(board) is not None
        if is_gone or not access.may_begin(self.principal):
            raise NoSuchBoard(board)
        await self._note_begun(board)
        return await self._boards.use(board, self._opener, again=again)

    async def _note_begun(self, board: str) -> None:
        """Record the owner of a new board. Errors: LimitExceeded."""
        if not await self._host.store.exists(board):
            await self._host.finish_removal(board)  # first, as it forgets the owner before
            if self._beginner is not None:
                await self._host.begun.note(self._beginner, board)

    async def _check_whole(self, verb: str, board: str) -> None:
        """Check the right that the table of methods demands on the whole board, and the token
        against the engine's record: no commit follows that the engine would check."""
        self._check(board)
        access.require_whole(self.principal, access.WHOLE_BOARD[RIGHTS[verb]])
        await self._host.revocations.confirm(self.principal)

    def _permit(self) -> Permit | None:
        """The permit that the commit queue checks again before a commit leaves for the engine."""
        known, who = self._host.revocations, self._permitted or self.principal
        if who is self._permitted:  # no gate checks it
            known.check(who)
        return None if who.credential is None else known.permit(who)

    def _take_log(self, size: int) -> RateLimited | None:
        """Charge bytes of log, or return why the account may not add them now."""
        return None if self._meter is None else self._meter.take_log(size, clock_ms())

    def _check_token(self) -> None:
        """Errors: Unauthenticated when the token, which may have been refreshed, is over."""
        self._host.revocations.check(self.principal)

    def _check_service(self, verb: str) -> None:
        """Check the token, and the admin right if the table of methods demands it."""
        self._host.check_serving()
        self._check_token()
        if RIGHTS[verb] is Checked.ADMIN:
            access.require_admin(self.principal)

    def _check(self, board: str) -> None:
        self._host.check_serving()
        self._check_token()
        access.require_board(self.principal, board)

    def _as_seen(self, error: BlackboardError) -> BlackboardError:
        """The refusal as the principal may see it. Of an unreadable key it says only that it is in
        the way (a principal may `append` without reading)."""
        if not isinstance(error, Conflict):
            return error
        if not self._readable(error.key):
            return Conflict(error.key, error.expected, PRESENT, head=error.head)
        if error.current is not None:
            error.current = decode_value(error.current)
        return error


def _content_of(value: bytes) -> bytes:
    """The SHA-256 of a value as it is stored."""
    return content_of(sealed_form(value))


"""The block of a request from a program that runs the service in its own process: not audited."""
_NOTHING: Final = Reading(0, "")
"""The answer to a read of a board that does not exist."""
_NO_LOG: Final = LogPage(Head(0, Epoch(0, ""), 1), ())
