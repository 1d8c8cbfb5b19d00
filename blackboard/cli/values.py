"""Values on the command line: text to value, value to text.

JSON has no bytes: they are written as `{"$bytes": "<base64>"}`, here as on the wire.

Moments on the command line: `12`, `before-plan`, `now`, `2026-11-21T09:30`. Spans of time are
numbers of seconds, hours or days.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from blackboard.cli.errors import CommandError, wrong_usage
from blackboard.core.checkpoints import When
from blackboard.core.path import check_name
from blackboard.errors import InvalidRequest, RemoteProtocolError
from blackboard.limits import COMMIT_BYTES_MAX, REVISION_MAX
from blackboard.units import Milliseconds
from blackboard.wire.frames import JSON, NotAMap

_OPENINGS: Final = ("{", "[", '"')
INPUT_BYTES_MAX: Final = 8 * COMMIT_BYTES_MAX
"""Bytes that are read for one value: escapes make JSON up to six times longer."""
_SPAN_MS_MAX: Final = 10**14
"""The longest span of time: added to a moment of today, it leads to a year of four digits."""


def milliseconds(
    amount: float | None, option: str, *, unit_ms: Milliseconds = 1_000
) -> Milliseconds | None:
    """The span of time of `option` in milliseconds; none is 0 that is more than 0.

    None stays None. Errors: CommandError for what is not finite, and above 3,000 years.
    """
    if amount is None:
        return None
    span = amount * unit_ms
    # Not `>`: every comparison with NaN is false.
    if not abs(span) <= _SPAN_MS_MAX:
        raise wrong_usage(f"{option} is no span of time: {amount:g}")
    return 1 if 0 < span < 1 else round(span)


def parse(text: str, *, is_json: bool | None = None) -> Any:
    """The value of `text`: JSON if it is JSON, else the text itself.

    `is_json` True: JSON or nothing. False: the text as it is. None: text that begins like JSON but
    is not JSON is refused, and not taken as a string that looks like an object. Errors:
    CommandError.
    """
    if is_json is False:
        return text
    try:
        return _from_json(text)
    except ValueError as error:
        if is_json or text.lstrip().startswith(_OPENINGS):
            raise wrong_usage(
                f"the value is not JSON: {error}",
                "Quote it for your shell, or use --string to keep it as text.",
            ) from error
        return text


def parse_bytes(content: bytes, *, is_json: bool | None = None) -> Any:
    """The value of the content of a file; content that is not text stays bytes."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if is_json is not None:
            raise wrong_usage("the file is not UTF-8 text") from error
        return content
    return parse(text if is_json is False else text.removesuffix("\n"), is_json=is_json)


def from_stdin() -> bytes:
    """What standard input holds. Errors: CommandError, also for more than any value has."""
    try:
        content = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
    except OSError as error:  # it is closed, for example
        raise wrong_usage(f"standard input cannot be read: {error.strerror}") from error
    return _bounded(content, "standard input")


def text_from_stdin() -> str:
    """As `from_stdin`, of text."""
    try:
        return from_stdin().decode()
    except UnicodeDecodeError as error:
        raise wrong_usage("standard input is not UTF-8 text") from error


def from_file(file: Path) -> bytes:
    """The content of a file. Errors: OSError; CommandError for more than any value has."""
    with file.open("rb") as opened:
        return _bounded(opened.read(INPUT_BYTES_MAX + 1), str(file))


def _bounded(content: bytes, what: str) -> bytes:
    if len(content) > INPUT_BYTES_MAX:
        raise wrong_usage(f"{what} has more than {INPUT_BYTES_MAX:,} bytes")
    return content


def compact(value: Any) -> str:
    """A value as one line of JSON."""
    return JSON.pack(value).decode()


def pretty(value: Any) -> str:
    """A value as JSON for people."""
    return json.dumps(json.loads(JSON.pack(value)), indent=2, ensure_ascii=False)


def _from_json(text: str) -> Any:
    try:
        # By the parser of the wire, so that $bytes means the same here. It splits a list.
        found = JSON.split(f"[{text}]".encode())
    except UnicodeEncodeError as error:
        raise ValueError("it holds characters that are not Unicode text") from error
    except RemoteProtocolError as error:
        raise ValueError(_why_not(text) or error.reason) from error
    if len(found) != 1:
        raise ValueError("there is more than one value")
    if _holds_no_map(found[0]):
        raise ValueError('a key stands twice, or "$bytes" is not base64')
    return found[0]


def _why_not(text: str) -> str:
    """The JSON parser's message, with line and column counted from 1."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{error.msg} (line {error.lineno}, column {error.colno})"
    except RecursionError:
        return "it is nested too deep"
    return ""


def _holds_no_map(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        items = value.values() if isinstance(value, dict) else value
        return any(_holds_no_map(item) for item in items)
    return isinstance(value, NotAMap)


_TIME: Final = "a time such as 2026-11-21T09:30 (here) or 2026-11-21T09:30Z"
_MOMENT: Final = f"A moment is the name of a checkpoint, a revision, now, or {_TIME}."
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""No commit is older, by any clock."""


def parse_moment(text: str) -> When:
    """The moment in `text`: digits are a revision, what has a colon is a time, else a name.

    A date alone may be the name of a checkpoint, so it is one. Errors: CommandError.
    """
    if _is_number(text):
        return parse_revision(text)
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
        detail = "" if "isoformat" in str(error) else f": {error}"
        raise _no_time(text, detail) from error
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


def parse_revision(text: str) -> int:
    """The revision in `text`, which is a number. Errors: CommandError."""
    digits = text.lstrip("0") or "0"
    # The length first: int() raises an error for more than 4,300 digits.
    if len(digits) > len(str(REVISION_MAX)) or int(digits) > REVISION_MAX:
        raise wrong_usage(f"no revision is above {REVISION_MAX}", _MOMENT)
    return int(digits)
