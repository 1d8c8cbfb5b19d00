"""Writing a tree into a new directory, beside the one that it will replace.

Contents come from a directory that has them already, if it does, as a clone that shares the blocks
where the file system can do that (FICLONE), else as a copy; the rest from the board. No file is a
hard link to another: a program that writes into one would change both.

Everything blocks. Invariant: what is written is what the tree says, by its ids.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from blackboard.client.workspace.index import Row, Rows, Stat
from blackboard.client.workspace.scan import Progress, pieces, refused
from blackboard.client.workspace.tree import Node, Nodes, id_of, part_bytes
from blackboard.client.workspace.within import Within
from blackboard.core.commit import in_batches
from blackboard.engines.disk import is_full
from blackboard.errors import Corrupt
from blackboard.limits import LARGE_PART_BYTES

# From linux/fs.h; the module `fcntl` has it from Python 3.12 on.
_FICLONE: Final = 0x40049409
_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_PARTS: Final = 1_024

Piece = tuple[Node, int]
"""A part of a file, by its number."""


class Stage:
    """A new directory at `top` that gets the tree `nodes`, whose ids have this `salt`.

    Errors of all methods: FileRefused, naming the path, with what the file system says.
    """

    def __init__(self, top: Path, nodes: Nodes, salt: bytes) -> None:
        self._top = top
        self._nodes = nodes
        self._salt = salt
        self._rows: Rows = {}
        """What is complete."""
        self._clones = sys.platform == "linux"
        top.mkdir(mode=0o700)

    def begin(self, source: Path, has: Nodes, progress: Progress | None = None) -> list[Node]:
        """Write everything that `source`, in which the tree `has` was seen, has as well; returns
        the files whose contents are missing."""
        missing = []
        with contextlib.ExitStack() as stack:
            within = stack.enter_context(Within(self._top))
            there = stack.enter_context(Within(source)) if has else None
            for number, node in enumerate(self._nodes.values()):
                same = has.get(node.path)
                found = there if same is not None and same.parts == node.parts else None
                with _refusing(node):
                    if not self._make(within, node, found):
                        missing.append(node)
                if progress is not None and number % 100 == 0:
                    progress(number)
        return missing

    def _make(self, within: Within, node: Node, source: Within | None) -> bool:
        """Make a node; False if it is a file whose content is missing."""
        if node.is_file:
            with within.making(node.path) as file:
                if node.parts and not (source is not None and self._copy(source, node, file)):
                    return False
                os.fchmod(file, stat.S_IMODE(node.mode))
                self._rows[node.path] = Row(node, Stat.of(os.fstat(file)), settled=False)
            return True
        handle, name = within.parent(node.path)
        if node.is_directory:
            # Open to its owner until all below it is written: `finish` sets its own mode.
            os.mkdir(name, 0o700, dir_fd=handle)
        else:
            os.symlink(node.target, name, dir_fd=handle)
        return True

    def _copy(self, source: Within, node: Node, copy: int) -> bool:
        """Copy a file with the time of its last change; False if it is not any more as it was."""
        try:
            with source.reading(node.path) as original:
                if self._clone(original, copy):
                    # The clone is compared, and not the original, which may change after the call.
                    found = [id_of(piece, self._salt) for piece in pieces(copy, node.size)]
                else:
                    found = [self._copied(piece, copy) for piece in pieces(original, node.size)]
                status = os.fstat(original)
        except OSError as error:
            # After any other error the content is read from the board instead.
            if is_full(error):
                raise
            return False
        if tuple(found) != node.parts:
            # `fill` writes parts in their places: what is longer would stay behind them.
            os.ftruncate(copy, 0)
            return False
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        return True

    def _clone(self, original: int, copy: int) -> bool:
        if not self._clones:
            return False
        import fcntl

        try:
            fcntl.ioctl(copy, _FICLONE, original)
        except OSError:
            self._clones = False  # this file system cannot, or not from there
            return False
        return True

    def _copied(self, piece: bytes, copy: int) -> bytes:
        _write(copy, piece)
        return id_of(piece, self._salt)

    def fill(self, batch: Iterable[Piece], contents: dict[bytes, bytes]) -> None:
        """Write parts of files. Errors: Corrupt, too, for one that is not what the tree says."""
        with Within(self._top) as within:
            for node, number in batch:
                wanted = node.parts[number]
                content = contents.get(wanted)
                if content is None or id_of(content, self._salt) != wanted:
                    reason = "a part of it is missing on the board, or was redacted"
                    raise Corrupt(what=f"file {node.path.decode(errors='replace')}", reason=reason)
                with _refusing(node), within.writing(node.path) as file:
                    os.lseek(file, number * LARGE_PART_BYTES, os.SEEK_SET)
                    _write(file, content)

    def finish(self) -> Rows:
        """Set the modes that are left, of directories last; returns the rows of the index."""
        with Within(self._top) as within:
            for node in reversed(self._nodes.values()):
                if node.path not in self._rows:
                    with _refusing(node):
                        self._rows[node.path] = _finished(within, node)
        return {path: self._rows[path] for path in self._nodes}


def _finished(within: Within, node: Node) -> Row:
    handle, name = within.parent(node.path)
    if not stat.S_ISLNK(node.mode):
        os.chmod(name, stat.S_IMODE(node.mode), dir_fd=handle)
    if node.is_directory:
        return Row(node, Stat(node.mode, 0, 0, 0, 0), settled=True)
    status = Stat.of(os.stat(name, dir_fd=handle, follow_symlinks=False))
    return Row(node, status, settled=False)


def settled(rows: Rows, clock_ns: int) -> Rows:
    """The rows of a stage that nobody has seen before `clock_ns`."""
    return {
        path: Row(row.node, row.stat, settled=row.settled or row.stat.ctime_ns < clock_ns)
        for path, row in rows.items()
    }


def batches(files: Iterable[Node]) -> Iterator[list[Piece]]:
    """The parts of files, as many at a time as are in memory at once."""
    every = ((node, number) for node in files for number in range(len(node.parts)))
    return in_batches(every, lambda piece: part_bytes(*piece), _BATCH_BYTES, _BATCH_PARTS)


def _write(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


@contextlib.contextmanager
def _refusing(node: Node) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refused(node.path, error) from error
