"""Recomputes the archive of a board, from its oldest known revision up to a point.

What is compared
- the hash chain, commit by commit: any change to the log, and any revision that is missing;
- each archived digest of a namespace, against sums recomputed from the state at the beginning, and
  at the end against the whole state; and these against the stored sums;
- each version's value, including blobs; author and time of those that are still in the log;
- each checkpoint's manifest and signature, and that it names the manifest before it.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import select

from blackboard.archive import (
    history as archive_log,
    redact as archive_redact,
    rows as archive_rows,
)
from blackboard.archive.append import kind_of, known_of, known_with, step_of
from blackboard.archive.base import Sealer
from blackboard.archive.database import rows
from blackboard.archive.fold import CHECKPOINTS, DECLARED, Fold
from blackboard.archive.history import (
    ArchivedHistory,
    Segment,
    board_by_id,
    gap_before,
    segments_of,
)
from blackboard.archive.tables import (
    AGENT,
    CHECKPOINT,
    DIGEST,
    KEPT,
    TOTAL,
    VERSION,
)
from blackboard.archive.values import OUTSIDE, ArchivedValues, together
from blackboard.core import digest
from blackboard.core.checkpoints import Cut, Facts, Point
from blackboard.core.commit import LogEntry, name_of
from blackboard.core.path import namespace_of
from blackboard.core.redaction import is_marker, record_key
from blackboard.errors import Corrupt
from blackboard.units import Key, Revision

_PAGE_ENTRIES = 256
_UNKNOWN: Final = bytes(32)
"""In place of the element of a version that cannot be read."""
_FOLDED: Final = ("create_revision", "author", "time_ms", "first_ms")
"""Columns of a version that follow from the log and that the chain does not cover directly.
`first_ms` may be missing in rows from before it was kept."""


class Verification:
    """Verifies one board's past. Findings are sentences that name what is damaged."""

    def __init__(
        self, past: ArchivedHistory, at: Point, values: ArchivedValues, sealer: Sealer
    ) -> None:
        self._past = past
        self._called = at.board  # the board whose manifests are checked
        self._values = values
        self._sealer = sealer
        self._connection = past.connection
        self._boards: list[int] | None = None  # the family, once it was read

    async def findings(self) -> AsyncIterator[str]:
        """Yield every finding."""
        for segment in reversed(self._past.segments):
            part = await self._own(segment)
            async for finding in self._segment(part, segment):
                yield finding
        async for finding in self._manifests():
            yield finding

    # --- the log ----------------------------------------------------------------------------------

    async def _segment(self, past: ArchivedHistory, segment: Segment) -> AsyncIterator[str]:
        board = await board_by_id(self._connection, segment.board)
        if gap := await gap_before(self._connection, board):
            missing = f"revisions {gap[0]} to {gap[1]} are missing"
            yield f"{missing}: the log was cut before it was archived"
        for kept in await self._kept(segment, board.oldest):
            async for finding in self._state(self._sub(past, kept), None):
                yield finding
        if board.oldest > segment.upto:
            return
        start = self._sub(past, board.oldest)
        totals, findings = await self._sums(start)
        for finding in findings:
            yield finding
        async for finding in self._compare(start, totals):
            yield finding
        fold = Fold(segment.board, await start.chain(), {}, totals)
        after = board.oldest
        while True:
            commits = await archive_log.commits_between(past, segment, after, _PAGE_ENTRIES)
            if not commits:
                break
            async for finding in self._page(past, fold, after, commits):
                yield finding
            after = commits[-1].revision
        fold.settle(after)
        # The archive keeps sums only as of a board's newest revision.
        if board.through == segment.upto:
            if after < segment.upto:
                yield f"revisions {after + 1} to {segment.upto} are missing: the log was cut short"
            for finding in _compare_digests(fold, segment.upto, {}):
                yield finding
            async for finding in self._compare_sums(fold):
                yield finding
            async for finding in self._compare_steps(past):
                yield finding
        async for finding in self._state(past, fold.totals):
            yield finding

    async def _own(self, segment: Segment) -> ArchivedHistory:
        """The history of the board that a segment belongs to, up to its end."""
        board = await board_by_id(self._connection, segment.board)
        segments = await segments_of(self._connection, board, segment.upto)
        return ArchivedHistory(self._past.database, self._connection, segments)

    def _sub(self, past: ArchivedHistory, revision: Revision) -> ArchivedHistory:
        first, *rest = past.segments
        return ArchivedHistory(
            past.database, past.connection, [Segment(first.board, revision), *rest]
        )

    async def _kept(self, segment: Segment, oldest: Revision) -> list[Revision]:
        query = select(KEPT.c.revision).where(KEPT.c.board == segment.board)
        query = query.where(KEPT.c.revision < oldest, KEPT.c.revision <= segment.upto)
        return sorted(row.revision for row in await rows(self._connection, query))

    async def _page(
        self, past: ArchivedHistory, fold: Fold, after: Revision, commits: Sequence[Any]
    ) -> AsyncIterator[str]:
        """Fold one page of the log again and compare the result.

        Digests are compared where they are archived: `ArchivedHistory.digests`.
        """
        entries, damaged = await self._assemble(past, fold.board, commits)
        await self._learn(self._sub(past, after), fold, entries.values())
        digests = await self._digests(fold.board, after, commits[-1].revision)
        last = after
        for commit in commits:
            revision, chain = commit.revision, bytes(commit.chain)
            entry = entries.get(revision)
            if revision != last + 1 and (entry is None or entry.epoch is None):
                yield f"revisions {last + 1} to {revision - 1} are missing"
            if entry is None:
                yield f"revision {revision}: {damaged[revision]}"
            else:
                fold.apply(entry)
                for finding in await self._redacted(entry):
                    yield f"revision {revision}: {finding}"
                if fold.chain != chain:
                    yield f"revision {revision} is not what was archived: the hash chain breaks"
            # From the archived link on, so that one damaged commit does not spoil all that follow.
            fold.chain, last = chain, revision
            if archived := digests.pop(revision, None):
                fold.settle(revision)
                for finding in _compare_digests(fold, revision, archived):
                    yield finding
        for revision in digests:
            yield f"revision {revision} has digests, and no commit"
        async for finding in self._compare_folded(fold, commits[0].revision, last):
            yield finding

    async def _digests(
        self, board: int, after: Revision, last: Revision
    ) -> dict[Revision, dict[str, bytes]]:
        """The digests archived between two revisions: for some revisions, those of the changed
        namespaces."""
        query = select(DIGEST).where(
            DIGEST.c.board == board, DIGEST.c.revision > after, DIGEST.c.revision <= last
        )
        found: dict[Revision, dict[str, bytes]] = {}
        for row in await rows(self._connection, query):
            found.setdefault(row.revision, {})[row.namespace] = bytes(row.digest)
        return dict(sorted(found.items()))

    async def _assemble(
        self, past: ArchivedHistory, board: int, commits: Sequence[Any]
    ) -> tuple[dict[Revision, LogEntry], dict[Revision, str]]:
        """The log entries of a page, and what is wrong with those that cannot be read."""
        try:
            entries = await archive_log.assemble(past, self._values, board, commits)
            return {entry.revision: entry for entry in entries}, {}
        except Corrupt as error:
            if len(commits) == 1:
                return {}, {commits[0].revision: f"{error.what}: {error.reason}"}
        # One by one, to find which commit it is, and to verify the others.
        found: dict[Revision, LogEntry] = {}
        damaged: dict[Revision, str] = {}
        for commit in commits:
            one, wrong = await self._assemble(past, board, [commit])
            found |= one
            damaged |= wrong
        return found, damaged

    async def _learn(self, past: ArchivedHistory, fold: Fold, entries: Iterable[LogEntry]) -> None:
        """Give `fold` the versions of the keys of `entries` from before them."""
        keys = {c.key: None for entry in entries for c in entry.changes if c.lease is None}
        for key, row in (await past.newest(list(keys))).items():
            try:
                fold.known[key] = known_of(row)
            except Corrupt:
                # It has a finding of its own. Nothing else adds up as with this element.
                fold.known[key] = known_with(row, _UNKNOWN)

    async def _redacted(self, entry: LogEntry) -> list[str]:
        """Problems of the redacted values in `entry`, which the chain does not cover."""
        if entry.kept is None:
            return []
        if self._boards is None:
            family = await archive_redact.family(self._connection, self._called)
            self._boards = [row.id for row in family]
        found = []
        for change in [entry.changes[place] for place in entry.kept.places]:
            if not is_marker(change.key, change.value):
                found.append(f"{change.key} was redacted, and holds something else")
            query = select(VERSION.c.revision).where(VERSION.c.key == record_key(change.key))
            query = query.where(VERSION.c.board.in_(self._boards)).limit(1)
            if not await rows(self._connection, query):
                found.append(f"{change.key} was redacted, and no record says so")
        return found

    async def _compare_folded(
        self, fold: Fold, first: Revision, last: Revision
    ) -> AsyncIterator[str]:
        """Compare the columns of versions that the chain does not cover with the log."""
        folded = {(row["revision"], row["key"]): row for row in fold.versions}
        columns = [VERSION.c[name] for name in ("revision", "key", *_FOLDED)]
        rows_of = select(*columns).where(
            VERSION.c.board == fold.board, VERSION.c.revision >= first, VERSION.c.revision <= last
        )
        for row in await rows(self._connection, rows_of):
            expected = folded.get((row.revision, row.key), {})
            undated = {"first_ms": None} if row.first_ms is None else {}
            wrong = [n for n in _FOLDED if (expected | undated).get(n) != getattr(row, n)]
            if wrong:
                yield f"revision {row.revision}: {row.key} has another {', '.join(wrong)}"
        for gathered in (fold.versions, fold.commits, fold.epochs):
            gathered.clear()
        # Only what is not settled yet: of other keys, `_learn` reads the versions again.
        fold.known = {key: fold.known[key] for key in fold.counted}

    async def _compare_sums(self, fold: Fold) -> AsyncIterator[str]:
        """Compare the sums with which the next append will continue."""
        query = select(TOTAL).where(TOTAL.c.board == fold.board)
        sums = {row.namespace: bytes(row.total) for row in await rows(self._connection, query)}
        nothing = digest.to_bytes(digest.EMPTY)
        for namespace in sorted(sums.keys() | fold.totals.keys()):
            folded = digest.to_bytes(fold.totals.get(namespace, digest.EMPTY))
            if sums.get(namespace, nothing) != folded:
                yield f"the sum of {namespace} is not that of its content"

    async def _compare_steps(self, past: ArchivedHistory) -> AsyncIterator[str]:
        """Compare the last step of each agent, which the next manifest names, with the log."""
        steps = await past.steps()
        query = select(AGENT).where(AGENT.c.board == past.segments[0].board)
        for row in await rows(self._connection, query.order_by(AGENT.c.agent)):
            if steps.get(row.agent) != step_of(row):
                yield f"the last step of {row.agent} is not that of its commit"

    # --- the state --------------------------------------------------------------------------------

    async def _sums(self, past: ArchivedHistory) -> tuple[dict[str, int], list[str]]:
        """Sums recomputed from the whole content of `past`."""
        totals: dict[str, int] = {}
        findings: list[str] = []
        async for page in past.entries():
            damaged = await self._damaged(page)
            for row in page:
                if (error := damaged.get(row.key)) is not None:
                    where = f"revision {row.revision}: {row.key}"
                    findings.append(f"{where}: {error.what}: {error.reason}")
                    if row.form not in OUTSIDE:
                        continue
                # Made from the hash in the row: it counts even if what lies outside is lost.
                element = archive_rows.element_of(row)
                namespace = namespace_of(row.key)
                totals[namespace] = digest.add(totals.get(namespace, digest.EMPTY), element)
        return totals, findings

    async def _damaged(self, page: Sequence[Any]) -> dict[Key, Corrupt]:
        """What is wrong with the values of a page, by key."""
        found: dict[Key, Corrupt] = {}
        for some in together(page):
            values = await self._values.found(self._connection, some)
            wrong = zip(some, values, strict=True)
            found |= {row.key: value for row, value in wrong if isinstance(value, Corrupt)}
        return found

    async def _compare(self, past: ArchivedHistory, totals: dict[str, int]) -> AsyncIterator[str]:
        """Compare sums with the digests that are archived."""
        summed = digest.digests_of(totals)
        try:
            archived = await past.digests()
        except Corrupt as error:
            where = f"at revision {past.revision}"
            yield f"{where} the digests cannot be computed: {error.what}: {error.reason}"
            return
        for namespace in sorted(archived.keys() | summed.keys()):
            if archived.get(namespace) != summed.get(namespace):
                yield (
                    f"at revision {past.revision} namespace {namespace} does not hold"
                    " what its digest says"
                )

    async def _state(
        self, past: ArchivedHistory, folded: dict[str, int] | None
    ) -> AsyncIterator[str]:
        """Compare the whole state with its digests, and with the sums of the log."""
        totals, findings = await self._sums(past)
        for finding in findings:
            yield finding
        async for finding in self._compare(past, totals):
            yield finding
        if folded is not None and digest.digests_of(folded) != digest.digests_of(totals):
            yield f"at revision {past.revision} the state is not what the log adds up to"

    # --- manifests --------------------------------------------------------------------------------

    async def _manifests(self) -> AsyncIterator[str]:
        previous = b""
        sealed: set[tuple[str, Revision]] = set()
        for segment in reversed(self._past.segments):
            query = (
                select(CHECKPOINT)
                .where(CHECKPOINT.c.board == segment.board, CHECKPOINT.c.revision <= segment.upto)
                .order_by(CHECKPOINT.c.revision, CHECKPOINT.c.name)
            )
            part = await self._own(segment)
            self._called = (await board_by_id(self._connection, segment.board)).called
            for row in await rows(self._connection, query):
                sealed.add((row.name, row.revision))
                where = f"checkpoint {row.name} at revision {row.revision}"
                past = self._sub(part, row.revision)
                try:
                    async for finding in self._manifest(past, row, previous):
                        yield f"{where}: {finding}"
                except Corrupt as error:
                    yield f"{where}: {error.what}: {error.reason}"
                previous = bytes(row.hash)
        async for finding in self._unsealed(sealed):
            yield finding

    async def _manifest(
        self, past: ArchivedHistory, row: Any, previous: bytes
    ) -> AsyncIterator[str]:
        if not row.manifest:
            return  # removed
        try:
            stored = archive_log.stored(self._called, row)
        except Corrupt as error:
            yield f"the manifest is damaged: {error.reason}"
            return
        if digest.content_of(stored.manifest) != bytes(row.hash):
            yield "the manifest is another one than was archived"
        # Its content was pruned, so nothing but the signature can be checked.
        if not await self._is_readable(past):
            for finding in self._sealer.findings(stored, None):
                yield finding
            return
        versions = await past.newest([CHECKPOINTS + row.name])
        version = versions.get(CHECKPOINTS + row.name)
        if version is None or version.revision != row.revision:
            yield "the board has no such checkpoint at this revision"
            return
        record = await self._values.of(self._connection, version) or b""
        if kind_of(record) != row.kind:
            yield "its kind is not that of its entry"
        commit = await past.commit()
        if commit is None or commit.revision != row.revision:
            yield "its commit is missing"
            return
        if commit.time_ms != row.time_ms:
            yield "its time is not that of its commit"
        for finding in self._sealer.findings(
            stored, await self._cut(past, row, record, commit, previous)
        ):
            yield finding

    async def _is_readable(self, past: ArchivedHistory) -> bool:
        [segment, *_] = past.segments
        board = await board_by_id(self._connection, segment.board)
        if past.revision >= board.oldest:
            return True
        return past.revision in await self._kept(segment, board.oldest)

    async def _cut(
        self, past: ArchivedHistory, row: Any, record: bytes, commit: Any, previous: bytes
    ) -> Cut:
        declared: dict[str, bytes] = {}
        async for page in past.entries(DECLARED):
            async for each, value in self._values.each(self._connection, page):
                declared[each.key.rpartition("/")[2]] = value or b""
        steps = await past.steps()
        return Cut(
            board=self._called,
            name=row.name,
            revision=row.revision,
            time_ms=commit.time_ms,
            author=name_of(commit.agent),
            epoch=await past.epoch(),
            chain=bytes(commit.chain),
            facts=Facts(await past.digests(), dict(sorted(steps.items()))),
            record=record,
            declared=declared,
            previous=previous,
        )

    async def _unsealed(self, sealed: set[tuple[str, Revision]]) -> AsyncIterator[str]:
        """Checkpoints of the board without a manifest."""
        first = await board_by_id(self._connection, self._past.segments[0].board)
        async for page in self._past.entries(CHECKPOINTS.rstrip("/")):
            for row in page:
                name = row.key.removeprefix(CHECKPOINTS)
                if row.revision > first.oldest and (name, row.revision) not in sealed:
                    yield f"checkpoint {name} at revision {row.revision}: its manifest is missing"


def _compare_digests(
    fold: Fold, revision: Revision, archived: Mapping[str, bytes]
) -> Iterator[str]:
    """Compare the digests of `fold` with those archived for that revision."""
    touched = {row["namespace"] for row in fold.digests}
    fold.digests.clear()
    for namespace in sorted(archived.keys() | touched):
        folded = digest.digest_of(fold.totals.get(namespace, digest.EMPTY))
        if archived.get(namespace) != folded:
            yield f"revision {revision}: the digest of {namespace} is not that of its content"
