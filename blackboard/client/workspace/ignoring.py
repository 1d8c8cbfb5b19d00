"""Which files are left out of snapshots: what `.gitignore` files say, as git reads them.

`.blackboardignore` has the same form, and takes the place of `.gitignore` in its directory. What a
workspace keeps beside a directory (swap.py) is no part of the tree around it either.
"""

import codecs
import os
import re
from typing import Final, NamedTuple

from pathspec import GitIgnoreSpec

from blackboard.client.workspace.index import Rows
from blackboard.client.workspace.tree import id_of
from blackboard.client.workspace.within import Within
from blackboard.errors import InvalidRequest
from blackboard.limits import LARGE_PART_BYTES

FILES: Final = (".blackboardignore", ".gitignore")
"""The files with rules; the first one counts in each directory."""
_RULES_BYTES_MAX: Final = LARGE_PART_BYTES
"""Bytes of such a file that count: one part, so that the index knows it by its id."""


class Indexed(NamedTuple):
    """What the index says, and the salt of its ids."""

    rows: Rows
    salt: bytes

    def has(self, path: bytes, content: bytes) -> bool:
        """Whether `path` had this content."""
        parts = (id_of(content, self.salt),) if content else ()
        return self.has_file(path) and self.rows[path].node.parts == parts

    def has_file(self, path: bytes) -> bool:
        """Whether `path` was a regular file."""
        return path in self.rows and self.rows[path].node.is_file


class Ignoring:
    """The rules that hold in a directory: those of its own file, and of all above it."""

    def __init__(
        self, specs: tuple[tuple[str, GitIgnoreSpec], ...] = (), *, unchanged: bool = True
    ) -> None:
        self._specs = specs
        """With the directory of each ("" or with a slash at the end), from the top on."""
        self.unchanged = unchanged
        """Whether they are those by which the index was made: what is in it is not ignored then."""

    def below(self, within: Within, at: str, names: set[str], known: Indexed) -> "Ignoring":
        """The rules in the directory `at`, in which these `names` are regular files. As for git, a
        link has no rules.

        Errors: InvalidRequest when they cannot be read; OSError.
        """
        name = next((name for name in FILES if name in names), None)
        if name is None:
            # A file of rules that was removed changes the rules, too.
            lost = any(known.has_file(os.fsencode(at + name)) for name in FILES)
            return Ignoring(self._specs, unchanged=False) if lost else self
        with within.reading(os.fsencode(at + name)) as file:
            content = os.read(file, _RULES_BYTES_MAX)
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
        # As git: a name may have what else ends a line for Python, such as U+2028.
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        try:
            spec = GitIgnoreSpec.from_lines(lines)
        except (ValueError, re.error) as error:
            raise InvalidRequest("path", f"{at}{name} has a wrong rule: {error}") from error
        unchanged = self.unchanged and known.has(os.fsencode(at + name), content)
        return Ignoring((*self._specs, (at, spec)), unchanged=unchanged)

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Whether `path` is left out. The nearest directory with a rule for it decides."""
        name = path.rpartition("/")[2]
        if name.startswith(".") and name.endswith(".blackboard"):
            return True
        for at, spec in reversed(self._specs):
            relative = path[len(at) :] + ("/" if is_directory else "")
            found = spec.check_file(relative).include
            if found is not None:
                return found
        return False
