"""Where things lie on the board.

    <prefix>/<thread>/c/<namespace>/<checkpoint>             a record (records.py)
    <prefix>/<thread>/w/<namespace>/<checkpoint>/<task>      writes that no record has yet
    <prefix>/<thread>/f/<id>                                 a file: either of them, if it is large

Names are written as `blackboard.names` does; one that is too long is `~` and its digest.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from blackboard import names
from blackboard.errors import LimitExceeded

_DIGEST: Final = "~"


def segment(text: str) -> str:
    """Any text as one segment of a key. Errors: InvalidRequest for lone surrogates."""
    try:
        return names.segment(text)
    except LimitExceeded:
        return _DIGEST + hashlib.sha256(text.encode()).hexdigest()


def text(of_key: str) -> str:
    """The text of a segment. Errors: InvalidRequest when only its digest is there."""
    return names.text(of_key)


def is_digest(of_key: str) -> bool:
    """Whether a segment has only the digest of its text."""
    return of_key.startswith(_DIGEST)


@dataclass(frozen=True, slots=True)
class ThreadPlace:
    """One namespace of one thread."""

    prefix: str
    thread: str
    namespace: str

    @property
    def thread_prefix(self) -> str:
        """Below which everything of the thread lies."""
        return thread_prefix(self.prefix, self.thread)

    @property
    def checkpoints(self) -> str:
        """Below which its records lie."""
        return f"{self.thread_prefix}/c/{segment(self.namespace)}"

    def checkpoint(self, id_: str) -> str:
        """The key of a record."""
        return f"{self.checkpoints}/{segment(id_)}"

    def writes(self, id_: str) -> str:
        """Below which the writes of a checkpoint lie."""
        return f"{self.thread_prefix}/w/{segment(self.namespace)}/{segment(id_)}"

    def written(self) -> str:
        """A pattern of the writes of all its checkpoints."""
        return f"{self.thread_prefix}/w/{segment(self.namespace)}/**"

    @property
    def files(self) -> str:
        """Below which the files of the thread lie."""
        return f"{self.thread_prefix}/f"

    def names(self, id_: str) -> tuple[str, str, str] | None:
        """The names of a record, if they cannot be read from its key."""
        found = (self.thread, self.namespace, id_)
        return found if any(segment(name).startswith(_DIGEST) for name in found) else None


def thread_prefix(prefix: str, thread: str) -> str:
    """Below which everything of a thread lies."""
    return f"{prefix}/{segment(thread)}"
