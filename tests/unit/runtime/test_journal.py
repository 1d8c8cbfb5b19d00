"""The journal at a desk in memory: places, keys, rooms, and what is loaded of it."""

import asyncio

import pytest
from anyio.lowlevel import checkpoint

from blackboard.core.commit import Put
from blackboard.errors import CallFailed, Conflict, Corrupt, Diverged, LimitExceeded
from blackboard.limits import LARGE_PART_BYTES, STEP_CALLS_MAX, STEP_PARTS_MAX, VALUE_BYTES_MAX
from blackboard.runtime import chunks as large, journal as module
from blackboard.runtime.calls import Call, CallOptions, Retry
from blackboard.runtime.journal import (
    Journal,
    JournalOrigin,
    Observer,
    StepPoint,
    StoredJournal,
    load,
    unobserved,
)
from blackboard.runtime.state import guard
from blackboard.runtime.trial import MemoryBoardPort
from blackboard.wire.codec import encode_large, encode_value

LOOK = Call("tool", "look", ["a"])
PREFIX = "private/ada/~journal"


async def journal(
    port: MemoryBoardPort, *, step: int = 1, strict: bool = False, observe: Observer = unobserved
) -> Journal:
    """What a process that begins has of it."""
    return Journal(port, JournalOrigin(step, guard("ada", 0), strict), await load(port), observe)


@pytest.fixture
def port() -> MemoryBoardPort:
    """Ada's."""
    return MemoryBoardPort("ada")


class Work:
    """Makes calls: counts them, keeps their keys, and fails the given number of times."""

    def __init__(self, result: object = "seen", failures: int = 0) -> None:
        self.result, self.failures = result, failures
        self.keys: list[str] = []

    async def __call__(self, key: str) -> bytes:
        self.keys.append(key)
        if len(self.keys) <= self.failures:
            raise ConnectionError("not yet")
        return encode_large(self.result)


async def test_a_call_is_made_once_by_however_many_processes(port: MemoryBoardPort) -> None:
    """The second one is answered."""
    work = Work()
    for _ in range(3):
        assert await (await journal(port)).call(LOOK, work, CallOptions()) == "seen"
    assert len(work.keys) == 1


async def test_each_place_has_a_key_of_its_own_and_keeps_it(port: MemoryBoardPort) -> None:
    """By board, agent, step and call; the same in every process."""
    keys = set()
    for step in (1, 2):
        for board in ("trial", "other"):
            for agent in ("ada", "bob"):
                at = MemoryBoardPort(agent, board)
                mine, again = await journal(at, step=step), await journal(at, step=step)
                for call in (LOOK, LOOK, Call("tool", "look", ["b"])):
                    slot = mine.place(call).slot
                    assert mine.idempotency_key(slot) == again.idempotency_key(slot)
                    keys.add(mine.idempotency_key(slot))
    assert len(keys) == 2 * 2 * 2 * 3


async def test_failures_are_recorded_before_the_next_attempt(port: MemoryBoardPort) -> None:
    """So a process that dies in a pause does not start counting again."""
    work, terms = Work(failures=2), CallOptions(retry=Retry(3, first_pause_ms=0))
    told: list[str] = []

    def dying(point: StepPoint, _: str) -> None:
        told.append(point.value)
        if (
            told.count(StepPoint.RECORDED.value) == 1
            and point is StepPoint.CALL_BEGUN
            and len(told) > 1
        ):
            raise SystemExit

    mine = await journal(port, observe=dying)
    with pytest.raises(SystemExit):
        await mine.call(LOOK, work, terms)
    assert await (await journal(port)).call(LOOK, work, terms) == "seen"
    [record] = (await load(port)).records.values()
    assert [failure.reason for failure in record.failures] == ["ConnectionError: not yet"] * 2
    assert len(set(work.keys)) == 1


