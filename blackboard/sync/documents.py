"""Documents without async.

Written by `python -m tools.sync_client`: do not edit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from blackboard.client.documents.overlap import Overlap
from blackboard.client.documents.shared_types import Delta, MapDelta
from blackboard.sync import asynchronous
from blackboard.sync.portal import Mirror, Portal
from blackboard.units import Key, Milliseconds


class SharedText(Mirror[asynchronous.SharedText]):
    """Text. Positions and lengths are Unicode code points; errors: InvalidRequest beyond the end,
    and DocumentRefused.
    """

    def __str__(self) -> str:
        return self._portal.call(lambda: str(self._inner))

    def __len__(self) -> int:
        return self._portal.call(lambda: len(self._inner))

    def insert(self, position: int, text: str) -> None:
        """Insert `text` before the code point at `position` (the length: at the end)."""
        self._portal.call(lambda: self._inner.insert(position, text))

    def append(self, text: str) -> None:
        """Add `text` at the end."""
        self._portal.call(lambda: self._inner.append(text))

    def delete(self, position: int, length: int) -> None:
        """Remove `length` code points from `position` on."""
        self._portal.call(lambda: self._inner.delete(position, length))

    def replace(self, position: int, length: int, text: str) -> None:
        """Put `text` where `length` code points from `position` on are."""
        self._portal.call(lambda: self._inner.replace(position, length, text))

    def observe(self, observer: Callable[[Sequence[Delta]], None]) -> Callable[[], None]:
        """Call `observer` with each change, also those made here; returns what ends that.

        It must not edit the document. What it raises is logged.
        """
        end = self._portal.call(lambda: self._inner.observe(observer))
        return lambda: self._portal.call(end)


class SharedList(Mirror[asynchronous.SharedList]):
    """A list of values: JSON types and bytes, or again shared ones."""

    def __len__(self) -> int:
        return self._portal.call(lambda: len(self._inner))

    def __iter__(self) -> Iterator[Any]:
        return iter(shared(self._portal, one) for one in self._portal.call(lambda: [*self._inner]))

    def __getitem__(self, index: int) -> Any:
        return shared(self._portal, self._portal.call(lambda: self._inner[index]))

    def append(self, value: Any) -> None:
        """Add a value at the end."""
        self._portal.call(lambda: self._inner.append(value))

    def insert(self, index: int, value: Any) -> None:
        """Insert a value before that at `index`."""
        self._portal.call(lambda: self._inner.insert(index, value))

    def delete(self, index: int, length: int = 1) -> None:
        """Remove `length` values from `index` on."""
        self._portal.call(lambda: self._inner.delete(index, length))

    def insert_text(self, index: int, text: str = "") -> SharedText:
        """Insert a nested text."""
        return SharedText(
            self._portal, self._portal.call(lambda: self._inner.insert_text(index, text))
        )

    def insert_list(self, index: int) -> "SharedList":
        """Insert a nested list."""
        return SharedList(self._portal, self._portal.call(lambda: self._inner.insert_list(index)))

    def insert_map(self, index: int) -> "SharedMap":
        """Insert a nested map."""
        return SharedMap(self._portal, self._portal.call(lambda: self._inner.insert_map(index)))

    def observe(self, observer: Callable[[Sequence[Delta]], None]) -> Callable[[], None]:
        """As `SharedText.observe`; what is inserted is a list of plain values."""
        end = self._portal.call(lambda: self._inner.observe(observer))
        return lambda: self._portal.call(end)


class SharedMap(Mirror[asynchronous.SharedMap]):
    """A map of strings to values: JSON types and bytes, or again shared ones. Of two concurrent
    settings of one key, one wins, the same everywhere.
    """

    def __len__(self) -> int:
        return self._portal.call(lambda: len(self._inner))

    def __iter__(self) -> Iterator[str]:
        return iter(self._portal.call(lambda: [*self._inner]))

    def __contains__(self, key: str) -> bool:
        return self._portal.call(lambda: key in self._inner)

    def __getitem__(self, key: str) -> Any:
        return shared(self._portal, self._portal.call(lambda: self._inner[key]))

    def get(self, key: str, default: Any = None) -> Any:
        """The value at `key`, or `default`."""
        return shared(self._portal, self._portal.call(lambda: self._inner.get(key, default)))

    def __setitem__(self, key: str, value: Any) -> None:
        self._portal.call(lambda: self._inner.__setitem__(key, value))

    def __delitem__(self, key: str) -> None:
        self._portal.call(lambda: self._inner.__delitem__(key))

    def set_text(self, key: str, text: str = "") -> SharedText:
        """Put a nested text at `key`."""
        return SharedText(self._portal, self._portal.call(lambda: self._inner.set_text(key, text)))

    def set_list(self, key: str) -> SharedList:
        """Put a nested list at `key`."""
        return SharedList(self._portal, self._portal.call(lambda: self._inner.set_list(key)))

    def set_map(self, key: str) -> "SharedMap":
        """Put a nested map at `key`."""
        return SharedMap(self._portal, self._portal.call(lambda: self._inner.set_map(key)))

    def observe(self, observer: Callable[[Sequence[MapDelta]], None]) -> Callable[[], None]:
        """Call `observer` with each change, also those made here; returns what ends that."""
        end = self._portal.call(lambda: self._inner.observe(observer))
        return lambda: self._portal.call(end)


class Document(Mirror[asynchronous.Document]):
    """One replica of the document at `key`. Made by `Board.document`.

    Errors of every edit: DocumentRefused once the service has refused this replica (see its
    `cause`); edits that were not sent are lost, and `Board.document` opens a new replica.
    """

    @property
    def key(self) -> Key:
        """As of the asynchronous Document."""
        return self._inner.key

    def __enter__(self) -> "Document":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.run(lambda: self._inner.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Close the document. Edits for which no `synced` waited may not have been sent."""
        self._portal.run(self._inner.aclose)

    def synced(self, *, timeout_ms: Milliseconds | None = None) -> None:
        """Wait until every edit made here so far is committed, and everything that was committed
        before is here.

        Errors: DocumentRefused; AccessDenied; Unavailable after `timeout_ms` (None: after
        REQUEST_TIMEOUT_MS), BoardFrozen, or LimitExceeded (DOCUMENTS_MAX, DOCUMENT_SESSIONS_MAX):
        the edits are kept and still sent when the service is back, or has room, or the board is
        thawed.
        Cancellation: loses nothing.
        """
        self._portal.run(lambda: self._inner.synced(timeout_ms=timeout_ms))

    def text(self, name: str = "text") -> SharedText:
        """The text called `name` at the top of the document."""
        return SharedText(self._portal, self._portal.call(lambda: self._inner.text(name)))

    def list(self, name: str) -> SharedList:
        """The list called `name` at the top of the document."""
        return SharedList(self._portal, self._portal.call(lambda: self._inner.list(name)))

    def map(self, name: str) -> SharedMap:
        """The map called `name` at the top of the document."""
        return SharedMap(self._portal, self._portal.call(lambda: self._inner.map(name)))

    def value(self) -> dict[str, Any]:
        """All top-level types that were requested by name, as plain values."""
        return self._portal.call(self._inner.value)

    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal; it does not depend on the history. The cost grows
        with the size of the document.
        """
        return self._portal.call(self._inner.digest)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Edits of the block are one update and one step of undo; they are all made or, if the
        process dies before, none. An exception does not undo the edits before it.

        Request the top-level types that you edit before it begins. The edits of others wait for its
        end, also if it awaits something.
        """
        with self._portal.exclusively():
            block = ExitStack()
            try:
                self._portal.call(lambda: block.enter_context(self._inner.transaction()))
                yield
            finally:  # also when it was interrupted while it began
                self._portal.call(block.close)

    def observe_overlaps(self, observer: Callable[[Overlap], None]) -> None:
        """Call `observer` when an edit of another replica meets one made here at the same time.

        If two replicas edit one region concurrently, the one whose edit is later in the log gets
        the report, sometimes both; both are named. The report is also an entry below
        `<key>/~doc/overlap`, which can be watched. Only top-level types that were requested by
        name, and their contents, are checked. The observer must not edit the document. What it
        raises is logged.
        """
        self._portal.call(lambda: self._inner.observe_overlaps(observer))

    def undo(self) -> bool:
        """Undo the last edit of this replica; those of others stay. False when there is none."""
        return self._portal.call(self._inner.undo)

    def redo(self) -> bool:
        """Redo the edit that was undone last."""
        return self._portal.call(self._inner.redo)

    def merge(self, other: "Document") -> None:
        """Merge the edits of `other` that this one lacks, for instance those of a branch.

        Both must descend from one document (`Board.branch`); then merging again changes nothing.
        """
        self._portal.call(lambda: self._inner.merge(other._inner))

    def tell(self, state: dict[str, Any] | None) -> None:
        """Publish the awareness state of this replica (a colour, a cursor), in addition to its
        agent's name, until it is closed; None: only the name.
        """
        self._portal.call(lambda: self._inner.tell(state))

    def others(self) -> dict[int, Any]:
        """The awareness states of other replicas, by client id."""
        return self._portal.call(self._inner.others)


def shared(portal: Portal, value: Any) -> Any:
    """A value of a document: what is shared as an object of this module."""
    if isinstance(value, asynchronous.SharedText):
        return SharedText(portal, value)
    if isinstance(value, asynchronous.SharedList):
        return SharedList(portal, value)
    if isinstance(value, asynchronous.SharedMap):
        return SharedMap(portal, value)
    return value
