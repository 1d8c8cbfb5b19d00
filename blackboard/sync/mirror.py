"""What the synchronous classes have in common: an object of the loop, and the way to it."""

from typing import Generic, TypeVar

from blackboard.sync.portal import Portal

T = TypeVar("T")


class Mirror(Generic[T]):
    """The synchronous side of an object that lives in the loop of `portal`."""

    def __init__(self, portal: Portal, inner: T) -> None:
        self._portal = portal
        self._inner = inner

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mirror):
            return NotImplemented
        return self._portal.call(lambda: bool(self._inner == other._inner))

    def __hash__(self) -> int:
        return hash(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)

    def _repr_html_(self) -> str | None:
        show = getattr(self._inner, "_repr_html_", None)
        return None if show is None else str(self._portal.call(show))
