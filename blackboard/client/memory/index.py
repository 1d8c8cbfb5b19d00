"""The index of one store of memories, in the memory of the process that searches.

Texts, times, authors and facts are in an SQLite database in memory (full text by FTS5), vectors in
one NumPy matrix. It is derived: `apply` follows entries and removals, and what it holds is a
function of the entries alone.

Invariants
- A row is in every table or in none. Its number is given again after it was removed.
- Only what the reader of the board was shown is ever in it.
"""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from blackboard.client.memory.records import (
    NO_MODEL,
    MemoryFilter,
    ModelRecord,
    record_of,
    remembered,
)
from blackboard.client.views import Entry
from blackboard.core.path import parse_pattern, range_below
from blackboard.errors import LimitExceeded
from blackboard.limits import DEFAULT, Limits
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import encode_value

if TYPE_CHECKING:
    from blackboard.client.memory.vectors import Matrix, Vectors

FUSION_CONSTANT: Final = 60
"""That of reciprocal rank fusion: G. Cormack, C. Clarke and S. Büttcher, "Reciprocal rank fusion
outperforms Condorcet and individual rank learning methods", SIGIR 2009."""
FUSED_RANKS_MIN: Final = 50
"""How many of each ranking are fused at least: a memory that is tenth in both beats one that is
first in one of them only."""
WORD: Final = re.compile(r"[\w\u0300-\u036f]+")
"""With the accents that follow their letter in a decomposed text: FTS5 takes them for its part."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEMA: Final = """
CREATE TABLE rows (
    row INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL,
    author TEXT NOT NULL, time_ms INTEGER NOT NULL
);
CREATE INDEX rows_by_time ON rows (time_ms, key);
CREATE INDEX rows_by_author ON rows (author);
CREATE TABLE facts (row INTEGER, name TEXT, value BLOB, PRIMARY KEY (row, name)) WITHOUT ROWID;
CREATE INDEX facts_by_value ON facts (name, value, row);
CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize = 'porter unicode61');
"""


class Question(Struct, frozen=True):
    """What a search looks for. `words_weight` 0 is by meaning alone, 1 by words alone."""

    text: str
    vector: "Matrix | None"
    limit: int
    where: MemoryFilter
    words_weight: float


class Hit(Struct, frozen=True):
    """A memory that was found: its entry, as of the index."""

    key: Key
    revision: Revision
    score: float
    similarity: float | None


class Index:
    """The memories of one store."""

    def __init__(self, model: ModelRecord = NO_MODEL, *, limits: Limits = DEFAULT) -> None:
        self.model = model
        self.unreadable: set[Key] = set()
        """Entries that are no memories: malformed, redacted, or erased."""
        self._limits = limits
        self._rows: dict[Key, int] = {}
        self._free: list[int] = []
        self._vectors = _no_vectors(model)
        # Calls come from different threads, but `Memory` lets in one at a time.
        self._sql = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._sql.executescript(_SCHEMA)
        self._sql.create_function("matches", 2, _matches, deterministic=True)

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Drop everything."""
        self._sql.close()
        self._rows, self._vectors = {}, None

    # --- following --------------------------------------------------------------------------------

    def apply(self, changes: Iterable[Entry | Key]) -> None:
        """Take in entries, and remove what is given by its key. Errors: LimitExceeded
        (MEMORIES_MAX); the index is not to be used then."""
        self._sql.execute("BEGIN")
        try:
            for change in changes:
                if isinstance(change, Entry):
                    self._put(change)
                else:
                    self._remove(change)
        finally:
            self._sql.execute("COMMIT")

    def _put(self, entry: Entry) -> None:
        self._remove(entry.key)
        record = record_of(entry)
        if record is None:
            self.unreadable.add(entry.key)
            return
        memories_max = self._limits.client.memories_max
        if len(self._rows) >= memories_max:
            raise LimitExceeded("MEMORIES_MAX", len(self._rows) + 1, memories_max)
        row = self._free.pop() if self._free else len(self._rows)
        self._rows[entry.key] = row
        seen = remembered(entry, record)
        self._sql.execute(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?)",
            (row, entry.key, entry.mod_revision, seen.author, seen.time_ms),
        )
        self._sql.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (row, record.text))
        # Encoded: as values of SQLite, 1, 1.0 and true would be equal, and a list could not be
        # stored.
        facts = [(row, name, encode_value(value)) for name, value in record.fact.items()]
        if facts:
            self._sql.executemany("INSERT INTO facts VALUES (?, ?, ?)", facts)
        if self._vectors is not None:
            # During `reembed` there are vectors of two models, whose angles say nothing.
            is_comparable = record.model == self.model.model
            self._vectors.put(row, record.vector if is_comparable else b"")

    def _remove(self, key: Key) -> None:
        self.unreadable.discard(key)
        row = self._rows.pop(key, None)
        if row is None:
            return
        self._free.append(row)
        self._sql.execute("DELETE FROM rows WHERE row = ?", (row,))
        self._sql.execute("DELETE FROM texts WHERE rowid = ?", (row,))
        self._sql.execute("DELETE FROM facts WHERE row = ?", (row,))
        if self._vectors is not None:
            self._vectors.drop(row)

    # --- looking ----------------------------------------------------------------------------------

    def rank(self, question: Question) -> list[Hit]:
        """The best hits, in order: by meaning, by words, or by both rankings fused."""
        is_fused = 0 < question.words_weight < 1
        depth = max(4 * question.limit, FUSED_RANKS_MIN) if is_fused else question.limit
        meaning: list[tuple[int, float]] = []
        if question.vector is not None and self._vectors is not None and question.words_weight < 1:
            among = self._passing(question.where)
            meaning = self._vectors.nearest(question.vector, depth, among)
        words = self._by_words(question, depth) if question.words_weight > 0 else []
        scores: dict[int, float] = {}
        rankings = (([row for row, _ in meaning], 1 - question.words_weight),)
        for ranking, weight in (*rankings, (words, question.words_weight)):
            for place, row in enumerate(ranking, 1):
                scores[row] = scores.get(row, 0.0) + weight / (FUSION_CONSTANT + place)
        best = sorted(scores, key=lambda row: (-scores[row], row))[: question.limit]
        cosines = dict(meaning)
        return [self._hit(row, scores[row], cosines.get(row)) for row in best]

    def newest(self, limit: int, where: MemoryFilter) -> list[Hit]:
        """The newest memories that meet `where`."""
        condition, values = _condition(where)
        found = self._sql.execute(
            f"SELECT key, revision FROM rows WHERE TRUE{condition}"
            " ORDER BY time_ms DESC, key DESC LIMIT ?",
            (*values, limit),
        )
        return [Hit(key, revision, 0.0, None) for key, revision in found]

    def texts(self) -> list[str]:
        """Every text that is in it."""
        return [text for (text,) in self._sql.execute("SELECT text FROM texts ORDER BY rowid")]

    def oldest(
        self, before_ms: Milliseconds | None, count_max: int | None
    ) -> list[tuple[Key, Revision]]:
        """The memories from before `before_ms`, and all but the newest `count_max`, oldest
        first."""
        ordered = self._sql.execute(
            "SELECT key, revision, time_ms FROM rows ORDER BY time_ms, key"
        ).fetchall()
        more = 0 if count_max is None else len(ordered) - count_max
        return [
            (key, revision)
            for place, (key, revision, time_ms) in enumerate(ordered)
            if place < more or (before_ms is not None and time_ms < before_ms)
        ]

    def _hit(self, row: int, score: float, similarity: float | None) -> Hit:
        found = self._sql.execute("SELECT key, revision FROM rows WHERE row = ?", (row,)).fetchone()
        return Hit(found[0], found[1], score, similarity)

    def _passing(self, where: MemoryFilter) -> Sequence[int] | None:
        """The rows that meet `where`; None if all do."""
        condition, values = _condition(where)
        if not condition:
            return None
        found = self._sql.execute(f"SELECT row FROM rows WHERE TRUE{condition}", values)
        return [row for (row,) in found]

    def _by_words(self, question: Question, depth: int) -> list[int]:
        """The rows that have one of the words at least, by BM25."""
        known = WORD.findall(question.text)[: self._limits.agents.recall_words_max]
        if not known:
            return []
        condition, values = _condition(question.where)
        # In quotes: AND, OR, NOT and NEAR would be operators of FTS5.
        wanted = " OR ".join(f'"{word}"' for word in known)
        found = self._sql.execute(
            "SELECT row FROM texts JOIN rows ON rows.row = texts.rowid"
            f" WHERE texts MATCH ?{condition} ORDER BY bm25(texts), row LIMIT ?",
            (wanted, *values, depth),
        )
        return [row for (row,) in found]


