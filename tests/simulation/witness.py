"""What the engine of a simulated run really held: its log, read past everything that is simulated.

A log is collected before anything can take from it: a trim, or the loss of what was not synced. A
loss ends a timeline: what was answered in it is judged against the log that it had.
"""

import sqlite3
from dataclasses import dataclass, field

from blackboard.core.commit import ENGINE, LogEntry
from blackboard.engines.redis.codec import _read_log_entry
from blackboard.engines.redis.layout import log_key
from blackboard.units import Revision
from tests.simulation.engines import BOARD, Engine, RedisEngine, SqliteEngine

_ALL = 2**53
_NEWEST = "SELECT max(revision, coalesce((SELECT max(revision) FROM log), 0)) FROM head"


@dataclass(frozen=True, slots=True)
class Lost:
    """A timeline that ended at `ended_s`: of its `log` only what is up to `survived` goes on.

    Revisions of the timeline after it may lie before its `head`: how many an epoch skips is chance.
    """

    log: tuple[LogEntry, ...]
    survived: Revision
    head: Revision
    ended_s: float
    revisions: frozenset[Revision]

    def has(self, revision: Revision) -> bool:
        """Whether that revision was lost."""
        return self.survived < revision and revision in self.revisions


@dataclass(slots=True)
class Witness:
    """The log of the board, and of the timelines that were lost."""

    engine: Engine
    entries: dict[Revision, LogEntry] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)

    def collect(self) -> None:
        """Take in what the log has now."""
        for entry in log_of(self.engine):
            self.entries[entry.revision] = entry

    def lose(self, now_s: float) -> None:
        """After a loss: keep the old timeline, and go on with what survived."""
        survived = revision_of(self.engine)
        log = self.log()
        head = log[-1].revision if log else 0
        if survived < head:
            revisions = frozenset(self.entries)
            self.lost.append(Lost(tuple(log), survived, head, now_s, revisions))
        self.entries = {r: e for r, e in self.entries.items() if r <= survived}

    def log(self) -> list[LogEntry]:
        """All entries of the present timeline, in order."""
        return [self.entries[revision] for revision in sorted(self.entries)]

    def loss_of(self, revision: Revision) -> Lost | None:
        """The timeline in which that revision was lost."""
        return next((lost for lost in self.lost if lost.has(revision)), None)

    def began_epochs(self) -> int:
        """How many epochs of the engine began."""
        return sum(e.epoch is not None and e.epoch.cause == ENGINE for e in self.log())


def log_of(engine: Engine, board: str = BOARD) -> list[LogEntry]:
    """What the log holds at this moment."""
    if isinstance(engine, RedisEngine):
        items = engine.server.execute("XRANGE", log_key(board), "-", "+") or []
        return [_read_log_entry(*item) for item in items]
    assert isinstance(engine, SqliteEngine)
    found = engine.file_of(board)
    return [] if found is None else found.read_log(0, _ALL, limit=_ALL)


def revision_of(engine: Engine, board: str = BOARD) -> Revision:
    """The head of what is kept, when nobody is changing it."""
    if isinstance(engine, RedisEngine):
        return int(engine.server.execute("HGET", f"{{{board}}}:m", "rev") or 0)
    assert isinstance(engine, SqliteEngine)
    path = engine.path_of(board)
    if not path.exists():
        return 0
    connection = sqlite3.connect(path)
    try:
        [revision] = connection.execute(_NEWEST).fetchone()
        return int(revision)
    finally:
        connection.close()
