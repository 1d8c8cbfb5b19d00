"""Makes a board's file under a temporary name, and renames it once it is complete.

Invariants
- A reader finds no file or a complete one: a rename puts it in place after all of it has reached
  the disk.
- A file at `seed_path` means that a board is being made, or that its maker crashed.
"""

import contextlib
import json
import os
import sqlite3
import threading
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from blackboard.core.commit import ENGINE, Entry, Epoch, Seed
from blackboard.core.state import State
from blackboard.engines.disk import sync_path
from blackboard.engines.sqlite import suspect
from blackboard.engines.sqlite.connection import insert, translated
from blackboard.engines.sqlite.file import APPLICATION_ID, INSERT_EPOCH
from blackboard.engines.sqlite.format import FORMAT, schema_text
from blackboard.engines.sqlite.journal import PAGE_BYTES, use_journal
from blackboard.engines.sqlite.rows import (
    ENTRY,
    NEXT_ITEM,
    FirstSums,
    Row,
    checksum,
    epoch_row,
    stored,
    weigh,
)
from blackboard.errors import Corrupt, Unavailable
from blackboard.integrity.private_files import make_file, open_new, read_text
from blackboard.limits import EPOCH_JUMP
from blackboard.units import Milliseconds, Revision

_DROPPED: Final = ".dropped"


def seed_path(path: Path) -> Path:
    """The temporary path of the file that will be `path`."""
    return path.with_name(f"{path.name}.seed")


def create(path: Path, board: str, epoch: Epoch, time_ms: Milliseconds) -> None:
    """Make the file of a new, empty board, completely or not at all, and sync it and its directory.

    Errors: Unavailable.
    """
    # Not at `seed_path`: a file there keeps others from making the board. What a crash leaves of an
    # empty one is replaced.
    new = NewFile(path, path.with_name(f"{path.name}.new"))
    try:
        new.begin()
        new.finish(board, Seed(epoch, time_ms))
    finally:
        new.abandon()


def remove(path: Path) -> None:
    """Remove a board's file, and the files that a crash left beside it. Errors: Unavailable."""
    with translated(path):
        if path.exists():
            # First, so that no board is found with a part of its log.
            path.replace(_dropped_path(path))
            sync_path(path.parent)
        _clear(path)
        sync_path(path.parent)


def finish_removals(boards: Path) -> None:
    """Remove what a crash left of boards that were being removed: all of their data. Errors:
    Unavailable."""
    with translated(boards):
        names = os.listdir(boards)  # noqa: PTH208 - ten times as fast
        left = [boards / name.removesuffix(_DROPPED) for name in names if name.endswith(_DROPPED)]
        for path in left:
            if path.exists():  # a new board of that name, with files of its own beside it
                _dropped_path(path).unlink()
            else:
                _clear(path)
        if left:
            sync_path(boards)


def _clear(path: Path) -> None:
    _remove_beside(path)
    suspect.forget(path)
    seed_path(path).unlink(missing_ok=True)
    # Last: while it is there, the next start finds what is left.
    _dropped_path(path).unlink(missing_ok=True)


def _dropped_path(path: Path) -> Path:
    return path.with_name(f"{path.name}{_DROPPED}")


def removed_path(path: Path) -> Path:
    """The path of the record that the board at `path` was removed."""
    return path.with_name(f"{path.name}.removed")


def keep_in_mind(path: Path, revision: Revision, epoch: int) -> None:
    """Record the last revision and epoch of the board at `path`, before it is removed. Errors:
    Unavailable.

    The record does not count while there is a board at `path`: its removal did not finish.
    """
    place = removed_path(path)
    draft = place.with_name(f"{place.name}.new")
    with translated(place):
        draft.unlink(missing_ok=True)  # after a failed sync a file is never synced again
        try:
            with open_new(draft) as out:
                json.dump({"revision": revision, "epoch": epoch}, out)
            sync_path(draft)
            draft.replace(place)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        sync_path(place.parent)


