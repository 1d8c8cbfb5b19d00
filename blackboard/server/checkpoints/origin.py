"""What a board that did not begin empty says of where it came from: `system/origin`."""

from blackboard.core.checkpoints import ORIGIN_KEY, Point
from blackboard.core.commit import Entry
from blackboard.types import Milliseconds
from blackboard.wire.codec import SYSTEM_AGENT, encode_value


def origin_entry(
    origin: Point, *, by: str, note: str, request: str, time_ms: Milliseconds, shares: bool = True
) -> Entry:
    """What a board says of where it came from; `shares` is whether the archive has its past."""
    value = {
        "board": origin.board,
        "revision": origin.revision,
        "by": by,
        "note": note,
        "request": request,
        "shares": shares,
    }
    revision = origin.revision
    encoded = encode_value(value)
    return Entry(ORIGIN_KEY, encoded, revision, revision, SYSTEM_AGENT, time_ms)
