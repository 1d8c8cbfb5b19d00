"""Archives a run of log entries in a transaction, with the manifests of its checkpoints.

A manifest describes the content of its revision, which only the fold knows before the rows are
written.

`Warmth` caches what an append computed, so that the next one need not read it from the database.

Invariants of the cache
- It is used only for a board whose row has not changed since: same id, same revision, same hash
  chain. So other processes may append, and a lost process loses nothing that matters.
- It is bounded: ARCHIVE_WARM_BOARDS boards, of each ARCHIVE_WARM_KEYS keys, and the sums of
  ARCHIVE_WARM_NAMESPACES namespaces.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final

from sqlalchemy import select, update

from blackboard.archive import rows as archive_rows
from blackboard.archive.base import Pause, Sealer
from blackboard.archive.database import add, rows
from blackboard.archive.fold import (
    CHECKPOINTS,
    DECLARED,
    STEP_CHANGES,
    Fold,
    Known,
    Places,
)
from blackboard.archive.history import STEP_KEYS, ArchivedHistory, mark_of
from blackboard.archive.rows import Row
from blackboard.archive.tables import (
    ABSENT,
    AGENT,
    BOARD,
    CHECKPOINT,
    COMMIT,
    DIGEST,
    EPOCH,
    TOTAL,
    VERSION,
    TextWithNul,
)
from blackboard.archive.values import ArchivedValues
from blackboard.core import digest
from blackboard.core.checkpoints import Cut, Facts, Mark, Step
from blackboard.core.commit import Change, Epoch, LogEntry, created_ms_of
from blackboard.core.path import namespace_of
from blackboard.errors import Corrupt
from blackboard.limits import ARCHIVE_WARM_BOARDS, ARCHIVE_WARM_KEYS, ARCHIVE_WARM_NAMESPACES
from blackboard.units import Key, Revision
from blackboard.wire.codec import decode_value


@dataclass(frozen=True, slots=True)
class Warm:
    """The end of a board's archive: `known` and `totals` are as in `Fold`, but not all of them."""

    board: int
    mark: Mark
    known: dict[Key, Known]
    totals: dict[str, int]


class Warmth:
    """The cache of the boards that were appended to last."""

    def __init__(self) -> None:
        self._boards: dict[int, Warm] = {}

    def take(self, row: Any) -> Warm | None:
        """Remove and return what is cached for the board with `row`, if it is still valid."""
        warm = self._boards.pop(row.id, None)
        if warm is None or (warm.mark.revision, warm.mark.chain) != (row.through, bytes(row.chain)):
            return None
        return warm

    def keep(self, warm: Warm) -> None:
        """Cache the result of an append, once it was committed."""
        _shorten(warm.known, ARCHIVE_WARM_KEYS)
        _shorten(warm.totals, ARCHIVE_WARM_NAMESPACES)
        # It becomes the last one: the first one, which is dropped, was appended to longest ago.
        self._boards.pop(warm.board, None)
        self._boards[warm.board] = warm
        if len(self._boards) > ARCHIVE_WARM_BOARDS:
            del self._boards[next(iter(self._boards))]


def _shorten(found: dict[Any, Any], items_max: int) -> None:
    """Drop the first items, which are the oldest."""
    for key in list(islice(found, max(0, len(found) - items_max))):
        del found[key]


def left_out(wanted: Mapping[Any, Any], known: Mapping[Any, Any]) -> list[Any]:
    """The items of `wanted` that are not `known` and have to be read."""
    return [key for key in wanted if key not in known]


_CHANGES_AT_ONCE: Final = 1_000  # a millisecond: only their keys are read
_ENTRIES_AT_ONCE: Final = 32  # a millisecond; a turn of the event loop takes as long as one of them
NAMED: Final = "named"
"""The kind of a checkpoint whose record does not name one."""


@dataclass(frozen=True, slots=True)
class PageTools:
    """What a page may need apart from the database: what signs manifests, and what reads values."""

    sealer: Sealer
    values: ArchivedValues


