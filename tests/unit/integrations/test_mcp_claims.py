"""Claims that tool calls take and give back: real leases on a real board."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import blackboard
from blackboard import Board
from blackboard.errors import Fenced, LeaseHeld, Unavailable
from blackboard.integrations.mcp import AgentSession
from blackboard.integrations.mcp.arguments import CLAIM_S_MAX, WAIT_S_MAX
from blackboard.integrations.mcp.claims import CLAIMS_MAX
from blackboard.ops import Put, Release, encode_value
from tests.unit.integrations.mcp_clients import Caller, caller
from tests.unit.server.hooked import client_of, service_over
from tests.waiting import wait_until

FILE = "public/files/src/app.py"


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Board]:
    """The operator's board."""
    async with blackboard.open(tmp_path, level="memory") as client:
        yield client.board("team")


@pytest.fixture
async def ann(team: Board) -> AsyncIterator[Caller]:
    """An agent."""
    async with caller(team.as_agent("ann")) as called:
        yield called


@pytest.fixture
async def bob(team: Board) -> AsyncIterator[Caller]:
    """Another agent."""
    async with caller(team.as_agent("bob")) as called:
        yield called


async def is_waited_for(team: Board, key: str = FILE, waiters: int = 1) -> None:
    """Return when so many wait for the lease."""

    async def joined() -> bool:
        return [len(one.waiters) for one in await team.leases(key)] == [waiters]

    await wait_until(joined)


async def is_lost(session: AgentSession) -> None:
    """Return when the session holds no claim."""

    async def gone() -> bool:
        return not len(session.claims)

    await wait_until(gone)


async def take_away(team: Board) -> None:
    """The operator ends the lease."""
    (lease,) = await team.leases(FILE)
    await team.commit([Release(lease.key, lease.holder, lease.fence)])


async def test_one_claims_and_the_other_is_told_who(ann: Caller, bob: Caller) -> None:
    claimed = await ann("claim", key=FILE, seconds=100)
    assert (claimed["holder"], claimed["seconds"]) == ("ann", 100)
    error = await bob.fails("claim", key=FILE)
    assert (error["code"], error["key"], error["holder"]) == ("lease_held", FILE, "ann")
    assert (await bob("claims", pattern="public/files/**"))["claims"] == [
        {"key": FILE, "holder": "ann", "waiting": 0}
    ]
    assert (await ann("release", key=FILE))["released"] is True
    assert (await ann("release", key=FILE))["released"] is False
    await bob("claim", key=FILE)


async def test_whoever_waits_gets_it_next(ann: Caller, bob: Caller, team: Board) -> None:
    await ann("claim", key=FILE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: bob("claim", key=FILE, wait_s=WAIT_S_MAX))
        await is_waited_for(team)
        await ann("release", key=FILE)
    assert (await ann.fails("claim", key=FILE))["holder"] == "bob"
    error = await ann.fails("claim", key=FILE, wait_s=0.1)
    assert error["code"] == "lease_held"
    assert [len(one.waiters) for one in await team.leases(FILE)] == [0]


async def test_the_end_of_a_claim_wakes_a_wait(ann: Caller, bob: Caller) -> None:
    await ann("claim", key=FILE)
    before = await bob("wait", patterns=FILE, seconds=0)
    await ann("release", key=FILE)
    woken = await bob("wait", patterns=FILE, after=before["next"])
    assert [one["kind"] for one in woken["changes"]] == ["release"]


async def test_changes_carry_the_fences_of_all_claims(ann: Caller, team: Board) -> None:
    """Even if this process has not noticed yet that a claim is gone."""
    await ann("claim", key=FILE)
    await ann("claim", key="public/tasks/1")
    session = ann.session
    assert session is not None
    (fence,) = (one for one in session.claims.fences() if one.key == FILE)
    assert len(session.claims.fences()) == 2
    await take_away(team)
    with pytest.raises(Fenced):
        await session.board.commit([Put("public/x", encode_value(1))], fences=[fence])
    error = await ann.fails("write", key="public/x", value=1)
    assert (error["code"], error["keys"]) == ("claim_lost", [FILE])
    assert "nothing was changed" in error["message"]
    assert (await ann("read", keys="public/x"))["absent"] == ["public/x"]
    await is_lost_key(session, FILE)
    # It has been told; what it does now it does knowingly.
    await ann("write", key="public/x", value=2)


