"""The way into the past: the requests of `client/history.py`, checked and carried out.

Who may checkpoint or restore the whole board does not thereby read it: a comparison, a history and
a look at a moment show what the principal may read now, a manifest the digests of the namespaces
that it may read as a whole, and no refusal names a key that was not asked for. An export and an
import carry everything, private namespaces included, and need the admin right on the whole board.
"""

from collections.abc import Callable, Sequence

from blackboard.core import access
from blackboard.core.access import Principal, Right
from blackboard.core.checkpoints import (
    AUTOMATIC,
    NAMED,
    BranchWish,
    Checkpoint,
    CheckpointWish,
    Differences,
    DiffRequest,
    ExportPage,
    ImportWish,
    Moment,
    Point,
    Policy,
    Pruned,
    Restored,
    RestoreWish,
    Shown,
    Verified,
    Version,
    checkpoint_key,
    declared_key,
)
from blackboard.core.commit import Entry, Head
from blackboard.core.path import check_key
from blackboard.encryption.archive import sealed_entry
from blackboard.encryption.store import SealedStore
from blackboard.errors import InvalidRequest, NoSuchBoard
from blackboard.integrity.manifest import Manifest
from blackboard.server.boards import Host, OpenBoard
from blackboard.server.checkpoints.branch import Branches
from blackboard.server.checkpoints.reader import Past
from blackboard.server.checkpoints.restore import Restores
from blackboard.server.checkpoints.retention import Retention
from blackboard.server.checkpoints.take import Checkpoints
from blackboard.server.security.audited import Audited
from blackboard.server.validation import check_note
from blackboard.types import (
    CHECKPOINTS_PAGE_MAX,
    EXPORT_ITEMS_MAX,
    FINDINGS_MAX,
    HISTORY_VERSIONS_MAX,
    LIST_ENTRIES_MAX,
    REVISION_MAX,
    Key,
    Revision,
)
from blackboard.wire.codec import SYSTEM_AGENT