def read_removed(path: Path) -> tuple[Revision, int] | None:
    """The last revision and epoch of the board that was removed from `path`; None if there was
    none.

    Errors: Unavailable, Corrupt.
    """
    place = removed_path(path)
    if path.exists() or not place.exists():
        return None
    with translated(place):
        text = read_text(place)
    try:
        found = json.loads(text)
        return int(found["revision"]), int(found["epoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(what=str(place), reason=str(error)) from error


def _remove_beside(path: Path) -> None:
    for suffix in suspect.BESIDE:
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


class NewFile:
    """A file that is being made at `beside` and will be `path`. Blocking; may be called in any
    thread.

    Errors of every method: Unavailable; it must then be abandoned.
    """

    def __init__(self, path: Path, beside: Path) -> None:
        self._path = path
        self._beside = beside
        self._sums = FirstSums()
        self._one = threading.Lock()  # a cancelled caller's step may still run
        self._connection: sqlite3.Connection | None = None
        self._begun = False
        self._abandoned = False

    def begin(self) -> None:
        """Make it, empty, in place of what a crash left there."""
        with self._one, translated(self._beside):
            # The caller was cancelled before a thread began this.
            if self._abandoned:
                return
            self._begun = True
            self._beside.unlink(missing_ok=True)
            make_file(self._beside)  # SQLite gives its journals the mode of their file
            self._connection = sqlite3.connect(
                self._beside, isolation_level=None, check_same_thread=False
            )
            # Without a journal: a file that was not finished is removed, never repaired.
            self._connection.executescript(
                f"PRAGMA page_size={PAGE_BYTES}; PRAGMA application_id={APPLICATION_ID};"
                f"PRAGMA user_version={FORMAT}; PRAGMA journal_mode=OFF; BEGIN; {schema_text()}"
            )

    def add(self, entries: Sequence[Entry]) -> None:
        """Add `entries`, unchanged."""
        rows: list[Row] = []
        with self._open() as connection:
            for entry in entries:
                row = ENTRY.row(entry.key, entry)
                weight = weigh(row)
                rows.append(stored(row, weight))
                self._sums.add(entry, weight)
            insert(connection, ENTRY.upsert, rows)

    def finish(self, board: str, seed: Seed) -> None:
        """Complete it, sync it, and put it in place."""
        epoch, first = seed.epoch, seed.epoch.revision
        with self._open() as connection:
            insert(connection, NEXT_ITEM.upsert, list(seed.next_item))
            begun = epoch_row(epoch, seed.time_ms)
            weight = sum(map(weigh, (*seed.next_item, begun)))
            for statement, rows in self._sums.rows():
                insert(connection, statement, rows)
                weight += sum(map(weigh, rows))
            # The head's time is that of the newest log entry.
            place = (first, seed.time_ms if first else 0, max(first, 1), first)
            head = (board, *place, checksum(weight, *place))
            # Clean (1), because it is synced before it gets its name.
            connection.execute("INSERT INTO head VALUES (?, ?, ?, ?, ?, ?, 1)", head)
            connection.execute(INSERT_EPOCH, begun)
            connection.execute("COMMIT")
            # Only now: nothing of the content has to go through a journal.
            use_journal(connection, self._beside)
            # Before the sync: with this last connection SQLite copies and removes its journal.
            self._close()
            sync_path(self._beside)
            _remove_beside(self._path)  # of a board of that name that was removed
            suspect.forget(self._path)
            self._beside.replace(self._path)
            self._sync_name()
            # The board exists again. Neither synced nor sure: the record that it was removed does
            # not count while there is a board, and the board is in its place.
            with contextlib.suppress(OSError):
                removed_path(self._path).unlink(missing_ok=True)

    def _sync_name(self) -> None:
        """Sync the directory. If that fails there is no board, rather than one that a power loss
        would remove."""
        try:
            sync_path(self._path.parent)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise

    def abandon(self) -> None:
        """Remove the file if it was not completed."""
        with self._one, contextlib.suppress(OSError, sqlite3.Error):
            self._abandoned = True
            # Also if a step failed after the connection was closed: a sync, or the rename.
            if self._begun:
                self._close()
                self._beside.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._one, translated(self._beside):
            if self._connection is None:
                raise Unavailable(what=str(self._beside), reason="it was abandoned")
            yield self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def next_epoch(state: State, above: Revision) -> Epoch:
    """The epoch that begins when the engine restarted and may have lost commits."""
    return replace(
        state.epoch,
        number=state.epoch.number + 1,
        id=uuid.uuid4().hex,
        cause=ENGINE,
        from_revision=state.revision,
        revision=max(state.revision, above) + EPOCH_JUMP,
    )


async def no_entries() -> AsyncIterator[Sequence[Entry]]:
    """The entries of a board that begins empty."""
    return
    yield
