"""The directory of the embedded engine: one process owns it, and records who that is."""

import asyncio
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from blackboard.engines.disk import file_identity, is_full
from blackboard.engines.sqlite.connection import translated
from blackboard.engines.sqlite.heads import FILE_NAME, KnownHeads
from blackboard.engines.sqlite.new import finish_removals
from blackboard.errors import DataDirectoryInUse, Unavailable
from blackboard.integrity.private_files import (
    DIRECTORY_MODE,
    FILE_MODE,
    close_tree,
    make_directory,
    open_new,
    read_text,
)

log = logging.getLogger(__name__)
SUFFIX: Final = ".db"
"""The end of the name of a board's file."""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """The directory of the embedded engine, and the file with the known heads of its boards, if
    that is kept apart."""

    path: Path
    heads_file: Path | None = None

    def absolute(self) -> "DataDirectory":
        """The same, wherever the program goes: it may change its working directory."""
        apart = self.heads_file
        return DataDirectory(self.path.absolute(), None if apart is None else apart.absolute())


@dataclass(frozen=True, slots=True)
class TakenDirectory:
    """A directory that this process owns, and the known heads of its boards."""

    directory: Path
    lock: FileLock
    identity: tuple[int, int]
    """The device and the number of the file that is locked."""
    heads: KnownHeads

    @property
    def is_there(self) -> bool:
        """Whether the locked file is still the one of its name. If the directory was removed, or
        moved away, another process may have one of its name."""
        try:
            return file_identity(self.directory / "lock") == self.identity
        except OSError:
            return False

    def check(self) -> None:
        """Errors: Unavailable unless the directory is still the one that was taken."""
        if not self.is_there:
            reason = "it was removed or replaced while this process had it: restart the process"
            raise Unavailable(what=str(self.directory), reason=reason)


def _take(where: DataDirectory, heads_max: int) -> TakenDirectory:
    directory = where.path
    with translated(directory):
        # It holds private namespaces, so other users of the machine get no access.
        make_directory(directory)
        (directory / "boards").mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        # Not bound to this thread: another one gives it back.
        lock = FileLock(directory / "lock", mode=FILE_MODE, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise _in_use(directory) from error
        try:
            # After the lock: until then the files may be those of a running process.
            close_tree(directory)
            write_owner(directory, None)
            finish_removals(directory / "boards")
            identity = file_identity(directory / "lock")
        except BaseException:
            lock.release()
            raise
    file, is_apart = where.heads_file or directory / FILE_NAME, where.heads_file is not None
    heads = KnownHeads(file, apart=is_apart, heads_max=heads_max)
    taken = TakenDirectory(directory, lock, identity, heads)
    try:
        heads.read()
    except Unavailable:
        let_go(taken)
        raise
    return taken


async def taken(where: DataDirectory, heads_max: int) -> TakenDirectory:
    """Take possession of a directory. Cancelled, it is released before this ends."""
    taking = asyncio.create_task(asyncio.to_thread(_take, where, heads_max))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        # The thread continues, so its lock is released even if this is cancelled again.
        await asyncio.wait([asyncio.create_task(_given_back(taking))])
        raise


async def _given_back(taking: asyncio.Task[TakenDirectory]) -> None:
    await asyncio.wait([taking])
    if not taking.cancelled() and taking.exception() is None:
        taken = taking.result()
        taken.heads.release()
        await asyncio.to_thread(let_go, taken)


def let_go(taken: TakenDirectory) -> None:
    """Give a directory back. Errors: Unavailable."""
    with translated(taken.directory):
        try:
            # While the lock is held: afterwards it may already be the record of the next owner.
            if taken.is_there:
                (taken.directory / "owner.json").unlink(missing_ok=True)
        finally:
            taken.lock.release()


def write_owner(directory: Path, url: str | None) -> None:
    """Record the owner of the directory, for people and for the command line. On a full disk,
    nothing is recorded."""
    new, owner = directory / "owner.json.new", directory / "owner.json"
    with translated(directory):
        try:
            # A draft that a crash left would make `open_new` fail. Nothing is synced: a record is
            # of no use after a crash.
            new.unlink(missing_ok=True)
            with open_new(new) as file:
                json.dump({"pid": os.getpid(), "url": url}, file)
            new.replace(owner)
        except OSError as error:
            if not is_full(error):
                new.unlink(missing_ok=True)
                raise
            for path in (new, owner):  # the record of an earlier owner is outdated
                path.unlink(missing_ok=True)
            log.warning("no room for %s: the command line needs --url (%s)", owner, error.strerror)


def _in_use(directory: Path) -> DataDirectoryInUse:
    """The owner of the directory, as far as recorded."""
    try:
        owner = json.loads(read_text(directory / "owner.json"))
        pid = owner["pid"]
        return DataDirectoryInUse(
            str(directory), pid=pid, url=owner["url"], is_this_process=pid == os.getpid()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return DataDirectoryInUse(str(directory), pid=None, url=None)


def board_names(directory: Path) -> list[str]:
    """The boards of a directory, sorted. Errors: Unavailable."""
    with translated(directory):
        names = os.listdir(directory / "boards")  # noqa: PTH208 - ten times as fast
        return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))
