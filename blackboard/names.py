"""Any text as one segment of a key, and back: names of users, threads and files that are no names.

    names.segment("ann@example.com")      # ann9~~40example.com
    names.text("ann9~~40example.com")     # ann@example.com

A segment has the characters A-Z a-z 0-9 . _ ~ - only. Texts of letters, digits, `.`, `_` and single
`-` are written as they are. Segments sort as their texts do (by code points), so listings keep the
order, and `after=` and prefixes of ordinary text work.

How: a character that cannot stand there is written behind the last character that sorts before it
(`9`, `Z`, `_`, `z` or `.`), as `~~` and the hexadecimal digits of its UTF-8 bytes. What sorts
before `-` is written as `--` and two digits. `-` itself is `-`, or `--~` where that could be
misread.
"""

import re
from bisect import bisect_right
from typing import Final

from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.limits import SEGMENT_BYTES_MAX

__all__ = ["segment", "text"]

_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._")
_BEFORE: Final = (".", "9", "Z", "_", "z")
"""The characters after which there is a gap in ASCII that a segment cannot fill."""
_AS_IT_IS: Final = re.compile(r"[A-Za-z0-9._]+(?:-[A-Za-z0-9._]+)*")
"""Most names and ids: they are their own segments, unless they are dots."""
_EMPTY: Final = "-"
_DOTS: Final = (".", "..")
_PART: Final = re.compile(r"--~|--[0-9A-F]{2}|[.9Z_z]~~(?:[0-9A-F]{2})+|.", re.DOTALL)


def segment(text: str) -> str:
    """The segment for `text`, which `text()` turns back.

    Errors: InvalidRequest for what is not Unicode text (lone surrogates); LimitExceeded when the
    segment would have more than SEGMENT_BYTES_MAX characters. Use a digest of such a name then, and
    keep the name in the value.
    """
    if len(text) > SEGMENT_BYTES_MAX:
        raise LimitExceeded("SEGMENT_BYTES_MAX", len(text), SEGMENT_BYTES_MAX, "bytes")
    if _AS_IT_IS.fullmatch(text) and text not in _DOTS:
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(field="text", reason="is not Unicode text") from error
    found = ""
    # From the end: how a `-` is written depends on what follows it.
    for character in reversed(text):
        found = _written(character, found) + found
    found = found or _EMPTY
    found += "-" if found in _DOTS else ""
    if len(found) > SEGMENT_BYTES_MAX:
        raise LimitExceeded("SEGMENT_BYTES_MAX", len(found), SEGMENT_BYTES_MAX, "bytes")
    return found


def _written(character: str, rest: str) -> str:
    """`character`, before `rest`, which is written already."""
    if character in _PLAIN:
        return character
    if character == "-":
        return "-" if rest and not rest.startswith("-") else "--~"
    digits = character.encode().hex().upper()
    if character < "-":
        return f"--{digits}"
    return f"{_BEFORE[bisect_right(_BEFORE, character) - 1]}~~{digits}"


def text(segment_of_a_key: str) -> str:
    """The text whose `segment` this is. Errors: InvalidRequest when there is none."""
    if _AS_IT_IS.fullmatch(segment_of_a_key) and segment_of_a_key not in _DOTS:
        # It is its own text; `segment` refuses one that is too long.
        return segment(segment_of_a_key)
    found = "" if segment_of_a_key == _EMPTY else _read(segment_of_a_key)
    if found is None or segment(found) != segment_of_a_key:
        reason = f"{segment_of_a_key!r:.200} was not made by blackboard.names.segment"
        raise InvalidRequest(field="segment", reason=reason)
    return found


def _read(written: str) -> str | None:
    if written.removesuffix("-") in _DOTS:
        return written.removesuffix("-")
    found: list[str] = []
    position = 0
    while position < len(written):
        part = _PART.match(written, position)
        assert part is not None  # the last alternative matches every character
        one, size = _character(part[0])
        if one is None:
            return None
        found.append(one)
        position += size
    return "".join(found)


def _character(part: str) -> tuple[str | None, int]:
    """The character that `part` begins with, and how much of it that takes."""
    if len(part) == 1:
        return part, 1
    if part == "--~":
        return "-", 3
    try:
        octets = bytes.fromhex(part[2 if part.startswith("--") else 3 :])
        first = octets[0]
        count = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        return octets[:count].decode(), len(part) - 2 * (len(octets) - count)
    except ValueError:
        return None, 0
