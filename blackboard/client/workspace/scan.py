"""Reading a directory: which nodes it has, and the contents of those that the index does not know.

Everything blocks. Invariant: a node whose file changed while it was read is never returned.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from blackboard.client.workspace.ignoring import Ignoring, Indexed
from blackboard.client.workspace.index import Row, Rows, Stat
from blackboard.client.workspace.tree import (
    PERMISSIONS,
    Node,
    check_totals,
    id_of,
    part_bytes,
    shown,
)
from blackboard.client.workspace.within import Within
from blackboard.errors import FileRefused, LimitExceeded
from blackboard.limits import LARGE_PART_BYTES, WORKSPACE_PATH_BYTES_MAX, WORKSPACE_READS_MAX

_KINDS: Final = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_NAMES: Final = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
_MODE: Final = 0o170000 | PERMISSIONS
_OTHER: Final = "it is a pipe, a socket or a device: remove it, or name it in .blackboardignore"
_CHANGING: Final = "it changes while it is read: try again, or name it in .blackboardignore"

Progress = Callable[[int], None]
"""Called from time to time with the number of files that are done."""


@dataclass(slots=True)
class Scan:
    """What a directory has: each path that is not ignored, and the topmost ignored ones."""

    stats: dict[bytes, Stat] = field(default_factory=dict)
    ignored: list[bytes] = field(default_factory=list)


class Clocked(NamedTuple):
    """The salt of ids, and the clock of the file system from before anything was looked at."""

    salt: bytes
    clock_ns: int


def refused(path: bytes, error: OSError) -> FileRefused:
    """An error of the file system, about `path`."""
    return FileRefused(shown(path), error.strerror or str(error))


def look(top: Path, known: Indexed) -> Scan:
    """What lies in `top`, in the order of the paths. No file is opened but those with rules.

    Errors: FileRefused; LimitExceeded; InvalidRequest for a wrong rule.
    """
    found = Scan()
    waiting = [("", Ignoring())]
    try:
        with Within(top) as within:
            while waiting:
                at, rules = waiting.pop()
                waiting += _look_at(within, at, rules, known, found)
    except OSError as error:
        raise refused(os.fsencode(error.filename or str(top)), error) from error
    # By bytes, as a tree has its paths: `a.txt` stands between `a` and `a/b`.
    found.stats = dict(sorted(found.stats.items()))
    check_totals(len(found.stats), sum(one.size for one in found.stats.values()))
    return found


def _look_at(
    within: Within, at: str, above: Ignoring, known: Indexed, found: Scan
) -> Iterator[tuple[str, Ignoring]]:
    handle, _ = within.parent(os.fsencode(at))
    with os.scandir(handle) as entries:
        here = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    files = {name for name, status in here if stat.S_ISREG(status.st_mode)}
    rules = above.below(within, at, files, known)
    for name, status in here:
        path, kind = (at + name).encode(*_NAMES), stat.S_IFMT(status.st_mode)
        is_known = rules.unchanged and path in known.rows
        if not is_known and rules.ignores(at + name, is_directory=kind == stat.S_IFDIR):
            found.ignored.append(path)
            continue
        if kind not in _KINDS:
            raise FileRefused(shown(path), _OTHER)
        if len(path) > WORKSPACE_PATH_BYTES_MAX:
            raise LimitExceeded("WORKSPACE_PATH_BYTES_MAX", len(path), WORKSPACE_PATH_BYTES_MAX)
        if kind == stat.S_IFDIR:
            # Its times and size only say that something in it came or went.
            found.stats[path] = Stat(status.st_mode, 0, 0, 0, 0)
            yield f"{at}{name}/", rules
        else:
            found.stats[path] = Stat.of(status)


def read(top: Path, scan: Scan, rows: Rows, by: Clocked, progress: Progress | None = None) -> Rows:
    """The rows of what `scan` found; files that `rows` does not know as they are, are read.

    Errors: FileRefused.
    """
    found: Rows = {}
    with Within(top) as within:
        for number, (path, status) in enumerate(scan.stats.items()):
            row = rows.get(path)
            if row is None or row.stat != status or not row.settled:
                row = _again(row, _row(within, path, status, by))
                if progress is not None:
                    progress(number)
            found[path] = row
    return found


def _again(before: Row | None, row: Row) -> Row:
    """`row`, or the one `before` if they are the same, so that it is not written again."""
    return before if before is not None and before == row else row


def _row(within: Within, path: bytes, status: Stat, by: Clocked) -> Row:
    mode = status.mode & _MODE
    try:
        if stat.S_ISDIR(mode):
            return Row(Node(path, mode), status, settled=True)
        if stat.S_ISLNK(mode):
            handle, name = within.parent(path)
            target = os.readlink(name, dir_fd=handle)
            return Row(Node(path, mode, target=target), status, status.ctime_ns < by.clock_ns)
        return _file(within, path, by)
    except OSError as error:
        raise refused(path, error) from error


def _file(within: Within, path: bytes, by: Clocked) -> Row:
    """The row of a file that stayed as it was while it was read."""
    for _ in range(WORKSPACE_READS_MAX):
        with within.reading(path) as file:
            before = Stat.of(os.fstat(file))
            if not stat.S_ISREG(before.mode):
                raise FileRefused(shown(path), _CHANGING)
            parts = tuple(id_of(piece, by.salt) for piece in pieces(file, before.size))
            if Stat.of(os.fstat(file)) == before:
                node = Node(path, before.mode & _MODE, before.size, parts)
                return Row(node, before, before.ctime_ns < by.clock_ns)
    raise FileRefused(shown(path), _CHANGING)


def pieces(file: int, size: int) -> Iterator[bytes]:
    """The first `size` bytes of an open file, in parts; what is appended meanwhile has no end.

    Errors: OSError.
    """
    while size > 0 and (piece := part(file, min(size, LARGE_PART_BYTES))):
        size -= len(piece)
        yield piece


def part(file: int, size: int) -> bytes:
    """The next `size` bytes of an open file, fewer only at its end. Errors: OSError."""
    piece = os.read(file, size)
    while 0 < len(piece) < size:
        more = os.read(file, size - len(piece))
        if not more:
            break
        piece += more
    return piece


def contents(
    top: Path, nodes: Iterable[Node], known: set[bytes], salt: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """The id and the bytes of each part of `nodes` that is not among `known`, to which it is added.

    Errors: FileRefused when a file is not any more what `nodes` says.
    """
    with Within(top) as within:
        for node in nodes:
            if any(part not in known for part in node.parts):
                try:
                    yield from _contents(within, node, known, salt)
                except OSError as error:
                    raise refused(node.path, error) from error


def _contents(
    within: Within, node: Node, known: set[bytes], salt: bytes
) -> Iterator[tuple[bytes, bytes]]:
    with within.reading(node.path) as file:
        for number, wanted in enumerate(node.parts):
            if wanted in known:
                continue
            os.lseek(file, number * LARGE_PART_BYTES, os.SEEK_SET)
            piece = part(file, part_bytes(node, number))
            if id_of(piece, salt) != wanted:
                raise FileRefused(shown(node.path), _CHANGING)
            known.add(wanted)
            yield wanted, piece