async def is_lost_key(session: AgentSession, key: str) -> None:
    """Return when the session does not hold `key`."""

    async def gone() -> bool:
        return key not in session.claims

    await wait_until(gone)


async def test_a_claim_that_was_noticed_to_be_lost_is_told_once(ann: Caller, team: Board) -> None:
    session = ann.session
    assert session is not None
    await ann("claim", key=FILE)
    await take_away(team)
    await is_lost(session)  # at the next renewal, a third of the time to live later
    for _ in range(2):
        await ann("read", keys="public/x")  # reading goes on
    assert (await ann.fails("delete", key="public/x"))["code"] == "claim_lost"
    assert (await ann("delete", key="public/x"))["removed"] is False


async def test_a_lost_claim_that_is_taken_again_is_no_surprise(ann: Caller, team: Board) -> None:
    session = ann.session
    assert session is not None
    await ann("claim", key=FILE)
    await take_away(team)
    await is_lost(session)
    await ann("claim", key=FILE)
    await ann("write", key="public/x", value=1)


async def test_a_claim_ends_when_its_time_is_over(ann: Caller, bob: Caller) -> None:
    await ann("claim", key=FILE, seconds=0.2)
    await bob("claim", key=FILE, wait_s=WAIT_S_MAX)
    error = await ann.fails("write", key="public/x", value=1)
    assert error["code"] == "claim_lost"
    assert "seconds were over" in error["message"]


async def test_a_claim_is_prolonged_by_claiming_again(ann: Caller, team: Board) -> None:
    await ann("claim", key=FILE, seconds=0.5)
    assert (await ann("claim", key=FILE, seconds=60))["seconds"] == 60
    assert ann.session is not None
    held = ann.session.claims._held[FILE]
    until_s = held._until_s
    await ann("claim", key=FILE, seconds=1)
    assert held._until_s == until_s  # never shortened
    (lease,) = await team.leases(FILE)
    first = await ann("wait", patterns=FILE, seconds=1)
    assert first["timed_out"]
    assert [one.fence for one in await team.leases(FILE)] == [lease.fence]


async def test_a_claim_that_is_just_ending_is_taken_again(tmp_path: Path) -> None:
    """Its release is on the way: the board has it still, and then no more."""
    is_ending, is_seen = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        is_ending.set()
        await is_seen.wait()

    async def look() -> None:
        is_seen.set()

    async with service_over(tmp_path) as (service, store):
        board = client_of(service, "ann").board("team")
        async with caller(board) as ann:
            first = await ann("claim", key=FILE, seconds=0.2)
            store.hook("before commit", wait)
            await is_ending.wait()
            store.hook("after leases", look)
            assert (await ann("claim", key=FILE, seconds=60))["holder"] == first["holder"]
            assert len(await board.leases(FILE)) == 1
            assert (await ann("release", key=FILE))["released"] is True


async def test_claims_have_a_limit(ann: Caller) -> None:
    for number in range(CLAIMS_MAX):
        await ann("claim", key=f"public/files/{number}")
    error = await ann.fails("claim", key="public/files/one-more")
    assert error["code"] == "too_many_claims"
    await ann("claim", key="public/files/0")  # which it has
    await ann("release", key="public/files/0")
    await ann("claim", key="public/files/one-more")
    assert (await ann.fails("claim", key=FILE, seconds=CLAIM_S_MAX + 1))["fix"]
    await ann("write", key="public/x", value=1)  # with all those fences


async def test_a_cancelled_claim_leaves_the_queue(ann: Caller, bob: Caller, team: Board) -> None:
    await ann("claim", key=FILE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: bob("claim", key=FILE, wait_s=WAIT_S_MAX))
        await is_waited_for(team)
        tasks.cancel_scope.cancel()
    await is_waited_for(team, waiters=0)
    session = bob.session
    assert session is not None
    await is_lost(session)
    await ann("release", key=FILE)
    assert await team.leases(FILE) == ()
    await bob("write", key="public/x", value=1)  # nothing was lost: it never had it


async def test_a_cancelled_claim_cancels_no_other_call(
    ann: Caller, bob: Caller, team: Board
) -> None:
    """Two calls for one key: the second one keeps the place of the first one in the queue."""
    await ann("claim", key=FILE)
    assert bob.session is not None
    claims = bob.session.claims
    first = asyncio.ensure_future(claims.claim(FILE, 60, WAIT_S_MAX))
    await is_waited_for(team)
    second = asyncio.ensure_future(claims.claim(FILE, 60, WAIT_S_MAX))
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    await is_waited_for(team)
    await ann("release", key=FILE)
    await second
    assert claims.keys() == [FILE]
    assert [lease.holder.split("~")[0] for lease in await team.leases(FILE)] == ["bob"]


