"""A tree: what a snapshot says of a directory, as nodes in the order of their paths.

The nodes are stored in *leaves* of about LEAF_NODES, one after the other; the *root* is the list of
the ids of the leaves. A leaf ends after a path whose checksum says so, wherever that path stands.
So a change of one file changes one leaf and the root, whatever the directories look like, and two
trees that agree in a stretch of paths share its leaves.

The *id* of stored bytes is their BLAKE2b under the workspace's salt, which is random and a value
like the others. So nobody who only sees keys can tell whether a file has a content that he guesses.

Invariants
- Paths are bytes, as the file system has them: no encoding or normal form is assumed, or changed.
- What `unpack` returns can be written below an empty directory without leaving it: each parent of a
  path is a directory of the same tree, and no path has an empty part, `.` or `..`.
"""

import hashlib
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct

from blackboard.errors import Corrupt, LimitExceeded
from blackboard.limits import (
    LARGE_PART_BYTES,
    WORKSPACE_BYTES_MAX,
    WORKSPACE_ENTRIES_MAX,
    WORKSPACE_PATH_BYTES_MAX,
)

ID_BYTES: Final = 32
LEAF_NODES: Final = 64
"""Nodes of an average leaf: ten changed files rewrite ten leaves of 5 KB, and the root of 100,000
nodes has 50 KB."""
_LEAF_NODES_MAX: Final = 16 * LEAF_NODES
_LEAF_BYTES: Final = 64 * 1024
PERMISSIONS: Final = 0o777
"""The bits of a mode that are kept: no restored file ever runs as another user."""


class Node(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What stands at `path`: a regular file with the ids of its `parts`, a directory, or a symbolic
    link to `target`. `mode` has the type and the permissions, as in `stat`."""

    path: bytes
    mode: int
    size: int = 0
    parts: tuple[bytes, ...] = ()
    target: bytes = b""

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


Nodes = dict[bytes, Node]
"""A tree, by path."""

_pack = msgspec.msgpack.Encoder().encode
_leaf = msgspec.msgpack.Decoder(list[Node])
_root = msgspec.msgpack.Decoder(list[bytes])


def id_of(data: bytes, salt: bytes) -> bytes:
    """The id of stored bytes."""
    return hashlib.blake2b(data, digest_size=ID_BYTES, key=salt).digest()


def parts_of(size: int) -> int:
    """The parts of a file of `size` bytes."""
    return -(-size // LARGE_PART_BYTES)


def part_bytes(node: Node, number: int) -> int:
    """The bytes of part `number` of a file."""
    return min(LARGE_PART_BYTES, node.size - number * LARGE_PART_BYTES)


def shown(path: bytes) -> str:
    """A path as text for people, and for errors, which have to be text."""
    return path.decode("utf-8", "backslashreplace")


def check_totals(nodes: int, size_bytes: int) -> None:
    """Errors: LimitExceeded for more nodes or bytes than a workspace has."""
    if nodes > WORKSPACE_ENTRIES_MAX:
        raise LimitExceeded("WORKSPACE_ENTRIES_MAX", nodes, WORKSPACE_ENTRIES_MAX)
    if size_bytes > WORKSPACE_BYTES_MAX:
        raise LimitExceeded("WORKSPACE_BYTES_MAX", size_bytes, WORKSPACE_BYTES_MAX)


# --- packing --------------------------------------------------------------------------------------


def pack(nodes: Iterable[Node]) -> list[bytes]:
    """The leaves of a tree; its nodes come in the order of their paths."""
    leaves: list[bytes] = []
    leaf: list[Node] = []
    size = 0
    for node in nodes:
        leaf.append(node)
        size += len(node.path) + ID_BYTES * len(node.parts) + len(node.target)
        ends = crc32(node.path) % LEAF_NODES == 0
        # The bounds are for paths of which by chance none ends a leaf for long,
        # and for large nodes.
        if ends or len(leaf) == _LEAF_NODES_MAX or size >= _LEAF_BYTES:
            leaves.append(_pack(leaf))
            leaf, size = [], 0
    if leaf:
        leaves.append(_pack(leaf))
    return leaves


def pack_root(leaves: Sequence[bytes]) -> bytes:
    """The root of a tree whose leaves have these ids."""
    return _pack(leaves)


# --- unpacking: from a board, on which anybody with the right to it may have written --------------


def unpack_root(data: bytes) -> list[bytes]:
    """The ids of the leaves. Errors: Corrupt."""
    try:
        found = _root.decode(data)
    except msgspec.MsgspecError as error:
        raise _bad(f"its root: {error}") from error
    if len(found) > WORKSPACE_ENTRIES_MAX or any(len(leaf) != ID_BYTES for leaf in found):
        raise _bad("its root is no list of ids")
    return found


def unpack_leaf(data: bytes) -> list[Node]:
    """The nodes of a leaf, each for itself as it should be. Errors: Corrupt."""
    try:
        nodes = _leaf.decode(data)
    except msgspec.MsgspecError as error:
        raise _bad(f"a leaf: {error}") from error
    for node in nodes:
        _check_node(node)
    return nodes


def unpack(leaves: Iterable[Sequence[Node]]) -> Nodes:
    """The tree of these leaves, in order. Errors: Corrupt, LimitExceeded."""
    found: Nodes = {}
    last, size = b"", 0
    for node in _nodes(leaves):
        # Each path once, and after its parents, which the check below relies on.
        if node.path <= last:
            raise _bad(f"{shown(node.path)} is not after {shown(last)}")
        above = node.path.rpartition(b"/")[0]
        if above and (above not in found or not found[above].is_directory):
            raise _bad(f"{shown(node.path)} does not lie in a directory of it")
        found[node.path] = node
        last, size = node.path, size + node.size
        check_totals(len(found), size)
    return found


def _nodes(leaves: Iterable[Sequence[Node]]) -> Iterator[Node]:
    for leaf in leaves:
        yield from leaf


def _check_node(node: Node) -> None:
    names = node.path.split(b"/")
    if len(node.path) > WORKSPACE_PATH_BYTES_MAX or b"\0" in node.path:
        raise _bad(f"{shown(node.path[:200])} is no path")
    if any(name in (b"", b".", b"..") for name in names):
        raise _bad(f"{shown(node.path)} leads out of it")
    if not _is_whole(node):
        raise _bad(f"{shown(node.path)} is neither a file nor a directory nor a link")


def _is_whole(node: Node) -> bool:
    kind, permissions = stat.S_IFMT(node.mode), node.mode & ~stat.S_IFMT(0o177777)
    if node.mode < 0 or permissions & ~PERMISSIONS or node.size < 0:
        return False
    if kind == stat.S_IFREG:
        is_counted = len(node.parts) == parts_of(node.size) and not node.target
        return is_counted and all(len(part) == ID_BYTES for part in node.parts)
    if kind == stat.S_IFLNK:
        is_link = 0 < len(node.target) <= WORKSPACE_PATH_BYTES_MAX and b"\0" not in node.target
        return is_link and not node.parts and not node.size
    return kind == stat.S_IFDIR and not (node.parts or node.size or node.target)


def _bad(reason: str) -> Corrupt:
    return Corrupt(what="the tree of a workspace", reason=reason)
