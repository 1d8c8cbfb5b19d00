"""Reading more keys of a board than one answer has room for."""

from collections.abc import Awaitable, Callable, Sequence

from blackboard.errors import LimitExceeded
from blackboard.limits import READ_KEYS_MAX
from blackboard.types import Entry


async def read_entries(
    read: Callable[[Sequence[str]], Awaitable[dict[str, Entry]]], keys: Sequence[str]
) -> dict[str, Entry]:
    """The entries that `read`, the method `entries` of a board, finds at any number of keys.

    A request is for READ_KEYS_MAX of them, or for fewer after an answer that would have had more
    than FRAME_BYTES_MAX bytes. Entries of different requests may be of different revisions.
    """
    found: dict[str, Entry] = {}
    start, count = 0, READ_KEYS_MAX
    while start < len(keys):
        some = keys[start : start + count]
        try:
            found |= await read(some)
        except LimitExceeded as error:
            if error.limit != "FRAME_BYTES_MAX" or len(some) == 1:
                raise
            count = len(some) // 2
        else:
            start += len(some)
    return found
