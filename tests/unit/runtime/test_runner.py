"""A step and its commit: what guards it, and how long it pauses."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.client.board import Board
from blackboard.core.commit import Put
from blackboard.core.path import barrier_key
from blackboard.limits import (
    CALL_INLINE_BYTES,
    DEFAULT,
    OPERATIONS_MAX,
    STEP_ATTEMPTS_MAX,
    STEP_CALLS_MAX,
)
from blackboard.runtime.approvals import Answer
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.context import Context
from blackboard.runtime.runner import Runner, _pause_s
from blackboard.runtime.trial import MemoryBoardPort
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.conformance.acting import Actor, Notes, keys_below, notes_of, runner
from tests.unit.server.hooked import client_of, service_over

HEAD_BYTES = 3
"""Bytes by which text of 256 to 65,535 bytes is longer as msgpack."""


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service."""
    async with service_over(tmp_path) as (service, _):
        yield service


@pytest.fixture
def ada(service: Service) -> Board:
    """The board as agent ada."""
    return client_of(service).board("main").as_agent("ada")


async def test_a_desk_answers_a_checkpoint_that_waits(service: Service, ada: Board) -> None:
    """By the commit itself, which says that all it knows is in there."""
    key = barrier_key("ada")
    await (await service.boards.use("main")).commit_as_system([Put(key, encode_value(1))])
    receipt = await LiveBoardPort(ada).commit([Put("public/a", encode_value(1))])
    [done] = await ada.log(after=1)
    assert (done.revision, [change.key for change in done.changes]) == (
        receipt.revision,
        ["public/a", key],
    )
    assert len(receipt.results) == 1


async def test_a_step_is_refused_when_another_process_took_it(ada: Board) -> None:
    """It has the condition that the state is the one that it began with, and nothing else here."""

    async def count(ctx: Context[Notes]) -> None:
        ctx.state.count += 1

    async def slow(ctx: Context[Notes]) -> None:
        if ctx.run.attempt == 1:
            await runner(ada, count).step()
        ctx.state.count += 10

    stepped = await runner(ada, slow).step()
    assert (stepped.attempts, stepped.number, (await notes_of(ada)).count) == (2, 2, 11)


@pytest.mark.parametrize(("more", "apart"), [(0, False), (1, True)])
async def test_a_result_stands_in_its_record_up_to_a_size(
    ada: Board, more: int, *, apart: bool
) -> None:
    """CALL_INLINE_BYTES, encoded."""

    async def text() -> str:
        return "x" * (CALL_INLINE_BYTES - HEAD_BYTES + more)

    async def step(ctx: Context[Notes]) -> None:
        await ctx.tool(text)
        found.extend(await keys_below(ada, "private/ada/~journal/**"))

    found: list[str] = []
    stepped = await runner(ada, step).step()
    assert any(key.endswith("/result") for key in found) is apart
    assert [call.apart for call in stepped.calls] == [apart]


async def test_a_step_commits_whatever_its_earlier_runs_left() -> None:
    """More records than one operation removes, each of a call that the last run did not make."""
    port = MemoryBoardPort("ada")
    runs: list[int] = []

    async def look(run: int, number: int) -> int:
        return run + number

    async def step(ctx: Context[Notes]) -> None:
        runs.append(len(runs))
        for number in range(STEP_CALLS_MAX):
            await ctx.tool(look, len(runs), number)
        if len(runs) * STEP_CALLS_MAX <= OPERATIONS_MAX:
            raise TimeoutError

    acting = Runner(Actor("ada", step), port)
    while len(runs) * STEP_CALLS_MAX < OPERATIONS_MAX:
        with pytest.raises(TimeoutError):
            await acting.step()
    stepped = await acting.step()
    assert stepped.receipt is not None
    assert [call.arguments[0] for call in stepped.calls] == [len(runs)] * STEP_CALLS_MAX
    assert (await port.list("private/ada/~journal/**")).entries == ()


@pytest.mark.parametrize(
    "left",
    [
        ["public/~approvals/ada/{}", "public/~decisions/ada/{}"],
        ["private/ada/~kept/{}/0000", "private/ada/~kept/{}/0001", "private/ada/~journal/~kept/{}"],
    ],
)
async def test_a_step_commits_whatever_was_asked_or_kept_by_its_earlier_runs(
    left: list[str],
) -> None:
    """More requests, or large values put ahead, than one operation removes."""
    port = MemoryBoardPort("ada")

    async def step(ctx: Context[Notes]) -> None:
        ctx.state.count += 1
        await ctx.approve("go on")

    acting = Runner(Actor("ada", step), port)
    await acting.step()
    for number in range(OPERATIONS_MAX):
        port.seed("ada", *[Put(key.format(number), encode_value(True)) for key in left])
    await approve_first(port)
    assert (await acting.step()).receipt is not None
    for key in left:
        assert (await port.list(f"{key.partition('{')[0]}**")).entries == ()


async def approve_first(port: MemoryBoardPort) -> None:
    """Approve what ada asked in words."""
    asked = (await port.list("public/~approvals/ada/*")).entries
    [request] = [entry for entry in asked if entry.value is not True]
    answer = Answer(approved=True, request=request.mod_revision).model_dump()
    key = request.key.replace("~approvals", "~decisions")
    port.seed("bob", Put(key, encode_value(answer)))


def test_pauses_between_attempts_grow_up_to_a_limit() -> None:
    """STEP_PAUSE_MS_MAX; each is shortened at random, by half at most."""
    pauses_s = [_pause_s(attempt, DEFAULT) for attempt in range(1, STEP_ATTEMPTS_MAX + 60)]
    assert max(pauses_s) <= DEFAULT.agents.step_pause_ms_max / 1000
    assert min(pauses_s[10:]) >= DEFAULT.agents.step_pause_ms_max / 2000
    assert pauses_s[0] <= 0.02
