"""A copy of a CRDT document whose failures are errors.

`pycrdt` trusts its input. Here every update is parsed first (core/documents/update.py), so that
only well-formed and complete ones are applied. What pycrdt still cannot take ends in
`DamagedError`, and the copy must be thrown away.

Source: pycrdt 0.14.13; yrs panics are `pyo3_runtime.PanicException`, a BaseException.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from pycrdt import Doc, TransactionEvent, merge_updates

from blackboard.core.documents import update as crdt
from blackboard.core.documents.update import Update

T = TypeVar("T")
_PANIC = "PanicException"


class DamagedError(Exception):
    """The library failed in the middle of a call: its copy can no longer be trusted."""


class Replica:
    """One copy. It never edits, so the client id that the library drew for it is never used."""

    def __init__(self, state: bytes = crdt.EMPTY_UPDATE, *, listening: bool = False) -> None:
        """Begin with `state`, which a copy of ours encoded. Errors: DamagedError."""
        self.doc: Doc[Any] = Doc()
        guarded(lambda: self.doc.apply_update(state))
        self.clocks = crdt.read_state(self.doc.get_state())
        """By client, the number of its units that are known."""
        self._news: list[bytes] = []
        self._subscription = self.doc.observe(self._note) if listening else None

    def _note(self, event: TransactionEvent) -> None:
        self._news.append(event.update)

    def apply(self, data: bytes, update: Update | None = None) -> bytes:
        """Apply what was read as `update`; returns what was new in it, if the copy is listening.

        Errors: InvalidRequest when it is malformed, builds on what is missing; nothing changed.
        DamagedError.
        """
        found = crdt.read_update(data) if update is None else update
        # yrs would keep it as pending, and apply it later, together with another update.
        gap = found.gap(self.clocks)
        if gap is not None:
            raise crdt.missing(gap)
        self._news.clear()
        guarded(lambda: self.doc.apply_update(data))
        for client, end in found.news(self.clocks).items():
            self.clocks[client] = end
        return merged(self._news) if self._news else crdt.EMPTY_UPDATE

    def update_since(self, state: bytes = crdt.EMPTY_STATE) -> bytes:
        """The update that a peer with `state` lacks. Errors: DamagedError."""
        return guarded(lambda: self.doc.get_update(state))

    @property
    def state(self) -> bytes:
        """The state vector of this copy."""
        return crdt.write_state(self.clocks)

    def close(self) -> None:
        """Release it: a copy with observers is never freed."""
        if self._subscription is not None:
            self.doc.unobserve(self._subscription)
            self._subscription = None


def guarded(work: Callable[[], T]) -> T:
    """Run a call of the library. Errors: DamagedError for whatever it raises."""
    try:
        return work()
    except Exception as error:
        raise DamagedError(str(error)) from error
    except BaseException as error:
        # By its name, because the class cannot be imported from a module of pycrdt.
        if type(error).__name__ != _PANIC:
            raise
        raise DamagedError(str(error)) from error


def merged(updates: list[bytes]) -> bytes:
    """Several updates as one. Errors: DamagedError."""
    if len(updates) == 1:
        return updates[0]
    return guarded(lambda: merge_updates(*updates))


def check_harmless(data: bytes) -> None:
    """Check an update on an empty copy: some are accepted and make every later encoding fail.

    Errors: DamagedError.
    """

    def work() -> None:
        doc: Doc[Any] = Doc()
        doc.apply_update(data)
        doc.get_update()

    guarded(work)
