"""The content of a board at a revision: queries over its own versions and its origin's.

A board's history is a list of segments, the nearest first: its own revisions, then those of its
origin up to the branch, and so on. The value of a key is its newest version in the first segment
that has one. The `system` namespace of an origin is not shared: its records belong to that board.

Queries for the newest version of each key take one step per key, however many versions it has:
SQLite and PostgreSQL both compute `MAX(revision)` below a bound from the end of an index.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    TextClause,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    not_,
    select,
    text,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from blackboard.archive import rows as archive_rows
from blackboard.archive.database import Database, given_keys, rows
from blackboard.archive.tables import (
    ABSENT,
    AGENT,
    BOARD,
    COMMIT,
    COUNTER,
    DIGEST,
    EPOCH,
    KEPT,
    LOGGED,
    TOTAL,
    VERSION,
    VERSION_BY_REVISION,
)
from blackboard.archive.values import ArchivedValues
from blackboard.core import digest
from blackboard.core.checkpoints import Difference, Lost, Mark, Point, Step, StoredCheckpoint
from blackboard.core.commit import RECOVER, RESTORE, Epoch, LogEntry, signatures_of
from blackboard.core.directories import Children, ranges_behind
from blackboard.core.path import SYSTEM, Ranges, namespace_of, ranges_of
from blackboard.errors import Compacted, Corrupt, FutureRevision, InvalidRequest
from blackboard.limits import LOG_ENTRIES_MAX, PAGE_BYTES_MAX
from blackboard.units import Key, Prefix, Revision

CHANGED_KEYS: Final = 4_096
"""Most names of changed keys per query. Each query goes through all changes in between, so a caller
that needs many differences asks for many at once."""
STEP_KEYS: Final = 128
"""Keys fetched at a time: with values of BLOB_BYTES they are 8 MiB, and making objects of the rows
blocks other tasks for less than two milliseconds."""
_AFTER_ALL: Final = "\x7f"  # keys are printable ASCII
_Span = tuple[int, Revision, Revision]
"""Revisions of the board with that id: after the first number, up to the second."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Revisions of the board with that id, up to `upto`; `own` unless it is another board's."""

    board: int
    upto: Revision
    own: bool = True

    def shares(self, key: Key) -> bool:
        """Whether the versions of `key` in this segment belong to the board."""
        return self.own or namespace_of(key) != SYSTEM


@lru_cache(maxsize=4)
def _page_query(*, reverse: bool, keys_only: bool) -> TextClause:
    """A query for the versions that count of the next names in a range, of one segment."""
    end, beyond, order = ("MAX", "<", "DESC") if reverse else ("MIN", ">", "ASC")
    shown = ", ".join(f"v.{name}" for name in _SHOWN) if keys_only else "v.*"
    return text(
        f"""
        WITH RECURSIVE name(key) AS (
            SELECT (SELECT {end}(key) FROM version
                    WHERE board = :board AND key >= :first AND key < :last)
            UNION ALL
            SELECT (SELECT {end}(v.key) FROM version v
                    WHERE v.board = :board AND v.key {beyond} name.key
                    AND v.key >= :first AND v.key < :last)
            FROM name WHERE name.key IS NOT NULL
        )
        SELECT page.key AS name, {shown}
        FROM (SELECT key FROM name WHERE key IS NOT NULL LIMIT :step) AS page
        LEFT JOIN version v ON v.board = :board AND v.key = page.key AND v.revision = (
            SELECT MAX(w.revision) FROM version w
            WHERE w.board = :board AND w.key = page.key AND w.revision <= :upto)
        ORDER BY page.key {order}
        """
    )


_SHOWN: Final = "key revision form create_revision author time_ms expires_at_ms first_ms".split()
"""What a listing of keys only reads of a version."""


