"""Trees: any one comes back from its leaves, and a change of one node changes one leaf."""

import stat

import pytest
from hypothesis import given, strategies as st

from blackboard.client.workspace import tree
from blackboard.client.workspace.tree import Node
from blackboard.errors import Corrupt, LimitExceeded
from blackboard.limits import (
    LARGE_PART_BYTES,
    WORKSPACE_BYTES_MAX,
    WORKSPACE_ENTRIES_MAX,
    WORKSPACE_PATH_BYTES_MAX,
)

SALT = b"salt" * 8
_names = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
_modes = st.integers(0, 0o777)


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    """Nodes in order: directories with files, links and directories in them."""
    directories, found = [b""], dict[bytes, Node]()
    for name in draw(st.lists(_names, max_size=40)):
        above = draw(st.sampled_from(directories))
        path = above + b"/" + name if above else name
        if path in found:
            continue
        kind = draw(st.sampled_from((stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)))
        mode, size = kind | draw(_modes), 0
        if kind == stat.S_IFDIR:
            directories.append(path)
            found[path] = Node(path, mode)
        elif kind == stat.S_IFLNK:
            found[path] = Node(path, mode, target=draw(_names))
        else:
            size = draw(st.integers(0, 3 * LARGE_PART_BYTES))
            parts = tuple(tree.id_of(bytes([n]), SALT) for n in range(tree.parts_of(size)))
            found[path] = Node(path, mode, size, parts)
    return [found[path] for path in sorted(found)]


def unpacked(leaves: list[bytes]) -> dict[bytes, Node]:
    """The tree of some leaves."""
    return tree.unpack(map(tree.unpack_leaf, leaves))


@given(trees())
def test_a_tree_comes_back_from_its_leaves(nodes: list[Node]) -> None:
    """All of it, in order."""
    assert [*unpacked(tree.pack(nodes)).values()] == nodes


def numbered(count: int, changed: int = -1) -> list[Node]:
    """Empty files; the one with that number is read-only."""
    return [
        Node(b"%06d" % n, stat.S_IFREG | (0o444 if n == changed else 0o644)) for n in range(count)
    ]


def test_a_change_changes_one_leaf() -> None:
    """And a new node at most two, wherever it stands."""
    leaves = set(tree.pack(numbered(10_000)))
    assert 100 < len(leaves) < 400
    assert len(set(tree.pack(numbered(10_000, changed=5_000))) - leaves) == 1
    more = sorted([*numbered(10_000), Node(b"005000a", stat.S_IFDIR)], key=lambda one: one.path)
    assert len(set(tree.pack(more)) - leaves) <= 2


def test_leaves_are_bounded() -> None:
    """However long the paths are."""
    nodes = [Node(b"%05d" % n + b"x" * 4_000, stat.S_IFDIR | 0o755) for n in range(300)]
    assert max(map(len, tree.pack(nodes))) < 80_000


@given(st.binary(max_size=200))
def test_bytes_that_are_no_leaf_are_corrupt(data: bytes) -> None:
    """Never another error."""
    for unpack in (tree.unpack_leaf, tree.unpack_root):
        try:
            unpack(data)
        except Corrupt:
            continue


def test_the_edges_of_a_workspace() -> None:
    """At each limit it passes; one more is refused by name."""
    tree.check_totals(WORKSPACE_ENTRIES_MAX, WORKSPACE_BYTES_MAX)
    for totals, name in (
        ((WORKSPACE_ENTRIES_MAX + 1, 0), "WORKSPACE_ENTRIES_MAX"),
        ((0, WORKSPACE_BYTES_MAX + 1), "WORKSPACE_BYTES_MAX"),
    ):
        with pytest.raises(LimitExceeded) as refused:
            tree.check_totals(*totals)
        assert refused.value.limit == name


def test_the_edge_of_a_path() -> None:
    """In what comes from a board."""
    longest = b"x" * WORKSPACE_PATH_BYTES_MAX
    assert longest in unpacked(tree.pack([Node(longest, stat.S_IFDIR)]))
    with pytest.raises(Corrupt):
        unpacked(tree.pack([Node(longest + b"x", stat.S_IFDIR)]))