def _no_vectors(model: ModelRecord) -> "Vectors | None":
    """Room for the vectors of `model`. NumPy is an extra, and a search by words needs none."""
    if not model.dimensions:
        return None
    from blackboard.client.memory.vectors import Vectors

    return Vectors(model.dimensions)


def _condition(where: MemoryFilter) -> tuple[str, list[Any]]:
    """`where` in SQL: what follows other conditions, and its values."""
    parts: list[tuple[str, list[Any]]] = []
    if where.author is not None:
        parts.append(("author = ?", [where.author]))
    if where.since is not None:
        parts.append(("time_ms >= ?", [_milliseconds(where.since)]))
    if where.until is not None:
        parts.append(("time_ms < ?", [_milliseconds(where.until)]))
    if where.keys is not None:
        pattern = parse_pattern(where.keys)
        if pattern.literal:
            parts.append(("key = ?", [where.keys]))
        elif pattern.prefix:
            parts.append(("key >= ? AND key < ?", [*range_below(pattern.prefix)]))
        if not pattern.literal and not pattern.is_subtree:
            parts.append(("matches(?, key)", [where.keys]))
    for name, value in where.facts.items():
        known = "row IN (SELECT row FROM facts WHERE name = ? AND value = ?)"
        parts.append((known, [name, encode_value(value)]))
    text = "".join(f" AND {condition}" for condition, _ in parts)
    return text, [value for _, values in parts for value in values]


def _matches(pattern: str, key: Key) -> bool:
    return parse_pattern(pattern).matches(key)


def _milliseconds(moment: datetime) -> Milliseconds:
    """As whole milliseconds of the epoch, rounded up: times of entries are whole."""
    return -((_EPOCH - moment) // timedelta(milliseconds=1))