async def test_a_failure_is_known_until_it_is_forgotten(port: MemoryBoardPort) -> None:
    """Results are kept, what failed may be tried again."""
    work, other = Work(failures=1), Call("tool", "other", [])
    mine = await journal(port)
    await mine.call(other, Work(), CallOptions())
    for _ in range(2):
        with pytest.raises(CallFailed):
            await (await journal(port)).call(LOOK, work, CallOptions())
    assert len(work.keys) == 1
    await (await journal(port)).forget_failures()
    assert [record.name for record in (await load(port)).records.values()] == ["other"]
    assert await (await journal(port)).call(LOOK, work, CallOptions()) == "seen"


async def test_nothing_is_recorded_for_an_overtaken_step(port: MemoryBoardPort) -> None:
    """Somebody took a step as this agent."""
    mine = await journal(port)
    port.seed("ada", Put("private/ada/~state", encode_value({"step": 1})))
    with pytest.raises(Conflict):
        await mine.call(LOOK, Work(), CallOptions())
    assert (await load(port)).records == {}


@pytest.mark.parametrize("terms", [CallOptions(), CallOptions(shared_ms=60_000)])
async def test_who_was_overtaken_leaves_no_part_of_a_large_result(
    port: MemoryBoardPort, terms: CallOptions
) -> None:
    """Neither in the journal nor for the team: the parts come before the record."""
    mine = await journal(port)
    port.seed("ada", Put("private/ada/~state", encode_value({"step": 1})))
    with pytest.raises(Conflict):
        await mine.call(LOOK, Work("x" * (5 * LARGE_PART_BYTES)), terms)
    assert len(port.log) == 1


async def test_who_was_overtaken_puts_nothing_ahead(port: MemoryBoardPort) -> None:
    """Nobody would remove it."""
    encoded = encode_large("x" * (5 * LARGE_PART_BYTES))
    mine = await journal(port)
    port.seed("ada", Put("private/ada/~state", encode_value({"step": 1})))
    with pytest.raises(Conflict):
        await mine.put_ahead({large.digest_of(encoded): encoded})
    assert len(port.log) == 1


async def test_who_was_overtaken_forgets_no_failure(port: MemoryBoardPort) -> None:
    """It is of a step that somebody else goes on with."""
    mine = await journal(port)
    with pytest.raises(CallFailed):
        await mine.call(LOOK, Work(failures=1), CallOptions())
    port.seed("ada", Put("private/ada/~state", encode_value({"step": 1})))
    with pytest.raises(Conflict):
        await mine.forget_failures()
    assert [record.outcome for record in (await load(port)).records.values()] == ["failed"]


async def test_a_replay_makes_no_call(port: MemoryBoardPort) -> None:
    """What is not recorded is Diverged; what is, is answered."""
    await (await journal(port)).call(LOOK, Work(), CallOptions())
    again = await journal(port, strict=True)
    assert await again.call(LOOK, Work("other"), CallOptions()) == "seen"
    with pytest.raises(Diverged) as diverged:
        await again.call(LOOK, Work(), CallOptions())
    assert (diverged.value.number, diverged.value.expected) == (1, "no call")


@pytest.mark.parametrize(("refused", "level"), [(False, "WARNING"), (True, "INFO")])
async def test_another_course_without_a_change_is_a_warning(
    port: MemoryBoardPort, caplog: pytest.LogCaptureFixture, *, refused: bool, level: str
) -> None:
    """After a refusal it is what one expects."""
    caplog.set_level("INFO", module.__name__)
    await (await journal(port)).call(LOOK, Work(), CallOptions())
    origin = JournalOrigin(1, guard("ada", 0), refused=refused)
    again = Journal(port, origin, await load(port), unobserved)
    await again.call(Call("tool", "look", ["b"]), Work(), CallOptions())
    assert again.diverged is not None
    assert [record.levelname for record in caplog.records] == [level]


async def test_a_step_makes_so_many_calls(port: MemoryBoardPort) -> None:
    """STEP_CALLS_MAX."""
    mine = await journal(port)
    for _ in range(STEP_CALLS_MAX):
        mine.place(LOOK)
    with pytest.raises(LimitExceeded) as refused:
        mine.place(LOOK)
    assert (refused.value.limit, refused.value.value) == ("STEP_CALLS_MAX", STEP_CALLS_MAX + 1)


