"""What is shared is found by others as it was; anything else is nobody's result."""

from pathlib import Path
from typing import Any

import pytest

import blackboard
from blackboard.limits import LARGE_BYTES_MAX, LARGE_PART_BYTES, VALUE_BYTES_MAX
from blackboard.runtime import chunks as large, journal as shared
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.wire.codec import encode_large, encode_value

CALL = "d" * 64


@pytest.mark.parametrize(
    ("size_bytes", "puts"),
    [
        (1, 1),
        (VALUE_BYTES_MAX - 5_000, 1),
        (VALUE_BYTES_MAX - 4_000, 3),
        (3 * LARGE_PART_BYTES, 5),
    ],
)
async def test_what_is_shared_is_found(tmp_path: Path, size_bytes: int, puts: int) -> None:
    encoded = encode_large("x" * size_bytes)
    ops = shared.answer(CALL, "fetch", encoded, 60_000)
    assert len(ops) == puts
    assert {op.ttl_ms for op in ops} == {60_000}
    assert ops[-1].key == f"{shared.CACHE}/{CALL}"
    async with blackboard.open(tmp_path) as client:
        port = LiveBoardPort(client.board("main").as_agent("bob"))
        *parts, answer = ops
        for some in large.batches(parts):
            await port.commit(some)
        assert await shared.find(port, CALL) is None
        await port.commit([answer])
        assert await shared.find(port, CALL) == encoded


@pytest.mark.parametrize(
    "told",
    [
        5,
        {},
        {"result_digest": 1, "result_bytes": 1},
        {"result_digest": "x", "result_bytes": "1"},
        {"result_digest": "x", "result_bytes": True},
        {"result_digest": "x", "result_bytes": 0},
        {"result_digest": "x", "result_bytes": LARGE_BYTES_MAX + 1},
        {"result_digest": "x", "result_bytes": 1},
    ],
)
async def test_what_is_no_answer_is_as_good_as_none(tmp_path: Path, told: Any) -> None:
    async with blackboard.open(tmp_path) as client:
        board = client.board("main").as_agent("bob")
        await board.put(f"{shared.CACHE}/{CALL}", told)
        assert await shared.find(LiveBoardPort(board), CALL) is None


async def test_parts_of_something_else_are_as_good_as_none(tmp_path: Path) -> None:
    *parts, answer = shared.answer(CALL, "fetch", encode_large("x" * VALUE_BYTES_MAX), 60_000)
    async with blackboard.open(tmp_path) as client:
        port = LiveBoardPort(client.board("main").as_agent("bob"))
        await port.commit([answer, *parts[:-1]])
        assert await shared.find(port, CALL) is None
        await port.commit([blackboard.ops.Put(parts[-1].key, encode_value(b"y"))])
        assert await shared.find(port, CALL) is None
        await port.commit([parts[-1]])
        assert await shared.find(port, CALL) is not None
