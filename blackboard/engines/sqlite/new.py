"""A board's file while it is being made: beside its place, and in it once it is whole.

Invariants
- A reader of the place finds no file or a whole one: a rename puts it there, after everything in it
  has reached the disk.
- What lies beside (`seed_path`) says that a board is being made, or that its maker died.
"""

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from blackboard.core.commit import Entry, Epoch, Seed
from blackboard.engines.disk import sync_path
from blackboard.engines.sqlite import suspect
from blackboard.engines.sqlite.file import (
    APPLICATION_ID,
    FORMAT,
    INSERT_EPOCH,
    PAGE_BYTES,
    translated,
)
from blackboard.engines.sqlite.owed import insert
from blackboard.engines.sqlite.rows import ENTRY, NEXT_ITEM, checksum, epoch_row, weigh
from blackboard.engines.sqlite.schema import schema_text
from blackboard.errors import Corrupt, Unavailable
from blackboard.integrity.private_files import make_file, open_new
from blackboard.units import Milliseconds, Revision

_DROPPED: Final = ".dropped"


def seed_path(path: Path) -> Path:
    """Where the file that will be `path` is while entries are put into it."""
    return path.with_name(f"{path.name}.seed")


def create(path: Path, board: str, epoch: Epoch, time_ms: Milliseconds) -> None:
    """Make the file of a new, empty board, whole or not at all, and sync it and its directory.

    Errors: Unavailable.
    """
    new = NewFile(path, path.with_name(f"{path.name}.new"))
    try:
        new.begin()
        new.finish(board, Seed(epoch, time_ms))
    finally:
        new.abandon()


def remove(path: Path) -> None:
    """Remove a board's file, and what a crash left beside it. Errors: Unavailable."""
    dropped = path.with_name(f"{path.name}{_DROPPED}")
    with translated(path):
        if path.exists():
            path.replace(dropped)  # first, so that no board is found with a part of its log
            sync_path(path.parent)
        _remove_beside(path)
        suspect.forget(path)
        for gone in (dropped, seed_path(path)):
            gone.unlink(missing_ok=True)
        sync_path(path.parent)


def removed_path(path: Path) -> Path:
    """Where it is kept in mind that the board at `path` was removed."""
    return path.with_name(f"{path.name}.removed")


def keep_in_mind(path: Path, revision: Revision, epoch: int) -> None:
    """Note, before the board at `path` is removed, how far it got. Errors: Unavailable.

    While there is a board at `path`, the note says nothing: its removal did not get that far.
    """
    place = removed_path(path)
    draft = place.with_name(f"{place.name}.new")
    with translated(place):
        draft.unlink(missing_ok=True)  # what a sync failed of is never synced again
        with open_new(draft) as out:
            json.dump({"revision": revision, "epoch": epoch}, out)
        sync_path(draft)
        draft.replace(place)
        sync_path(place.parent)


def read_removed(path: Path) -> tuple[Revision, int] | None:
    """The last revision and epoch of the board that was removed from `path`; None if none was.

    Errors: Unavailable, Corrupt.
    """
    place = removed_path(path)
    if path.exists() or not place.exists():
        return None
    with translated(place):
        text = place.read_text("utf-8")
    try:
        found = json.loads(text)
        return int(found["revision"]), int(found["epoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(what=str(place), reason=str(error)) from error


def _remove_beside(path: Path) -> None:
    for suffix in suspect.BESIDE:
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


class NewFile:
    """A file that is being made at `beside` and will be `path`. Blocking; any thread may call.

    Errors of every method: Unavailable; it must be abandoned then.
    """

    def __init__(self, path: Path, beside: Path) -> None:
        self._path = path
        self._beside = beside
        self._weight = 0
        self._one = threading.Lock()  # a cancelled caller's step may still run
        self._connection: sqlite3.Connection | None = None
        self._abandoned = False

    def begin(self) -> None:
        """Make it, empty; what a crash left there goes."""
        with self._one, translated(self._beside):
            if self._abandoned:
                return
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
        """Put `entries` into it as they are."""
        with self._open() as connection:
            rows = [ENTRY.row(entry.key, entry) for entry in entries]
            insert(connection, ENTRY.upsert, rows)
            self._weight += sum(map(weigh, rows))

    def finish(self, board: str, seed: Seed) -> None:
        """Make it whole, sync it, and put it into its place."""
        epoch, first = seed.epoch, seed.epoch.revision
        with self._open() as connection:
            insert(connection, NEXT_ITEM.upsert, list(seed.next_item))
            begun = epoch_row(epoch, seed.time_ms)
            self._weight += sum(map(weigh, seed.next_item)) + weigh(begun)
            # The head's time is that of the newest log entry.
            place = (first, seed.time_ms if first else 0, max(first, 1))
            head = (board, *place, checksum(self._weight, *place))
            connection.execute("INSERT INTO head VALUES (?, ?, ?, ?, ?, 1)", head)
            connection.execute(INSERT_EPOCH, begun)
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode=WAL")
            self._close()
            sync_path(self._beside)
            _remove_beside(self._path)  # of a board of that name that was removed
            suspect.forget(self._path)
            self._beside.replace(self._path)
            self._sync_name()
            removed_path(self._path).unlink(missing_ok=True)  # it says nothing any more

    def _sync_name(self) -> None:
        """Where that fails there is no board, rather than one that a power loss takes away."""
        try:
            sync_path(self._path.parent)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise

    def abandon(self) -> None:
        """Remove what is there of it, if it did not become whole."""
        with self._one, contextlib.suppress(OSError, sqlite3.Error):
            self._abandoned = True
            if self._connection is not None:
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
