"""Moments of a board, in the form of the API and in that of the service."""

from datetime import datetime

from blackboard.core.checkpoints import NOW, Instant, Moment, check_checkpoint
from blackboard.errors import InvalidRequest
from blackboard.limits import REVISION_MAX
from blackboard.units import Revision

When = Moment | datetime
"""A revision, the name of a checkpoint, "now", or a `datetime` with a time zone."""


def optional_moment(when: When | None) -> Moment | None:
    """As `moment_of`; None = the present. Errors: InvalidRequest."""
    return None if when is None else moment_of(when)


def moment_of(when: When) -> Moment:
    """Convert a moment to the service's form. Errors: InvalidRequest."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidRequest(field="at", reason=f"{when} has no time zone")
        time_ms = int(when.timestamp() * 1000)
        if time_ms < 0:
            raise InvalidRequest(field="at", reason=f"{when} is before 1970")
        return Instant(time_ms)
    if type(when) is bool or not isinstance(when, int | str | Instant):
        raise InvalidRequest(field="at", reason=f"a {type(when).__name__} is no moment")
    if isinstance(when, str):
        return when if when == NOW else check_checkpoint(when)
    if isinstance(when, int) and not 0 <= when <= REVISION_MAX:
        raise InvalidRequest(field="at", reason=f"no revision: it is not in 0..{REVISION_MAX}")
    return when


def rewound_to(to: Revision | None, at: datetime | None, before: Revision | None) -> When:
    """The moment that one of the three names. Errors: InvalidRequest."""
    given: list[When] = [when for when in (to, at) if when is not None]
    if before is not None:
        if before < 1:
            raise InvalidRequest(field="before", reason=f"nothing was before revision {before}")
        given.append(before - 1)
    if len(given) != 1:
        raise InvalidRequest(field="rewind", reason="one of to, at, before is needed")
    return given[0]