class LocalPast:
    """The part of `LocalLink` that looks back; see `Link` for each method."""

    principal: Principal
    _host: Host
    _readable: Callable[[Key], bool]
    _opener: str | None

    async def checkpoint(self, board: str, wish: CheckpointWish) -> Checkpoint:
        """Take a checkpoint."""
        with self._audited("checkpoint", board, wish):
            await self._check_whole(board, Right.CHECKPOINT)
            await self._begin(board)
            if wish.kind not in (NAMED, AUTOMATIC):
                raise InvalidRequest(field="kind", reason=f"{wish.kind!r} is the service's own")
            check_note(wish.note)
            return await Checkpoints(self._host).take(board, wish, self.principal.name)

    async def checkpoints(
        self, board: str, *, after: Revision = 0, limit: int = CHECKPOINTS_PAGE_MAX
    ) -> Sequence[Checkpoint]:
        """A page of the checkpoints that may be read."""
        with self._audited("checkpoints", board):
            self._check(board)
            check_limit(limit, CHECKPOINTS_PAGE_MAX)
            if await self._host.find(board, self._opener) is None:
                return ()
            found = await Checkpoints(self._host).all(board)
            shown = [
                c for c in found if c.revision > after and self._readable(checkpoint_key(c.name))
            ]
            return shown[:limit]

    async def manifest(self, board: str, name: str) -> Shown:
        """A checkpoint with what its manifest says of what may be read."""
        with self._audited("manifest", board):
            self._check(board)
            access.require(self.principal, Right.READ, check_key(checkpoint_key(name)))
            await self._use(board)
            checkpoint, stored = await Checkpoints(self._host).sealed(board, name)
            manifest = Manifest.read(stored.manifest)
            grants = self.principal.grants
            return Shown(
                checkpoint,
                manifest.epoch,
                manifest.chain.hex(),
                manifest.previous.hex(),
                {
                    namespace: found.hex()
                    for namespace, found in manifest.digests.items()
                    if access.allows_below(grants, Right.READ, namespace)
                },
                {agent: at for agent, at in manifest.steps.items() if agent != SYSTEM_AGENT},
                {
                    agent: told
                    for agent, told in manifest.declared.items()
                    if self._readable(declared_key(agent))
                },
                manifest.key.hex(),
            )

    async def pin(self, board: str, name: str, *, pinned: bool) -> None:
        """Keep a checkpoint from being pruned, or no longer."""
        with self._audited("pin", board, name, pinned):
            await self._use(board, Right.CHECKPOINT)
            await Checkpoints(self._host).pin(board, name, pinned=pinned)

    async def prune(self, board: str, policy: Policy, *, dry_run: bool = False) -> Pruned:
        """Remove what `policy` does not keep."""
        with self._audited("prune", board, policy, dry_run):
            await self._use(board, Right.ADMIN)
            return await Retention(self._host).prune(board, policy, dry_run=dry_run)

    async def restore(self, board: str, wish: RestoreWish) -> Restored:
        """Bring back the content of a moment."""
        with self._audited("restore", board, wish):
            await self._use(board, Right.RESTORE)
            check_note(wish.note)
            return await Restores(self._host).restore(board, wish, self.principal)

    async def branch(self, board: str, wish: BranchWish) -> Head:
        """Make a board that begins as this one was."""
        with self._audited("branch", board, wish):
            await self._use(board, Right.CHECKPOINT)
            self._check(wish.new)
            await self._host.check_new(wish.new)
            check_note(wish.note)
            head = await Branches(self._host).branch(board, wish, self.principal.name)
            await self._host.use(wish.new, self._opener)
            return head

    async def differences(self, board: str, request: DiffRequest) -> Differences:
        """A page of what differs and may be read."""
        with self._audited("differences", board, request):
            await self._use(board)
            if request.other is not None:
                await self._use(request.other)
            check_limit(request.limit, LIST_ENTRIES_MAX)
            return await Past(self._host).differences(board, request, self._readable)

    async def history(
        self,
        board: str,
        key: Key,
        *,
        before: Revision | None = None,
        limit: int = HISTORY_VERSIONS_MAX,
    ) -> Sequence[Version]:
        """Versions of a key, the newest first."""
        with self._audited("history", board, key):
            self._check(board)
            check_limit(limit, HISTORY_VERSIONS_MAX)
            if before is not None and not 0 <= before <= REVISION_MAX:
                raise InvalidRequest(field="before", reason=f"not in 0..{REVISION_MAX}")
            access.require(self.principal, Right.READ, check_key(key))
            await self._use(board)
            return await Past(self._host).history(board, key, before=before, limit=limit)

    async def verify(self, board: str, at: Moment) -> Verified:
        """Check everything that is kept up to a moment. Findings name keys: the admin's."""
        with self._audited("verify", board, at):
            await self._use(board, Right.ADMIN)
            past = Past(self._host)
            point = await past.point(board, at)
            store = self._host.store
            keys = store.keys if isinstance(store, SealedStore) else None
            erased = () if keys is None else tuple(await keys.erased(board))
            findings: list[str] = []
            async for finding in past.archive.verify(point):
                findings.append(finding)
                if len(findings) > FINDINGS_MAX:
                    told = tuple(findings[:FINDINGS_MAX])
                    return Verified(point.revision, told, more=True, erased=erased)
            return Verified(point.revision, tuple(findings), erased=erased)

    async def export(self, board: str, name: str, *, after: Key | None = None) -> ExportPage:
        """A page of a checkpoint, every namespace of it."""
        with self._audited("export", board, name, after):
            await self._use(board, Right.ADMIN)
            past = Past(self._host)
            checkpoint, stored = await Checkpoints(self._host).sealed(board, name)
            at = Point(board, checkpoint.revision)
            opened, next_key = await past.page(at, after)
            entries = tuple(sealed_entry(entry) for entry in opened)
            if after is not None:
                return ExportPage(at.revision, entries, next_key)
            items = tuple(await past.archive.items(at))[:EXPORT_ITEMS_MAX]
            return ExportPage(
                at.revision, entries, next_key, stored.manifest, stored.signature, items
            )

    async def import_begin(self, board: str, wish: ImportWish) -> None:
        """Begin to make `board` of what was exported."""
        with self._audited("import_begin", board, wish):
            await self._check_whole(board, Right.ADMIN)
            check_note(wish.note)
            await self._host.check_new(board)
            await self._host.imports.begin(board, wish, self.principal.name)

    async def import_page(
        self, board: str, request: str, number: int, entries: Sequence[Entry]
    ) -> None:
        """The next page of an import."""
        with self._audited("import_page", board, request, number):
            await self._check_whole(board, Right.ADMIN)
            await self._host.imports.page(board, request, number, entries)

    async def import_end(self, board: str, request: str) -> Head:
        """After the last page of an import."""
        with self._audited("import_end", board, request):
            await self._check_whole(board, Right.ADMIN)
            wish, head = await self._host.imports.end(board, request)
            await Past(self._host).begin(board, head, wish.items)
            await self._host.use(board, self._opener)
            return head

    def _audited(self, verb: str, board: str = "", *about: object) -> Audited:
        """The block of a request, recorded as the rules of `server/security/audit.py` say."""
        return Audited(self._host.audit, self.principal, verb, board, about)

    async def _use(self, board: str, right: Right | None = None) -> None:
        """Check that the principal may use the board, and has `right` on all of it; open it.

        Errors: NoSuchBoard.
        """
        self._check(board)
        if right is not None:
            await self._check_whole(board, right)
        if await self._host.find(board, self._opener) is None:
            raise NoSuchBoard(board)

    async def _begin(self, board: str) -> OpenBoard:
        """Open a board, which begins with that if the principal may change anything there.

        Errors: NoSuchBoard when there is none and the principal may not.
        """
        found = await self._host.find(board, self._opener)
        if found is not None:
            return found
        if not access.may_begin(self.principal):
            raise NoSuchBoard(board)
        return await self._host.use(board, self._opener)

    async def _check_whole(self, board: str, right: Right) -> None:
        """Check the right to the whole board, and the token with what the engine has now: what is
        done under it is no commit of the principal's, which the engine would check."""
        self._check(board)
        access.require_whole(self.principal, right)
        await self._host.revocations.confirm(self.principal)

    def _check(self, board: str) -> None:
        raise NotImplementedError


def check_limit(limit: int, maximum: int) -> None:
    """Errors: InvalidRequest unless `limit` is in 1..`maximum`."""
    if not 1 <= limit <= maximum:
        raise InvalidRequest(field="limit", reason=f"{limit} is not in 1..{maximum}")
