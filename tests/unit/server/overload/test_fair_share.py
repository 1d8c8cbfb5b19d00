"""Fair shares of the event loop: no account waits behind all requests of another."""

import asyncio

import pytest
from anyio.lowlevel import checkpoint

from blackboard.server.overload.charges import Shares, frame_us
from tests.lowered import lowered

COMPANY_S = 60.0
COMPANY = lowered(shared_ms=60_000)
"""Accounts count as active for longer than a test takes."""
LOAD = COMPANY.load
FULL = float(LOAD.round_us)


async def take(shares: Shares, account: str, order: list[str], cost_us: float = FULL) -> None:
    """One item, noted when it is given."""
    await shares.wait(account, cost_us)
    order.append(account)


async def test_who_is_alone_has_long_rounds() -> None:
    """But not endless ones: another account may come, and is then next."""
    shares, order = Shares(COMPANY), list[str]()
    assert all(shares.at_once("ada", FULL) for _ in range(LOAD.lone_round_us // LOAD.round_us))
    assert not shares.at_once("ada", 1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(100):
            tasks.create_task(take(shares, "ada", order))
        await checkpoint()
        tasks.create_task(take(shares, "bob", order))
    assert order.index("bob") <= 2 * (LOAD.lone_round_us // LOAD.round_us) + 2


async def test_a_round_takes_on_so_much() -> None:
    """The first ones of several, and then no more in this round; in the next one again."""
    shares = Shares(COMPANY)
    shares.at_once("ada", 1)
    assert shares.at_once("bob", FULL - 2)
    assert shares.at_once("ada", 1)
    assert not shares.at_once("ada", 1)
    assert not shares.at_once("bob", 1)
    assert shares.at_once("eve", LOAD.full_round_us - FULL), "who comes with her first"
    assert not shares.at_once("dan", 1), "but a full round is full"
    await checkpoint()  # the next round
    assert shares.at_once("bob", 1)


async def test_one_request_is_not_behind_a_thousand() -> None:
    """It waits for at most one of them."""
    shares, order = Shares(COMPANY), list[str]()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        shares.at_once("ada", 1)
        for _ in range(1_000):
            tasks.create_task(take(shares, "bob", order))
        await checkpoint()
        assert shares.waiting > 990
        tasks.create_task(take(shares, "ada", order))
    assert order.index("ada") <= 3
    assert len(order) == 1_001
    assert shares.waiting == 0


async def test_who_has_something_waiting_does_not_pass_himself() -> None:
    """Nor earlier requests of the same account."""
    shares, order = Shares(COMPANY), list[str]()
    shares.at_once("ada", 1)
    tasks = [asyncio.create_task(take(shares, "bob", order)) for _ in range(5)]
    await checkpoint()
    assert not shares.at_once("bob", 1)
    await asyncio.gather(*tasks)


async def test_rounds_go_on_while_somebody_waits() -> None:
    """And others run between them: each round gives no more than it takes on."""
    shares, order = Shares(COMPANY), list[str]()
    shares.at_once("ada", 1)
    tasks = [asyncio.create_task(take(shares, "bob", order)) for _ in range(20)]
    seen = []
    while not all(task.done() for task in tasks):
        await checkpoint()
        seen.append(len(order))
    steps = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    assert max(steps) <= 2
    assert sum(steps) == 20


async def test_who_gives_up_keeps_nobody_waiting() -> None:
    """The requests behind it are still granted."""
    shares, order = Shares(COMPANY), list[str]()
    shares.at_once("ada", 1)
    tasks = [asyncio.create_task(take(shares, "bob", order)) for _ in range(50)]
    await checkpoint()
    for task in tasks[:40]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(order) == 10 + sum(not task.cancelled() for task in tasks[:40])


async def test_alone_again_rounds_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A while after the last grant to another account."""
    shares = Shares(COMPANY)
    shares.at_once("ada", 1)
    shares.at_once("bob", FULL)
    assert not shares.at_once("bob", 1)
    now_s = asyncio.get_running_loop().time() + COMPANY_S + 1
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    assert shares.at_once("bob", 1)


def test_what_a_frame_costs() -> None:
    """It grows with its size, and an empty one costs something too."""
    assert 0 < frame_us(0) < frame_us(1_000) < frame_us(1_000_000)
