"""Removing a tree: closed directories in it, too, and however deep they are.

One directory is open at a time, and none is entered from within another: the standard library needs
an open file and a call for each level, and ends in the middle of a tree that has a thousand.
"""

import os
import stat
from pathlib import Path

from blackboard.client.workspace.within import Within


def remove_tree(tree: Path) -> None:
    """Remove a tree, read-only directories in it, too, if it is there. Errors: OSError."""
    if not tree.exists():
        return
    tree.chmod(stat.S_IRWXU)
    with Within(tree) as within:
        directories = [b""]
        for directory in directories:  # which grows meanwhile
            directories += _emptied(within, directory)
        for directory in reversed(directories[1:]):
            handle, name = within.parent(directory)
            os.rmdir(name, dir_fd=handle)
    tree.rmdir()


def _emptied(within: Within, directory: bytes) -> list[bytes]:
    """Remove what lies in a directory but for the directories there, which are opened for their
    owner; returns these."""
    below = directory and directory + b"/"
    handle, _ = within.parent(below)
    with os.scandir(handle) as entries:
        found = [(os.fsencode(one.name), one.stat(follow_symlinks=False)) for one in entries]
    left = []
    for name, status in found:
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=handle)
            continue
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(name, stat.S_IRWXU, dir_fd=handle)
        left.append(below + name)
    return left
