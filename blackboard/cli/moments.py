"""Moments as people type them: `12`, `before-plan`, `now`, `2026-11-21T09:30`."""

from datetime import UTC, datetime
from typing import Final

from blackboard.cli.errors import CommandError, wrong_usage
from blackboard.client.history import When
from blackboard.core.path import check_name
from blackboard.errors import InvalidRequest
from blackboard.types import REVISION_MAX

_TIME: Final = "a time such as 2026-11-21T09:30 (here) or 2026-11-21T09:30Z"
_MOMENT: Final = f"A moment is the name of a checkpoint, a revision, now, or {_TIME}."
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""No commit is older, by any clock."""


def parse(text: str) -> When:
    """The moment that is meant: digits are a revision, what has a colon is a time, else a name.

    A date alone may be the name of a checkpoint, so it is one. Errors: CommandError.
    """
    if _is_number(text):
        return _revision(text)
    if ":" in text:  # no name has one
        return time_of(text)
    try:
        return check_name(text)
    except InvalidRequest as error:
        raise wrong_usage(f"{text!r} is no moment", _MOMENT) from error


def time_of(text: str) -> datetime:
    """The time that is meant, by this machine's zone unless it says another; a date begins it.

    Errors: CommandError, also for a number: it says nothing of the unit or the day that it counts
    from.
    """
    if _is_number(text):
        raise _no_time(text, ": it is a number")
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo else found.astimezone()
    except ValueError as error:
        told = "" if "isoformat" in str(error) else f": {error}"
        raise _no_time(text, told) from error
    except OverflowError as error:  # here it is of a year below 1
        raise _no_time(text, " of a board") from error
    if found < _BEGINNING:
        raise _no_time(text, " of a board: it is before 1970")
    if found > datetime.now(UTC):
        raise wrong_usage(f"{text} is in the future", "The present is a moment, too: now.")
    return found


def _no_time(text: str, why: str) -> CommandError:
    return wrong_usage(f"{text!r} is no time{why}", f"Give {_TIME}.")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _revision(text: str) -> int:
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(REVISION_MAX)) or int(digits) > REVISION_MAX:
        raise wrong_usage(f"no revision is above {REVISION_MAX}", _MOMENT)
    return int(digits)
