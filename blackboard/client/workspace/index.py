"""The index of a workspace: what was on the disk when the last snapshot was taken or restored.

A file whose `stat` is still the recorded one is not read again: size, times, inode and mode. As in
git, that is not enough if the file was changed within the tick of the clock in which it was read;
so a row counts only if the file's last change (ctime) was before the clock of the file system when
its reading began.

It is one file beside the directory, which is read and written as a whole. Everything in it can be
found out again, at the price of reading all files and the board's tree; so a damaged one counts as
none.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from blackboard.client.workspace.tree import Node, Nodes


class LastSnapshot(Struct, frozen=True):
    """The snapshot that the directory was last the same as: of which key of which board, its root,
    salt and revision. `coming` is the root of a snapshot whose commit may have been made."""

    board: str
    key: str
    salt: bytes
    root: bytes
    revision: int
    coming: bytes = b""


# Structs that the garbage collector does not track (gc=False): there are 100,000 of each.


class Stat(Struct, frozen=True, array_like=True, gc=False):
    """What tells whether a file is the one that was read."""

    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stat":
        """That of a `stat`."""
        return cls(found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


class Row(Struct, frozen=True, array_like=True, gc=False):
    """A node, with the `stat` of what it was made from. `settled`: a change would be seen there."""

    node: Node
    stat: Stat
    settled: bool


Rows = dict[bytes, Row]
"""By path, in order."""


class _Index(Struct, frozen=True):
    base: LastSnapshot
    rows: list[Row]


_decoder = msgspec.msgpack.Decoder(_Index)


def load(path: Path) -> tuple[LastSnapshot | None, Rows]:
    """What the index at `path` says; nothing if there is none, or it is damaged."""
    try:
        found = _decoder.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None, {}
    return found.base, {row.node.path: row for row in found.rows}


def write(path: Path, base: LastSnapshot, rows: Rows) -> None:
    """Write the index at `path`, in place of the one that is there. Errors: OSError."""
    draft = path.with_name(f"{path.name}.new")
    # A process that was killed here left it, and O_EXCL would refuse it from then on.
    draft.unlink(missing_ok=True)
    content = msgspec.msgpack.encode(_Index(base, [*rows.values()]))
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    # Not synced: after a power cut a damaged index counts as none, and all files are read again.
    draft.replace(path)


def nodes(rows: Rows) -> Nodes:
    """The tree of the index."""
    return {path: row.node for path, row in rows.items()}