async def test_a_call_waits_for_as_long_as_it_says(ann: Caller, bob: Caller, team: Board) -> None:
    """Also when it comes upon one for the same key that does not wait."""
    await ann("claim", key=FILE)
    assert bob.session is not None
    claims = bob.session.claims
    first = asyncio.ensure_future(claims.claim(FILE, 60, 0))
    second = asyncio.ensure_future(claims.claim(FILE, 60, WAIT_S_MAX))
    await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(first.exception(), LeaseHeld)
    await is_waited_for(team)
    await ann("release", key=FILE)
    await second
    assert claims.keys() == [FILE]


async def test_a_call_that_waits_for_another_ends_with_the_session(
    ann: Caller, bob: Caller, team: Board
) -> None:
    """It begins no claim of its own then."""
    await ann("claim", key=FILE)
    assert bob.session is not None
    first = asyncio.ensure_future(bob.session.claims.claim(FILE, 60, WAIT_S_MAX))
    await is_waited_for(team)
    second = asyncio.ensure_future(bob.session.claims.claim(FILE, 60, WAIT_S_MAX))
    await bob.session.aclose()
    await asyncio.wait([first, second])
    assert isinstance(second.exception(), Unavailable)
    await is_waited_for(team, waiters=0)
    assert not len(bob.session.claims)


async def test_the_end_of_a_session_gives_everything_back(team: Board) -> None:
    """Claims, and places in queues; no task stays."""
    async with caller(team.as_agent("ann")) as ann:
        await ann("claim", key=FILE)
        async with caller(team.as_agent("bob")) as bob:
            await bob("claim", key="public/files/b")
            assert bob.session is not None
            waiting = asyncio.ensure_future(bob.session.claims.claim(FILE, 60, WAIT_S_MAX))
            await is_waited_for(team)
            await bob.session.aclose()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            assert await team.leases("public/files/b") == ()
            await is_waited_for(team, waiters=0)
    assert await team.leases(FILE) == ()
    assert not [one for one in asyncio.all_tasks() if one.get_name().startswith("claim of")]


async def test_a_restore_ends_claims_and_says_so(ann: Caller, team: Board) -> None:
    await ann("write", key="public/x", value=1)
    await team.checkpoint("one")
    await ann("write", key="public/x", value=2)
    await ann("claim", key=FILE)
    await team.restore("one")
    codes: list[Any] = []
    for _ in range(2):
        codes.append((await ann.fails("write", key="public/x", value=3))["code"])
    assert sorted(codes) == ["claim_lost", "stale_epoch"]
    assert await team.get("public/x") == 1
    await ann("claim", key=FILE)
    await ann("write", key="public/x", value=3)


async def test_after_a_restore_a_change_is_refused_once(ann: Caller, team: Board) -> None:
    await ann("write", key="public/x", value=1)
    await team.checkpoint("one")
    await ann("write", key="public/x", value=2)
    await team.restore("one")
    error = await ann.fails("write", key="public/x", value=3)
    assert error["code"] == "stale_epoch"
    assert "Read again" in error["fix"]
    (entry,) = (await ann("read", keys="public/x"))["entries"]
    assert entry["value"] == 1
    await ann("write", key="public/x", value=3, expected_revision=entry["revision"])


@pytest.mark.parametrize(
    ("tool", "arguments"), [("claim", {"key": FILE}), ("ask", {"question": "Deploy it?"})]
)
async def test_after_a_restore_every_tool_is_refused_once(
    ann: Caller, team: Board, tool: str, arguments: dict[str, Any]
) -> None:
    """Also those that write no entry of the caller's choice."""
    await ann("write", key="public/x", value=1)
    await team.checkpoint("one")
    await team.restore("one")
    assert (await ann.fails(tool, **arguments))["code"] == "stale_epoch"
    await ann(tool, **arguments)


@pytest.mark.parametrize("key", ["", "nowhere", "public/**", "private/bob/x", "x" * 2_000])
async def test_what_cannot_be_claimed_is_refused(ann: Caller, key: str) -> None:
    error = await ann.fails("claim", key=key)
    assert error["code"] in ("invalid_request", "access_denied", "limit_exceeded")
    session = ann.session
    assert session is not None
    assert not len(session.claims)
    await ann("write", key="public/x", value=1)