async def test_a_step_has_room_for_so_many_parts(port: MemoryBoardPort) -> None:
    """STEP_PARTS_MAX; what is not large takes none, and what finds no room is a failure."""
    mine = await journal(port)
    mine.make_room(VALUE_BYTES_MAX)
    for _ in range(STEP_PARTS_MAX // 4):
        mine.make_room(4 * LARGE_PART_BYTES)
    work = Work("x" * VALUE_BYTES_MAX)
    with pytest.raises(CallFailed, match="STEP_PARTS_MAX"):
        await mine.call(LOOK, work, CallOptions(retry=Retry(3)))
    assert len(work.keys) == 1
    assert await mine.call(Call("tool", "small", []), Work(), CallOptions()) == "seen"


async def test_the_parts_of_a_result_that_is_known_take_room_as_well(port: MemoryBoardPort) -> None:
    """So that a step which runs again has no more parts than one that runs once."""
    await (await journal(port)).call(LOOK, Work("x" * VALUE_BYTES_MAX), CallOptions())
    again = await journal(port)
    await again.call(LOOK, Work(), CallOptions())
    again.make_room((STEP_PARTS_MAX - 3) * LARGE_PART_BYTES)
    with pytest.raises(LimitExceeded, match="STEP_PARTS_MAX"):
        again.make_room(VALUE_BYTES_MAX + 1)


async def test_a_large_result_is_whole_or_not_there(port: MemoryBoardPort) -> None:
    """A process that dies between its parts calls again."""
    work = Work("x" * (5 * LARGE_PART_BYTES))

    def dying(point: StepPoint, _: str) -> None:
        if point is StepPoint.RECORDING:
            raise SystemExit

    with pytest.raises(SystemExit):
        await (await journal(port, observe=dying)).call(LOOK, work, CallOptions())
    kept = await load(port)
    assert (kept.records, [len(parts) for parts in kept.parts.values()]) == ({}, [4])
    for _ in range(2):
        assert await (await journal(port)).call(LOOK, work, CallOptions()) == work.result
    assert len(work.keys) == 2


async def test_a_part_that_is_missing_is_corrupt(port: MemoryBoardPort) -> None:
    """Nothing is made up of the rest."""
    await (await journal(port)).call(LOOK, Work("x" * VALUE_BYTES_MAX), CallOptions())
    kept = await load(port)
    [slot] = kept.records
    kept.parts[slot].popitem()
    with pytest.raises(Corrupt):
        kept.result_of(slot)


async def test_what_is_put_ahead_is_noted_and_put_once(port: MemoryBoardPort) -> None:
    """By the digest; the last part says that all are there."""
    encoded = encode_large("x" * (5 * LARGE_PART_BYTES))
    digest = large.digest_of(encoded)
    for _ in range(2):
        await (await journal(port)).put_ahead({digest: encoded})
        assert (await load(port)).ahead == {digest}
        assert len(port.log) == 2
    assert port.log[0].changes[0].key == f"{PREFIX}/~kept/{digest}"


async def test_calls_at_once_are_waited_for(port: MemoryBoardPort) -> None:
    """Before a step ends, also when another call of it failed."""
    mine, go = await journal(port), asyncio.Event()

    async def slow(_: str) -> bytes:
        await go.wait()
        return encode_value("late")

    calling = asyncio.create_task(mine.call(LOOK, slow, CallOptions()))
    settling = asyncio.create_task(mine.settle())
    await checkpoint()
    assert not settling.done()
    go.set()
    await settling
    assert (await calling, [call.result for call in mine.made]) == ("late", ["late"])


def test_what_is_no_record_is_corrupt() -> None:
    """By any author."""
    port = MemoryBoardPort("ada")
    port.seed("ada", Put(f"{PREFIX}/slot", encode_value({"number": -1})))
    with pytest.raises(Corrupt) as found:
        asyncio.run(load(port))
    assert found.value.what == f"{PREFIX}/slot"


def test_nothing_is_kept_at_first() -> None:
    """No records, no results, no timers."""
    assert StoredJournal() == StoredJournal({}, {}, {}, set(), set())
