"""What is shared is found by others as it was; anything else is nobody's result."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import blackboard
from blackboard.client.views import Entry, Receipt
from blackboard.core.commit import Op, Put
from blackboard.errors import AccessDenied, LimitExceeded, Rejected
from blackboard.limits import (
    CALL_INLINE_BYTES,
    LARGE_BYTES_MAX,
    LARGE_PART_BYTES,
    VALUE_BYTES_MAX,
)
from blackboard.runtime import chunks as large, journal as shared
from blackboard.runtime.agent import Agent
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.calls import Call, CallOptions
from blackboard.runtime.context import Context
from blackboard.runtime.journal import Journal, JournalOrigin
from blackboard.runtime.models import Prompt, ScriptedModel
from blackboard.runtime.runner import Runner
from blackboard.runtime.state import guard, state_key
from blackboard.runtime.trial import MemoryBoardPort
from blackboard.units import Key
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
        {"result_digest": "*", "result_bytes": 5},
        {"result_digest": "../x", "result_bytes": 5},
        {"result_digest": "", "result_bytes": 5},
        {"result_digest": "x" * 2_000, "result_bytes": 5},
        {"result_digest": "A" * 64, "result_bytes": 5},
        {"result_digest": "a" * 64 + "\n", "result_bytes": 5},
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


class NarrowPort(MemoryBoardPort):
    """A board on which the agent may not use what the team shares, or finds no room there."""

    def __init__(self, refusal: Rejected, *, may_read: bool) -> None:
        super().__init__("ada")
        self.refusal, self.may_read = refusal, may_read

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`."""
        if key.startswith(shared.CACHE) and not self.may_read:
            raise self.refusal
        return await super().entry(key)

    async def commit(self, ops: Sequence[Op], **parts: Any) -> Receipt:
        """Carry out `ops`."""
        if any(isinstance(op, Put) and op.key.startswith(shared.CACHE) for op in ops):
            raise self.refusal
        return await super().commit(ops, **parts)


@pytest.mark.parametrize("size_bytes", [1, CALL_INLINE_BYTES, 5 * LARGE_PART_BYTES])
@pytest.mark.parametrize(
    ("refusal", "may_read"),
    [
        (AccessDenied("ada", "write", shared.CACHE), True),
        (AccessDenied("ada", "read", shared.CACHE), False),
        (LimitExceeded("NAMESPACE_BYTES_MAX", 2, 1), True),
    ],
)
async def test_a_result_that_cannot_be_shared_is_recorded_all_the_same(
    size_bytes: int, refusal: Rejected, *, may_read: bool
) -> None:
    """The call was made, and is not made again."""
    port, made = NarrowPort(refusal, may_read=may_read), []

    async def work(_: str) -> bytes:
        made.append(1)
        return encode_large("x" * size_bytes)

    for _ in range(2):
        origin = JournalOrigin(1, guard("ada", 0))
        journal = Journal(port, origin, await shared.load(port), shared.unobserved)
        call = Call("tool", "fetch", [])
        assert await journal.call(call, work, CallOptions(shared_ms=60_000)) == "x" * size_bytes
    assert made == [1]
    assert (await port.list(f"{shared.CACHE}/**")).entries == ()


class Price(BaseModel):
    """What the tool returns."""

    usd: int


def price(item: str) -> Price:
    """A tool."""
    return Price(usd=len(item))


class Notes(BaseModel):
    """What the buyer knows."""

    usd: int = 0
    said: str = ""


class Buyer(Agent[Notes]):
    """Makes calls that the team shares."""

    model = ScriptedModel(lambda _: "seven")

    async def step(self, ctx: Context[Notes]) -> None:
        """Both kinds of calls."""
        terms = CallOptions(shared_ms=60_000)
        ctx.state.usd = (await ctx.tool(price, "tea", terms=terms)).usd
        ctx.state.said = (await ctx.model(self.model, Prompt.of("How much?"), terms=terms)).text


@pytest.mark.parametrize("result", ["a text", {"usd": "much"}, None, [1]])
async def test_a_result_of_another_kind_is_not_taken(result: Any) -> None:
    """It would be in the journal, and end every run of the step."""
    port = MemoryBoardPort("ada")
    asked = Prompt.of("How much?").plain()
    for call in Call("tool", "price", ["tea"]), Call("model", "scripted", asked):
        port.seed("bob", *shared.answer(call.digest, call.name, encode_value(result), 60_000))
    stepped = await Runner(Buyer("ada"), port).step()
    assert [call.shared for call in stepped.calls] == [False, False]
    entry = await port.entry(state_key("ada"))
    assert entry is not None
    assert entry.value["state"] == {"usd": 3, "said": "seven"}
    other = MemoryBoardPort("carl")
    for entry in (await port.list("public/~cache/*")).entries:
        other.seed("ada", blackboard.ops.Put(entry.key, encode_value(entry.value)))
    stepped = await Runner(Buyer("carl"), other).step()
    assert [call.shared for call in stepped.calls] == [True, True]
