"""Has what a request comes to recorded: `with Audited(...)` around what carries it out."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import Final

from blackboard.client.link import WatchRequest
from blackboard.core.access import Principal
from blackboard.errors import AccessDenied, Fenced, Unauthenticated
from blackboard.server.security.audit import WHOLE, Audit, looks_into_others

_REFUSALS: Final = (AccessDenied, Unauthenticated, Fenced)
_LOOKS: Final = frozenset({"read", "list", "log", "watch", "why", "history", "differences"})
_AT_ALL: Final = frozenset({"log", "differences"})
"""Looks that name no key and no pattern."""
_NOTHING: Final[tuple[object, ...]] = (None, (), "", False)
"""What an argument is that was not given; it is not recorded."""


class Audited:
    """Records, at the end of its block, what the rules of `server/security/audit.py` say.

    `verb` is a method of the table; `about` is what it was given: for a look, first the keys or
    patterns. Errors pass through.
    """

    __slots__ = ("_about", "_audit", "_board", "_principal", "_verb")

    def __init__(
        self, audit: Audit, principal: Principal, verb: str, board: str, about: Sequence[object]
    ) -> None:
        self._audit = audit
        self._principal = principal
        self._verb = verb
        self._board = board
        self._about = about

    def __enter__(self) -> None:
        """Nothing is recorded before it is known how it ends."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Record a refusal, or a success that is worth it; anything else is not the audit's."""
        if isinstance(error, _REFUSALS):
            self._note(str(error.fields().get("key", "")), error.code)
        elif error is None and self._principal.credential is not None:
            self._note_success()

    def _note_success(self) -> None:
        if self._verb in WHOLE:
            self._note(self._text(), "ok")
        elif self._verb in _LOOKS and looks_into_others(self._principal, self._patterns()):
            self._note(self._text(), "private")

    def _note(self, what: str, outcome: str) -> None:
        self._audit.note(self._principal, self._verb, self._board, what, outcome)

    def _patterns(self) -> Sequence[str]:
        """The keys or patterns that a look is at; everything, if it names none."""
        if self._verb in _AT_ALL or not self._about:
            return ["**"]
        subject = self._about[0]
        if isinstance(subject, WatchRequest):
            return subject.patterns
        if isinstance(subject, list | tuple):
            return [str(key) for key in subject]
        return [str(subject)]

    def _text(self) -> str:
        return " ".join(_words(part) for part in self._about if part not in _NOTHING)


def _words(part: object) -> str:
    """An argument for people: what a wish says by name, but for what it left out and for bytes."""
    if isinstance(part, list | tuple):
        return ",".join(map(str, part))
    if not is_dataclass(part) or isinstance(part, type):
        return str(part)
    said = ((f.name, getattr(part, f.name)) for f in fields(part))
    return " ".join(
        f"{name}={_words(value)}"
        for name, value in said
        if value not in _NOTHING and not isinstance(value, bytes)
    )
