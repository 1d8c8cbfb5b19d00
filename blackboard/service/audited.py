"""Has the requests of a link recorded: a decorator for the class that carries them out."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from blackboard.errors import AccessDenied, BlackboardError, Fenced, Unauthenticated
from blackboard.service import audit
from blackboard.service.access import METHODS

Link = TypeVar("Link", bound=type)
_REFUSALS: Final = (AccessDenied, Unauthenticated, Fenced)
_LOOKS: Final = frozenset({"read", "list", "log", "watch", "why", "history", "differences"})
_NOT_ASKED: Final = ("start", "finish")
"""A commit in two halves, which is `commit` in the table of methods."""


def audited(link: Link) -> Link:
    """Have every method of the table recorded as the rules of `service/audit.py` say."""
    for name in (*METHODS, *_NOT_ASKED):
        method = getattr(link, name, None)
        if method is not None:
            setattr(link, name, _recorded(name, method))
    return link


def _recorded(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    verb = "commit" if name in _NOT_ASKED else name
    refusals = _REFUSALS[:2] if name == "commit" else _REFUSALS  # `finish` tells of fences

    @functools.wraps(method)
    async def later(self: Any, *given: Any, **named: Any) -> Any:
        try:
            result = await method(self, *given, **named)
        except refusals as error:
            _note_refusal(self, verb, given, error)
            raise
        _note_success(self, verb, given, named)
        return result

    @functools.wraps(method)
    def now(self: Any, *given: Any, **named: Any) -> Any:
        try:
            result = method(self, *given, **named)
        except refusals as error:
            _note_refusal(self, verb, given, error)
            raise
        _note_success(self, verb, given, named)
        return result

    return later if inspect.iscoroutinefunction(method) else now


def _note_refusal(link: Any, verb: str, given: Sequence[Any], error: BlackboardError) -> None:
    what = str(error.fields().get("key", ""))
    link.host.audit.note(link.principal, verb, _board(given), what, error.code)


def _note_success(link: Any, verb: str, given: Sequence[Any], named: dict[str, Any]) -> None:
    if link.principal.credential is None or verb == "commit":
        return
    about = [*given[1:], *named.values()]
    if verb in audit.WHOLE:
        link.host.audit.note(link.principal, verb, _board(given), _text(about), "ok")
    elif verb in _LOOKS and audit.looks_into_others(link.principal, _patterns(verb, about)):
        link.host.audit.note(link.principal, verb, _board(given), _text(about), "private")


def _patterns(verb: str, about: Sequence[Any]) -> Sequence[str]:
    """The keys or patterns that a look is at; everything, if it names none."""
    if verb in ("log", "differences"):
        return ["**"]
    subject = getattr(about[0], "patterns", about[0]) if about else "**"
    return [subject] if isinstance(subject, str) else [str(pattern) for pattern in subject]


def _text(about: Sequence[Any]) -> str:
    return " ".join(str(part) for part in about if part not in (None, (), "", False))


def _board(given: Sequence[Any]) -> str:
    return given[0] if given and isinstance(given[0], str) else ""