@lru_cache(maxsize=64)
def _written(ranges: int, *, is_sqlite: bool) -> TextClause:
    """A query for the keys in this number of ranges that were written in a span."""
    # SQLite's planner would scan all keys, because they are in order.
    how = f"INDEXED BY {VERSION_BY_REVISION.name}" if is_sqlite else ""
    within = " OR ".join(f"key >= :first{n} AND key < :last{n}" for n in range(ranges))
    return text(
        f"SELECT DISTINCT key FROM version {how}"
        f" WHERE board = :span AND revision > :low AND revision <= :high AND ({within})"
        " ORDER BY key LIMIT :names"
    )


class ArchivedHistory:
    """A board at a revision, within one snapshot of the database."""

    def __init__(
        self, database: Database, connection: AsyncConnection, segments: Sequence[Segment]
    ) -> None:
        self.database = database
        self.connection = connection
        self.segments = segments

    @classmethod
    async def at(
        cls, database: Database, connection: AsyncConnection, at: Point
    ) -> "ArchivedHistory":
        """Errors: Compacted, FutureRevision."""
        row = await board_row(connection, at.board)
        through = -1 if row is None or row.through is None else row.through
        if row is None or at.revision > through:
            raise FutureRevision(at.revision, max(through, 0))
        row = await _holder(connection, row, at.revision)
        while row.origin is not None and at.revision <= row.origin_revision:
            row = await board_by_id(connection, row.origin)
        if at.revision < row.oldest:
            kept = select(KEPT).where(KEPT.c.board == row.id, KEPT.c.revision == at.revision)
            if not await rows(connection, kept):
                raise Compacted(at.revision, row.oldest)
        return cls(database, connection, await segments_of(connection, row, at.revision))

    @property
    def revision(self) -> Revision:
        """The revision of this view."""
        return self.segments[0].upto

    # --- versions ---------------------------------------------------------------------------------

    async def newest(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """The newest version of each key in this history, removals included."""
        found: dict[Key, Any] = {}
        for start in range(0, len(keys), STEP_KEYS):
            found |= await self._newest(keys[start : start + STEP_KEYS])
        return found

    async def _newest(self, keys: Sequence[Key]) -> dict[Key, Any]:
        found: dict[Key, Any] = {}
        for segment in self.segments:
            wanted = [key for key in keys if key not in found and segment.shares(key)]
            if not wanted:
                continue
            query = _newest_query(self.database.given)
            where = {"board": segment.board, "upto": segment.upto}
            for row in await rows(self.connection, query, where | given_keys(wanted)):
                if row.key is not None:
                    found[row.key] = row
        return found

    async def _page(
        self, within: tuple[str, str], *, reverse: bool, keys_only: bool
    ) -> tuple[list[Any], Key | None]:
        """Versions of some keys in a range, in order, removals included, and the key after which to
        continue (None at the end)."""
        first, last = within
        given = {"first": first, "last": last, "step": STEP_KEYS}
        query = _page_query(reverse=reverse, keys_only=keys_only)
        found: dict[Key, Any] = {}
        horizons: list[Key] = []
        for segment in self.segments:
            where = {"board": segment.board, "upto": segment.upto}
            page = await rows(self.connection, query, given | where)
            # Behind a full page, this segment may have keys that were not read yet.
            if len(page) == STEP_KEYS:
                horizons.append(page[-1].name)
            for row in page:
                if row.revision is not None and segment.shares(row.name):
                    # The nearest segment came first, and its version counts.
                    found.setdefault(row.name, row)
        seen = sorted(found, reverse=reverse)
        if not horizons:
            return [found[key] for key in seen], None
        horizon = max(horizons) if reverse else min(horizons)
        is_seen = horizon.__le__ if reverse else horizon.__ge__
        return [found[key] for key in seen if is_seen(key)], horizon

    async def entries(
        self,
        within: Prefix | Ranges = "",
        after: Key | None = None,
        *,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> AsyncIterator[list[Any]]:
        """Pages of the newest versions of all existing keys within, after `after`; in descending
        order with `reverse`, and without their values with `keys_only`."""
        left = ranges_of(within, after, reverse=reverse)
        while left:
            nearest = left[-1] if reverse else left[0]
            page, after = await self._page(nearest, reverse=reverse, keys_only=keys_only)
            yield [row for row in page if row.form != ABSENT]
            if after is not None:
                left = ranges_of(left, after, reverse=reverse)
            else:
                left = left[:-1] if reverse else left[1:]

    async def keys_by_directory(
        self, found: Children, left: Ranges, *, reverse: bool
    ) -> AsyncIterator[list[Any]]:
        """As `entries` with `keys_only`, for `found`: once a directory was counted, the rest of it
        is skipped."""
        while left:
            nearest = left[-1] if reverse else left[0]
            page, after = await self._page(nearest, reverse=reverse, keys_only=True)
            yield [row for row in page if row.form != ABSENT]
            if after is None:
                left = left[:-1] if reverse else left[1:]
            elif found.is_counted(after):
                left = ranges_behind(left, found.prefix, after, reverse=reverse)
            else:
                left = ranges_of(left, after, reverse=reverse)

    # --- what belongs to a revision ---------------------------------------------------------------

    async def commit(self) -> Any:
        """The newest commit's row; None when there is none."""
        for segment in self.segments:
            query = (
                select(COMMIT)
                .where(COMMIT.c.board == segment.board, COMMIT.c.revision <= segment.upto)
                .order_by(COMMIT.c.revision.desc())
                .limit(1)
            )
            if found := await rows(self.connection, query):
                return found[0]
        return None

    async def chain(self) -> bytes:
        """The hash chain up to this revision."""
        commit = await self.commit()
        return archive_rows.CHAIN_START if commit is None else bytes(commit.chain)

    async def epoch(self) -> Epoch:
        """The epoch at this revision."""
        for segment in self.segments:
            query = (
                select(EPOCH)
                .where(EPOCH.c.board == segment.board, EPOCH.c.revision <= segment.upto)
                .order_by(EPOCH.c.revision.desc())
                .limit(1)
            )
            if found := await rows(self.connection, query):
                return archive_rows.epoch_of(found[0])
        return Epoch(1, "")

    async def digests(self) -> dict[str, bytes]:
        """Digests of the namespaces that are not empty.

        They are archived at the end of an append, at a checkpoint, and where a board began; in
        between they are computed from what changed since.
        """
        found = await self.archived_digests()
        if found is None:
            totals = await self.totals()
            found = {name: digest.digest_of(total) for name, total in totals.items()}
        return digest.without_empty(found)

    async def archived_digests(self) -> dict[str, bytes] | None:
        """The digest of each namespace, if they are archived for this revision."""
        found: dict[str, bytes] = {}
        for segment in self.segments:
            query = _digests_query()
            where = {"board": segment.board, "upto": segment.upto}
            newest = await rows(self.connection, query, where)
            shown = [row for row in newest if segment.own or row.namespace != SYSTEM]
            missing = [row for row in shown if row.namespace not in found]
            if missing or segment is self.segments[0]:
                last = max((row.revision for row in newest), default=-1)
                # A version is newer than all digests, so they are not those of this revision.
                if await self._changed_since(segment, last):
                    return None
            found |= {row.namespace: bytes(row.digest) for row in missing}
        return found

    async def _changed_since(self, segment: Segment, revision: Revision) -> bool:
        query = (
            select(VERSION.c.revision)
            .where(VERSION.c.board == segment.board)
            .where(VERSION.c.revision > revision, VERSION.c.revision <= segment.upto)
            .limit(1)
        )
        return bool(await rows(self.connection, query))

    async def steps(self) -> dict[str, Step]:
        """Each agent's last commit, under any of its signatures."""
        # Those of the board itself: it began with the agents of its origin, and its manifests name
        # no others.
        known = select(AGENT.c.agent).where(AGENT.c.board == self.segments[0].board)
        agents = [row.agent for row in await rows(self.connection, known)]
        names = {signed: name for name in agents for signed in signatures_of(name)}
        found: dict[str, Step] = {}
        for segment in self.segments:
            found = await self._steps(segment, names) | found
        return found

    async def _steps(self, segment: Segment, names: Mapping[str, str]) -> dict[str, Step]:
        """The last commits in one segment; `names` has the agent of each signature."""
        signed, found = list(names), dict[str, Step]()
        where = {"board": segment.board, "upto": segment.upto}
        query = _last_commits_query(self.database.given)
        for start in range(0, len(signed), STEP_KEYS):
            some = given_keys(signed[start : start + STEP_KEYS])
            for row in await rows(self.connection, query, where | some):
                if row.revision is not None:
                    name, step = names[row.agent], (row.revision, *row[2:])
                    found[name] = max(found.get(name, step), step)
        return found

    async def items(self, unless: "ArchivedHistory | None" = None) -> dict[Prefix, int]:
        """The counters of `append`; with `unless`, only from revisions that are not in its
        history."""
        known = {s.board: s.upto for s in ([] if unless is None else unless.segments)}
        found: dict[Prefix, int] = {}
        for segment in self.segments:
            after = known.get(segment.board, -1)
            if segment.upto <= after:
                continue
            if segment.board not in known:
                counters = select(COUNTER).where(COUNTER.c.board == segment.board)
                for row in await rows(self.connection, counters):
                    found[row.prefix] = max(found.get(row.prefix, 0), row.next)
            items = select(VERSION.c.key, VERSION.c.item).where(
                VERSION.c.board == segment.board,
                VERSION.c.revision > after,
                VERSION.c.revision <= segment.upto,
                VERSION.c.item.is_not(None),
            )
            for row in await rows(self.connection, items):
                prefix = row.key.rpartition("/")[0]
                found[prefix] = max(found.get(prefix, 0), row.item + 1)
        return found

    async def totals(self, namespaces: Sequence[str] | None = None) -> dict[str, int]:
        """Sums of `namespaces` (None = all): those of the newest revision, with later changes
        undone. Errors: Corrupt."""
        [segment, *_] = self.segments
        totals = await self._newest_totals(segment.board, namespaces)
        board = await board_by_id(self.connection, segment.board)
        head = ArchivedHistory(
            self.database, self.connection, [Segment(board.id, board.through), *self.segments[1:]]
        )
        async for keys in changed_keys(self, head):
            before, now = await self.newest(keys), await head.newest(keys)
            for key in keys:
                if namespaces is None or namespace_of(key) in totals:
                    _undo(totals, before.get(key), now.get(key))
        return totals

    async def _newest_totals(self, board: int, namespaces: Sequence[str] | None) -> dict[str, int]:
        query = select(TOTAL).where(TOTAL.c.board == board)
        if namespaces is not None:
            query = query.where(TOTAL.c.namespace.in_(select(self.database.given.c.value)))
        found = await rows(self.connection, query, given_keys(namespaces or ()))
        empty = dict.fromkeys(namespaces or (), digest.EMPTY)
        return empty | {row.namespace: archive_rows.total_of(row) for row in found}


def _undo(totals: dict[str, int], before: Any, now: Any) -> None:
    for row, change in ((now, digest.remove), (before, digest.add)):
        if row is not None and row.form != ABSENT:
            namespace = namespace_of(row.key)
            total = totals.get(namespace, digest.EMPTY)
            totals[namespace] = change(total, archive_rows.element_of(row))


def _counts(version: Any, board: Any, upto: Any, keys: Any, key: Any) -> ColumnElement[bool]:
    """The condition that a row of `version` is the newest one of `key` (a column of `keys`) up to
    `upto`."""
    other = VERSION.alias()
    last = (
        select(func.max(other.c.revision))
        .where(other.c.board == board, other.c.key == key, other.c.revision <= upto)
        .correlate(keys)
        .scalar_subquery()
    )
    return and_(version.c.board == board, version.c.key == key, version.c.revision == last)


@lru_cache(maxsize=8)
def _newest_query(given: Any) -> Any:
    """A query for the version of each key of `given` that counts. Made once, because making it
    takes as long as running it.

    It is an outer join because SQLite then keeps the order of its sides. Otherwise it would scan
    every version of the board, and the keys for each.
    """
    board: Any = bindparam("board")
    upto: Any = bindparam("upto")
    joined = _counts(VERSION, board, upto, given, given.c.value)
    return select(VERSION).select_from(given.outerjoin(VERSION, joined))


@lru_cache(maxsize=8)
def _last_commits_query(given: Any) -> Any:
    """A query for the newest commit up to a revision under each signature of `given`."""
    board: Any = bindparam("board")
    other = COMMIT.alias()
    last = (
        select(func.max(other.c.revision))
        .where(other.c.board == board, other.c.agent == given.c.value)
        .where(other.c.revision <= bindparam("upto"))
        .correlate(given)
        .scalar_subquery()
    )
    joined = given.outerjoin(COMMIT, and_(COMMIT.c.board == board, COMMIT.c.revision == last))
    shown = (COMMIT.c.revision, COMMIT.c.agent, COMMIT.c.incarnation, COMMIT.c.lane, COMMIT.c.step)
    return select(*shown).select_from(joined)


@lru_cache(maxsize=1)
def _digests_query() -> Any:
    """The newest digest of each namespace up to a revision, and its revision."""
    upto: Any = bindparam("upto")
    other = DIGEST.alias()
    last = (
        select(func.max(other.c.revision))
        .where(other.c.board == DIGEST.c.board, other.c.namespace == TOTAL.c.namespace)
        .where(other.c.revision <= upto)
        .correlate(DIGEST, TOTAL)
        .scalar_subquery()
    )
    same = and_(DIGEST.c.board == TOTAL.c.board, DIGEST.c.namespace == TOTAL.c.namespace)
    joined = TOTAL.join(DIGEST, and_(same, DIGEST.c.revision == last))
    return select(DIGEST).select_from(joined).where(TOTAL.c.board == bindparam("board"))


# --- boards ---------------------------------------------------------------------------------------


async def board_row(connection: AsyncConnection, name: str) -> Any:
    """The row of a board, None if it is unknown."""
    found = await rows(connection, select(BOARD).where(BOARD.c.name == name))
    return found[0] if found else None


async def board_by_id(connection: AsyncConnection, number: int) -> Any:
    """The row of a board that another one comes from."""
    [found] = await rows(connection, select(BOARD).where(BOARD.c.id == number))
    return found


async def segments_of(connection: AsyncConnection, row: Any, upto: Revision) -> list[Segment]:
    """The segments of a board's past up to `upto`."""
    own = True
    found = [Segment(row.id, upto)]
    while row.origin is not None:
        own = own and row.continues
        upto = min(upto, row.origin_revision)
        row = await board_by_id(connection, row.origin)
        # If the branch lies in what this row has from its own origin, it adds no segment.
        if row.origin is None or upto > row.origin_revision:
            found.append(Segment(row.id, upto, own))
    return found


async def mark_of(past: ArchivedHistory, row: Any) -> Mark:
    """The mark of the board with `row`, whose past is `past`."""
    origin, child = None, row
    while child.continues:
        child = await board_by_id(past.connection, child.origin)
    if child.origin is not None:
        parent = await board_by_id(past.connection, child.origin)
        origin = Point(parent.called, child.origin_revision)
    called = "" if row.name in (None, row.called) else row.called
    return Mark(row.oldest, past.revision, await past.epoch(), await past.chain(), origin, called)


async def line_of(connection: AsyncConnection, row: Any) -> list[Any]:
    """The rows of a board up to `row`, the oldest first. Each loss of revisions by the engine adds
    a row, which begins above all that was archived before; so their revisions ascend."""
    if not row.continues:
        return [row]
    query = (
        select(BOARD)
        .where(BOARD.c.called == row.called, BOARD.c.id <= row.id, BOARD.c.through.is_not(None))
        .order_by(BOARD.c.id)
    )
    roots: dict[int, int] = {}
    found = await rows(connection, query)
    for each in found:
        roots[each.id] = roots[each.origin] if each.continues else each.id
    return [each for each in found if roots[each.id] == roots[row.id]]


async def _holder(connection: AsyncConnection, row: Any, revision: Revision) -> Any:
    """The row of a board's line that has `revision`, which may be one that its engine lost.

    Errors: Compacted for revisions between the archived ones and those where the board continued.
    """
    line = await line_of(connection, row)
    found = next(each for each in line if revision <= each.through)
    if found.continues and found.oldest == found.origin_revision < revision:
        query = select(func.min(COMMIT.c.revision)).where(COMMIT.c.board == found.id)
        [[begins]] = await rows(connection, query)
        if revision < begins:
            raise Compacted(revision, begins)
    return found


async def own_segments(connection: AsyncConnection, row: Any) -> list[Segment]:
    """All segments that belong to a board itself, the newest first, including those that its engine
    lost."""
    return [Segment(each.id, each.through) for each in reversed(await line_of(connection, row))]


async def lost(connection: AsyncConnection, row: Any) -> Lost | None:
    """What the engine of the board with `row` lost when that row began, if it did."""
    *earlier, before, _ = await line_of(connection, row)
    survived = row.origin_revision
    if row.origin != before.id:  # it continued from an even earlier one
        survived = max([survived, *(each.through for each in earlier)])
    query = select(func.min(COMMIT.c.revision)).where(COMMIT.c.board == row.id)
    [[begins]] = await rows(connection, query)
    first = select(EPOCH.c.cause).where(EPOCH.c.board == row.id, EPOCH.c.revision == begins)
    causes = [each.cause for each in await rows(connection, first)]
    is_pruned = before.oldest > before.through
    if survived >= before.through or causes == [RECOVER] or is_pruned:
        return None
    return Lost(survived, before.through, row.oldest if begins is None else begins)


async def gap_before(connection: AsyncConnection, row: Any) -> tuple[Revision, Revision] | None:
    """The first and the last revision of a board that its archive never had, just before the
    content with which `row` began; None if it had all, or the older ones were pruned.

    An engine cut its log before it was archived: an older archive was put back, or the service ran
    without it.
    """
    if not row.continues or row.origin_revision:
        return None
    before = await board_by_id(connection, row.origin)
    if before.oldest > before.through or row.oldest <= before.through:
        return None
    query = select(EPOCH).where(EPOCH.c.board == row.id, EPOCH.c.revision <= row.oldest)
    for epoch in await rows(connection, query.order_by(EPOCH.c.revision.desc()).limit(1)):
        skipped = epoch.cause != RESTORE and epoch.from_revision <= before.through
        if skipped and epoch.revision == row.oldest:
            return None  # only the marker of a loss came in between
    return before.through + 1, row.oldest


async def lost_ends(past: "ArchivedHistory") -> list["ArchivedHistory"]:
    """The ends of the histories that a board's engine lost before `past`."""
    ends = {segment.board: segment.upto for segment in past.segments}
    found = []
    for segment in await all_segments(past):
        if segment.own and segment.upto > ends.get(segment.board, -1):
            row = await board_by_id(past.connection, segment.board)
            segments = await segments_of(past.connection, row, segment.upto)
            found.append(ArchivedHistory(past.database, past.connection, segments))
    return found


async def all_segments(past: "ArchivedHistory") -> list[Segment]:
    """As `past.segments`, including the segments that the board's engine lost before."""
    [nearest, *_] = past.segments
    row = await board_by_id(past.connection, nearest.board)
    own = [
        Segment(each.board, min(each.upto, nearest.upto))
        for each in await own_segments(past.connection, row)
    ]
    return own + [segment for segment in past.segments if not segment.own]


async def changed_keys(
    a: ArchivedHistory, b: ArchivedHistory, within: Prefix | Ranges = "", wanted: int = CHANGED_KEYS
) -> AsyncIterator[list[Key]]:
    """The keys within that were written on the way from `a` to `b`, sorted, STEP_KEYS at a time;
    for two boards without their `system` namespaces.

    `wanted`: how many of them will probably be used. So many names are read per query, from
    STEP_KEYS to CHANGED_KEYS. The database leaves out those that are certainly equal: after many
    restores, that is most of them. Errors: InvalidRequest when they have no common history.
    """
    limit = max(STEP_KEYS, min(wanted, CHANGED_KEYS))
    spans, shared = _way(a, b)
    left = ranges_of(within)
    while left:
        found, after = await _changed_keys(a, b, spans, left, limit)
        keys = sorted(key for key in found if shared or namespace_of(key) != SYSTEM)
        for start in range(0, len(keys), STEP_KEYS):
            yield keys[start : start + STEP_KEYS]
        left = () if after is None else ranges_of(left, after)


def _way(a: ArchivedHistory, b: ArchivedHistory) -> tuple[list[_Span], bool]:
    """The spans written between `a` and `b`, and whether both are of one board."""
    boards = {segment.board: segment for segment in b.segments}
    common = next((segment for segment in a.segments if segment.board in boards), None)
    if common is None:
        raise InvalidRequest(field="b", reason="these boards share no history")
    other = boards[common.board]
    low, high = sorted((common.upto, other.upto))
    spans = [(common.board, low, high)]
    for past in (a, b):
        for segment in past.segments:
            if segment.board == common.board:
                break
            spans.append((segment.board, -1, segment.upto))
    return spans, common.own and other.own


async def _changed_keys(
    a: ArchivedHistory, b: ArchivedHistory, spans: Sequence[_Span], ranges: Ranges, limit: int
) -> tuple[set[Key], Key | None]:
    """Those of the next `limit` names that may differ, and the name after which to continue; None
    at the end."""
    found: set[Key] = set()
    horizon: Key | None = None
    for span in spans:
        for row in await rows(a.connection, _differing(a, b, span, ranges, limit)):
            if row.names < 0:
                found.add(row.key)
            elif row.names == limit:
                horizon = min(horizon or _AFTER_ALL, row.key)
    return {key for key in found if horizon is None or key <= horizon}, horizon


def _differing(
    a: ArchivedHistory, b: ArchivedHistory, span: _Span, ranges: Ranges, limit: int
) -> Any:
    """A query for the keys that may differ among the first `limit` written in `span`, in any order,
    and for a row with the last of these and their number.

    The limit comes before the comparison, which takes twenty times as long as finding the keys.
    """
    board, low, high = span
    given: dict[str, Any] = {"span": board, "low": low, "high": high, "names": limit}
    for number, (first, last) in enumerate(ranges):
        given |= {f"first{number}": first, f"last{number}": last}
    written = _written(len(ranges), is_sqlite=a.database.is_sqlite)
    changed = written.bindparams(**given).columns(VERSION.c.key).cte("changed")
    differ = _unlike(a, b, changed).add_columns(literal_column("-1").label("names"))
    return union_all(differ, select(func.max(changed.c.key), func.count(changed.c.key)))


def _unlike(a: ArchivedHistory, b: ArchivedHistory, changed: Any) -> Any:
    """The keys of `changed`, except those that are certainly equal in `a` and `b`.

    Only the nearest segments are compared, because their versions count. A key without a version
    there stays, if there are other segments.
    """
    one, other = VERSION.alias(), VERSION.alias()
    alike = [
        func.coalesce(one.c.form, ABSENT) == func.coalesce(other.c.form, ABSENT),
        _said(one).is_not_distinct_from(_said(other)),
        one.c.expires_at_ms.is_not_distinct_from(other.c.expires_at_ms),
    ]
    joined = changed
    for past, side in ((a, one), (b, other)):
        near = past.segments[0]
        counts = _counts(side, near.board, near.upto, changed, changed.c.key)
        joined = joined.outerjoin(side, counts)
        if len(past.segments) > 1:
            alike.append(side.c.revision.is_not(None))
    return select(changed.c.key).select_from(joined).where(not_(and_(*alike)))


def _said(version: Any) -> Any:
    """The content of a version, but for where in a log its value lies."""
    hashed = func.substr(version.c.content, 1, archive_rows.HASH_BYTES)
    return case((version.c.form == LOGGED, hashed), else_=version.c.content)


async def page(
    past: ArchivedHistory, source: ArchivedValues, after: Revision, limit: int
) -> list[LogEntry]:
    """Log entries after `after` up to the revision of `past`, as many as a page holds.

    Errors: Compacted when they are not known; Corrupt; Unavailable.
    """
    found: list[LogEntry] = []
    room = min(limit, LOG_ENTRIES_MAX)
    below = -1
    for segment in reversed(past.segments):
        start = max(after, below)
        if start < segment.upto and len(found) < room:
            board = await board_by_id(past.connection, segment.board)
            if after >= below and start < board.oldest:
                raise Compacted(after, board.oldest + 1)
            more, is_whole = await _part(past, source, segment, start, room - len(found))
            found += more
            if not is_whole:
                break
        below = segment.upto
    return found


async def _part(
    past: ArchivedHistory, source: ArchivedValues, segment: Segment, after: Revision, limit: int
) -> tuple[list[LogEntry], bool]:
    """Log entries of one segment, and whether that was all of it."""
    commits = await commits_between(past, segment, after, limit)
    size = 0
    for count, commit in enumerate(commits, 1):
        size += commit.cost
        if size >= PAGE_BYTES_MAX:
            return await assemble(past, source, segment.board, commits[:count]), False
    return await assemble(past, source, segment.board, commits), len(commits) < limit


async def commits_between(
    past: ArchivedHistory, segment: Segment, after: Revision, limit: int
) -> list[Any]:
    """Rows of the commits of a segment after `after`."""
    query = (
        select(COMMIT)
        .where(COMMIT.c.board == segment.board)
        .where(COMMIT.c.revision > after, COMMIT.c.revision <= segment.upto)
        .order_by(COMMIT.c.revision)
        .limit(limit)
    )
    return list(await rows(past.connection, query))


async def assemble(
    past: ArchivedHistory, source: ArchivedValues, board: int, commits: Sequence[Any]
) -> list[LogEntry]:
    """The log entries of consecutive commits. Errors: Corrupt; Unavailable."""
    if not commits:
        return []
    first, last = commits[0].revision, commits[-1].revision
    changed = (
        select(VERSION)
        .with_hint(VERSION, "INDEXED BY version_by_revision", "sqlite")
        .where(VERSION.c.board == board)
        .where(VERSION.c.revision >= first, VERSION.c.revision <= last)
        .order_by(VERSION.c.revision, VERSION.c.position)
    )
    versions: dict[Revision, list[Any]] = defaultdict(list)
    values: dict[Revision, list[bytes | None]] = defaultdict(list)
    async for row, value in source.each(past.connection, await rows(past.connection, changed)):
        versions[row.revision].append(row)
        values[row.revision].append(value)
    begun = select(EPOCH).where(
        EPOCH.c.board == board, EPOCH.c.revision >= first, EPOCH.c.revision <= last
    )
    epochs = {r.revision: archive_rows.epoch_of(r) for r in await rows(past.connection, begun)}
    return [
        archive_rows.entry_of(c, versions[at], epochs.get(at), values[at])
        for c in commits
        for at in [c.revision]
    ]


def stored(board: str, row: Any) -> StoredCheckpoint:
    """A checkpoint from its row. Errors: Corrupt."""
    try:
        manifest = archive_rows.unpack_manifest(row.manifest)
    except ValueError as error:
        raise Corrupt(what=f"manifest of checkpoint {row.name}", reason=str(error)) from error
    return StoredCheckpoint(
        board=board,
        name=row.name,
        revision=row.revision,
        time_ms=row.time_ms,
        kind=row.kind,
        manifest=manifest,
        signature=bytes(row.signature),
        pinned=row.pinned,
    )


def cost_of(difference: Difference) -> int:
    """About how many bytes a difference has."""
    sides = (difference.before, difference.after)
    return len(difference.key) + sum(len(entry.value) for entry in sides if entry is not None)
