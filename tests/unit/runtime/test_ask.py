"""Asking for an approval without the runtime: `blackboard.ask`, on a real board."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import blackboard
from blackboard import Board
from blackboard.errors import AccessDenied, Conflict, InvalidRequest
from blackboard.limits import APPROVAL_FACTS_MAX

PRICE = "public/price"


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Board]:
    """The operator's board, with a price."""
    async with blackboard.open(tmp_path, level="memory") as client:
        board = client.board("team")
        await board.put(PRICE, 1500)
        yield board


@pytest.fixture
def buyer(team: Board) -> Board:
    """An agent's."""
    return team.as_agent("buyer")


async def answer_all(team: Board, *, approved: bool, reason: str = "") -> None:
    """Answer whatever waits."""
    for one in await blackboard.pending(team):
        if one.answer is None:
            await blackboard.answer(team, one, approved=approved, reason=reason)


async def test_the_answer_is_there_at_the_next_call(team: Board, buyer: Board) -> None:
    assert await blackboard.ask(buyer, "buy-1", "Buy?", facts=[PRICE]) is None
    head = await buyer.head()
    assert await blackboard.ask(buyer, "buy-1", "Buy?", facts=[PRICE]) is None
    assert (await buyer.head()).revision == head.revision  # it was not asked twice
    await answer_all(team, approved=True, reason="cheap")
    decision = await blackboard.ask(buyer, "buy-1", "Buy?", facts=[PRICE])
    assert decision
    assert (decision.by, decision.reason, decision.facts) == ("operator", "cheap", {PRICE: 1500})


async def test_a_rejection_is_a_decision_too(team: Board, buyer: Board) -> None:
    await blackboard.ask(buyer, "buy-1", "Buy?")
    await answer_all(team, approved=False, reason="no money")
    decision = await blackboard.ask(buyer, "buy-1", "Buy?")
    assert decision is not None
    assert not decision
    assert decision.reason == "no money"


@pytest.mark.parametrize("change", ["fact", "facts", "question", "details", "approvers"])
async def test_what_was_answered_is_not_what_is_asked_now(
    team: Board, buyer: Board, change: str
) -> None:
    await blackboard.ask(buyer, "buy-1", "Buy?", facts=[PRICE], details={"n": 1})
    await answer_all(team, approved=True)
    if change == "fact":
        await team.put(PRICE, 1600)
    decision = await blackboard.ask(
        buyer,
        "buy-1",
        "Buy two?" if change == "question" else "Buy?",
        facts=[] if change == "facts" else [PRICE],
        details={"n": 2} if change == "details" else {"n": 1},
        approvers=["boss"] if change == "approvers" else [],
    )
    assert decision is None
    (request,) = await blackboard.pending(team)
    assert (request.answer, request.request.asked) == (None, 2)
    assert [(fact.was, fact.now) for fact in request.request.changed] == (
        [(1500, 1600)] if change == "fact" else []
    )


async def test_only_those_that_may_answer(team: Board, buyer: Board) -> None:
    await blackboard.ask(buyer, "buy-1", "Buy?", approvers=["boss"])
    (request,) = await blackboard.pending(team)
    with pytest.raises(InvalidRequest, match="your own account"):
        await blackboard.answer(buyer, request, approved=True)
    with pytest.raises(InvalidRequest, match="only boss may answer"):
        await blackboard.answer(team, request, approved=True)
    decision = {"approved": True, "request": request.revision, "reason": ""}
    with pytest.raises(AccessDenied):
        await buyer.put("public/~decisions/buyer/buy-1", decision)
    await team.put("public/~decisions/buyer/buy-1", decision)  # it may, but does not count
    assert await blackboard.ask(buyer, "buy-1", "Buy?", approvers=["boss"]) is None


async def test_bad_requests_are_refused(buyer: Board) -> None:
    many = [f"public/{number}" for number in range(APPROVAL_FACTS_MAX + 1)]
    with pytest.raises(InvalidRequest, match="facts"):
        await blackboard.ask(buyer, "buy-1", "Buy?", facts=many)
    for name in ("", "a/b", "x" * 200):
        with pytest.raises((InvalidRequest, blackboard.errors.LimitExceeded)):
            await blackboard.ask(buyer, name, "Buy?")
    with pytest.raises(AccessDenied):
        await blackboard.ask(buyer, "buy-1", "Buy?", facts=["private/eve/x"])
    assert await blackboard.pending(buyer) == ()


async def test_two_processes_that_ask_the_same_make_one_request(buyer: Board, team: Board) -> None:
    """The second one finds it, or is told of it by a Conflict and finds it then."""
    other = Board(buyer._link, buyer.name)
    both = [blackboard.ask(one, "buy-1", "Buy?") for one in (buyer, other)]
    for found in await asyncio.gather(*both, return_exceptions=True):
        assert found is None or isinstance(found, Conflict)
    (request,) = await blackboard.pending(team)
    assert request.request.asked == 1


def test_it_works_without_async() -> None:
    with blackboard.sync.open(tempfile.mkdtemp(), level="memory") as client:
        team = client.board("team")
        buyer = team.as_agent("buyer")
        assert blackboard.sync.ask(buyer, "buy-1", "Buy?") is None
        (request,) = blackboard.sync.pending(team)
        blackboard.sync.answer(team, request, approved=True)
        decision = blackboard.sync.ask(buyer, "buy-1", "Buy?")
        assert decision is not None
        assert decision.approved
