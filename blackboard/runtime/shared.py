"""Results of calls that the whole team may have, instead of making the call itself.

An answer stands at `public/~cache/<digest of the call>` until its time to live is over; a large one
in parts below that. Anybody who may write in public may write here, and so whoever shares results
trusts the team. What is no answer, or not whole, is as good as none.
"""

from typing import Any, Final

from blackboard.core.commit import Put
from blackboard.errors import Corrupt
from blackboard.runtime import chunks as large
from blackboard.runtime.board_port import Desk
from blackboard.types import LARGE_BYTES_MAX, VALUE_BYTES_MAX, Milliseconds
from blackboard.wire.codec import decode_value, encode_value

CACHE: Final = "public/~cache"
_INLINE_BYTES_MAX: Final = VALUE_BYTES_MAX - 4_096
"""Of a result: what stands around it must fit into the value as well."""


def answer(digest: str, name: str, encoded: bytes, ttl_ms: Milliseconds) -> list[Put]:
    """What shares the encoded result of the call `name` with that digest; the last one shows it.

    Nobody finds the parts before that, so it is to be committed last.
    """
    key = f"{CACHE}/{digest}"
    if len(encoded) <= _INLINE_BYTES_MAX:
        told: dict[str, Any] = {"name": name, "result": decode_value(encoded)}
        return [Put(key, encode_value(told), ttl_ms)]
    found = large.digest_of(encoded)
    told = {"name": name, "result_digest": found, "result_bytes": len(encoded)}
    parts = [Put(part.key, part.value, ttl_ms) for part in large.cut(f"{key}/{found}", encoded)]
    return [*parts, Put(key, encode_value(told), ttl_ms)]


async def find(desk: Desk, digest: str) -> bytes | None:
    """The encoded result that somebody shared for the call with that digest, None if nobody did."""
    key = f"{CACHE}/{digest}"
    entry = await desk.entry(key)
    told = None if entry is None else entry.value
    if not isinstance(told, dict):
        return None
    if "result" in told:
        return encode_value(told["result"])
    found, size = told.get("result_digest"), told.get("result_bytes")
    if type(found) is not str or type(size) is not int or not 0 < size <= LARGE_BYTES_MAX:
        return None
    parts = []
    for part_key in large.keys_of_cut(f"{key}/{found}", size):
        part = await desk.entry(part_key)
        if part is None:
            return None
        parts.append(part.value)
    try:
        return large.joined_bytes(key, parts, found)
    except Corrupt:
        return None