class Appending:
    """Archives log entries that follow `past`, the newest revision of the board with `row`; those
    that take a checkpoint only with `tools`."""

    def __init__(
        self, past: ArchivedHistory, row: Any, warm: Warm | None, tools: PageTools | None
    ) -> None:
        self._past = past
        self._warm = warm
        self._row = row
        self._tools = tools
        self._connection = past.connection

    async def write(self, entries: Sequence[LogEntry], places: Places, pause: Pause) -> Warm:
        """Write all rows of `entries`, of which only the first may be the marker of a lost history.
        The values that have `places` stay in the log.

        Returns the new end of the archive, which is valid once the transaction was committed.
        """
        fold, before = await self._fold(entries, pause)
        fold.places = places
        taken = {}
        for entry in entries:
            taken[entry.revision] = self._taken(entry)
            if len(entry.changes) >= _CHANGES_AT_ONCE:
                await pause()
        # To prepare them, all agents and declarations of the board are read: only for a checkpoint.
        seals = await self._seals(fold) if any(taken.values()) else None
        for number, entry in enumerate(entries, 1):
            if len(entry.changes) < STEP_CHANGES:
                fold.apply(entry)
            else:
                await _in_turns(fold.steps_of(entry), pause)
            if number % _ENTRIES_AT_ONCE == 0:
                await pause()
            if seals is not None:
                # A manifest has the digests of its own revision, not of the end of the page.
                if taken[entry.revision]:
                    await _in_turns(fold.steps_to_settle(entry.revision), pause)
                seals.follow(entry)
                for change in taken[entry.revision]:
                    seals.seal(entry, change)
        through = entries[-1].revision
        await _in_turns(fold.steps_to_settle(through), pause)
        await self._write(fold, through)
        await add(self._connection, CHECKPOINT, seals.rows if seals else ())
        epochs = [before.epoch, *(entry.epoch for entry in entries if entry.epoch is not None)]
        mark = Mark(self._row.oldest, through, epochs[-1], fold.chain, before.origin)
        return Warm(self._row.id, mark, fold.known, fold.totals)

    def _taken(self, entry: LogEntry) -> list[Change]:
        """The changes that take a checkpoint."""
        found = [c for c in entry.changes if c.key.startswith(CHECKPOINTS) and c.value is not None]
        # Up to there the content is not known exactly (`Archive.join`), so it cannot be signed.
        return found if entry.revision > self._row.oldest else []

    async def _fold(self, entries: Sequence[LogEntry], pause: Pause) -> tuple[Fold, Mark]:
        """A fold with the known versions and sums that it needs, and the mark of the board before
        it."""
        keys: dict[Key, None] = {}
        namespaces: dict[str, None] = {}
        changes = chain.from_iterable(entry.changes for entry in entries)
        while some := list(islice(changes, _CHANGES_AT_ONCE)):
            touched = dict.fromkeys(change.key for change in some if change.lease is None)
            keys |= touched
            namespaces |= dict.fromkeys(map(namespace_of, touched))
            if len(some) == _CHANGES_AT_ONCE:
                await pause()
        warm = self._warm
        known = {} if warm is None else warm.known
        totals = {} if warm is None else warm.totals
        missing = left_out(keys, known)
        for start in range(0, len(missing), STEP_KEYS):
            newest = await self._newest(missing[start : start + STEP_KEYS])
            known |= {key: known_of(row) for key, row in newest.items()}
        totals |= await self._totals(left_out(namespaces, totals))
        mark = await mark_of(self._past, self._row) if warm is None else warm.mark
        return Fold(self._row.id, mark.chain, known, totals), mark

    async def _newest(self, keys: list[Key]) -> dict[Key, Any]:
        """The newest version of each key, even one that is ahead of the log (`Archive.join`)."""
        head = ArchivedHistory(self._past.database, self._connection, self._past.segments)
        if self._row.through < self._row.oldest:
            first, *rest = self._past.segments
            ahead = type(first)(first.board, self._row.oldest)
            head = ArchivedHistory(self._past.database, self._connection, [ahead, *rest])
        return await head.newest(keys)

    async def _totals(self, namespaces: list[str]) -> dict[str, int]:
        if not namespaces:
            return {}
        query = select(TOTAL).where(TOTAL.c.board == self._row.id)
        query = query.where(TOTAL.c.namespace.in_(namespaces))
        found = await rows(self._connection, query)
        return {row.namespace: archive_rows.total_of(row) for row in found}

    async def _write(self, fold: Fold, through: Revision) -> None:
        connection, board = self._connection, self._row.id
        if not self._past.database.is_sqlite:
            for row in fold.commits:
                row["note"] = TextWithNul.stored(row["note"])
        await add(connection, COMMIT, fold.commits)
        await add(connection, VERSION, fold.versions)
        await add(connection, EPOCH, fold.epochs)
        await add(connection, DIGEST, fold.digests)
        touched = {row["namespace"]: None for row in fold.digests}
        sums = [
            {"board": board, "namespace": name, "total": digest.to_bytes(fold.totals[name])}
            for name in touched
        ]
        await add(connection, TOTAL, sums, replace=True)
        steps = [agent_row(board, name, step) for name, step in fold.steps.items()]
        await add(connection, AGENT, steps, replace=True)
        now = {"through": through, "chain": fold.chain}
        await connection.execute(update(BOARD).where(BOARD.c.id == board), now)

    async def _seals(self, fold: Fold) -> "_Seals":
        """What a manifest needs in addition to the fold."""
        assert self._tools is not None
        agents = select(AGENT).where(AGENT.c.board == self._row.id)
        declared: dict[str, bytes] = {}
        async for page in self._past.entries(DECLARED):
            async for row, value in self._tools.values.each(self._connection, page):
                declared[row.key] = value or b""
        return _Seals(
            board=self._row.called,
            sealer=self._tools.sealer,
            fold=fold,
            epoch=await self._past.epoch(),
            digests=await self._past.digests(),
            steps={r.agent: step_of(r) for r in await rows(self._connection, agents)},
            declared=declared,
            previous=await previous_hash(self._past),
        )


def known_of(row: Any) -> Known:
    """What a fold has to know of the newest version of a key. Errors: Corrupt."""
    return known_with(row, None if row.form == ABSENT else archive_rows.element_of(row))


def known_with(row: Any, element: bytes | None) -> Known:
    """As `known_of`, with the element given."""
    created_ms = created_ms_of(row.revision, row.create_revision, row.time_ms, row.first_ms)
    return Known(row.revision, row.create_revision, created_ms, element)


async def _in_turns(steps: Iterator[None], pause: Pause) -> None:
    """Run the steps, with a pause between them.

    Not in a thread: a thread that computes keeps the interpreter lock for a whole switch interval
    each time that the event loop has waited for something.
    """
    for _ in steps:
        await pause()


@dataclass
class _Seals:
    """Makes the manifests of a run, one after the other."""

    board: str
    sealer: Sealer
    fold: Fold
    epoch: Epoch
    digests: dict[str, bytes]
    steps: dict[str, Step]
    declared: dict[str, bytes]
    previous: bytes
    rows: list[Row] = field(default_factory=list)
    noted: int = 0

    def follow(self, entry: LogEntry) -> None:
        """Take in an entry after the fold has taken it in."""
        self.epoch = entry.epoch or self.epoch
        self.steps[entry.id.agent] = self.fold.steps[entry.id.agent]
        for row in self.fold.digests[self.noted :]:
            self.digests[row["namespace"]] = row["digest"]
        self.noted = len(self.fold.digests)
        for change in entry.changes:
            if change.lease is None and change.key.startswith(f"{DECLARED}/"):
                self.declared.pop(change.key, None)
                if change.value is not None:
                    self.declared[change.key] = change.value

    def seal(self, entry: LogEntry, change: Change) -> None:
        """Make the manifest of the checkpoint that `change` of `entry` takes."""
        assert change.value is not None
        held = digest.without_empty(self.digests)
        cut = Cut(
            board=self.board,
            name=change.key.removeprefix(CHECKPOINTS),
            revision=entry.revision,
            time_ms=entry.time_ms,
            author=entry.author,
            epoch=self.epoch,
            chain=self.fold.chain,
            facts=Facts(held, dict(sorted(self.steps.items()))),
            record=change.value,
            declared={k.rpartition("/")[2]: v for k, v in sorted(self.declared.items())},
            previous=self.previous,
        )
        manifest, signature = self.sealer.seal(cut)
        self.previous = digest.content_of(manifest)
        self.rows.append(
            {
                "board": self.fold.board,
                "revision": entry.revision,
                "name": cut.name,
                "time_ms": entry.time_ms,
                "kind": kind_of(change.value),
                "manifest": archive_rows.pack_manifest(manifest),
                "signature": signature,
                "hash": self.previous,
                "pinned": False,
            }
        )


def kind_of(record: bytes) -> str:
    """The kind of a checkpoint, from its encoded record."""
    try:
        value = decode_value(record)
    except Corrupt:
        return NAMED
    return str(value.get("kind", NAMED)) if isinstance(value, dict) else NAMED


async def previous_hash(past: ArchivedHistory) -> bytes:
    """The hash of the newest manifest in `past`; empty if it has none."""
    for segment in past.segments:
        query = (
            select(CHECKPOINT.c.hash)
            .where(CHECKPOINT.c.board == segment.board, CHECKPOINT.c.revision <= segment.upto)
            .order_by(CHECKPOINT.c.revision.desc(), CHECKPOINT.c.name.desc())
            .limit(1)
        )
        if found := await rows(past.connection, query):
            return bytes(found[0].hash)
    return b""


def agent_row(board: int, agent: str, step: Step) -> Row:
    """The row of an agent's last commit."""
    revision, incarnation, lane, number = step
    return {
        "board": board,
        "agent": agent,
        "revision": revision,
        "incarnation": incarnation,
        "lane": lane,
        "step": number,
    }


def step_of(row: Any) -> Step:
    """The inverse of `agent_row`."""
    return (row.revision, row.incarnation, row.lane, row.step)
