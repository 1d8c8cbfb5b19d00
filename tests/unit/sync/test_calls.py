"""`blackboard.sync` in threads, in loops of others, and when a block or call ends early."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import assert_type

import pytest
from pydantic import BaseModel

from blackboard import Agent, Board, Context, RunOptions, run_agent, sync
from blackboard.core.commit import Grant, Op, Put, Release
from blackboard.errors import (
    AccessDenied,
    Conflict,
    Fenced,
    InvalidRequest,
    LeaseLost,
    LocalProtocolError,
    TypeMismatch,
    Unavailable,
)
from blackboard.sync.portal import NAME, portal
from blackboard.wire.codec import encode_value
from tests.conformance.team import PATIENCE_S

HOUR_MS = 3_600_000


@pytest.fixture
def client(tmp_path: Path) -> Iterator[sync.Client]:
    """Of an embedded service."""
    with sync.open(tmp_path, level="memory") as opened:
        yield opened


@pytest.fixture
def board(client: sync.Client) -> sync.Board:
    """Its board."""
    return client.board("b")


def steal(board: sync.Board, key: str) -> None:
    """End the lease of `key` as another process would, and take it."""
    (lease,) = board.leases(key)
    board.commit([Release(key, lease.holder, lease.fence), Grant(key, "other", HOUR_MS)])


class Purchases(BaseModel):
    """What was bought."""

    paid: list[int] = []


class Buyer(Agent[Purchases]):
    """Asks before it pays."""

    async def step(self, ctx: Context[Purchases]) -> None:
        """One purchase."""
        decision = await ctx.approve("buy it", facts=["public/price"])
        ctx.done("bought" if decision else decision.reason)


def test_a_request_is_answered_without_async(board: sync.Board) -> None:
    board.put("public/price", 7)

    def stepped() -> str:
        options = RunOptions(leaves=True)
        run = board._portal.run(lambda: run_agent(Buyer("buyer"), board._inner, options))
        return str(run.outcome or run.status)

    assert stepped() == "waiting_for_approval"
    [asked] = sync.pending(board)
    assert [fact.value for fact in asked.request.facts] == [7]
    assert sync.pending(board, "seller") == ()
    assert sync.answer(board, asked, approved=False, reason="too dear").revision
    assert stepped() == "too dear"


def test_threads_share_a_client(board: sync.Board) -> None:
    def count(_: int) -> None:
        for _ in range(20):
            board.increment("public/n")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert board.get("public/n") == 160


def test_a_lock_keeps_other_threads_out(board: sync.Board) -> None:
    def add(_: int) -> None:
        with board.lock("public/n"):
            board.put("public/n", board.get("public/n", 0) + 1)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, range(18)))
    assert board.get("public/n") == 18
    assert board.leases() == ()


def test_commits_of_a_thread_rely_on_its_locks_alone(board: sync.Board) -> None:
    def elsewhere() -> object:
        return board.put("public/other", 1)

    def write_after_loss(pool: ThreadPoolExecutor) -> None:
        with board.lock("public/n", ttl_ms=HOUR_MS):
            pool.submit(steal, board, "public/n").result()
            with pytest.raises(Fenced):
                board.put("public/n", 1)
            assert pool.submit(elsewhere).result()

    with ThreadPoolExecutor(1) as pool, pytest.raises(LeaseLost):
        write_after_loss(pool)
    board.put("public/n", 2)


def test_a_block_that_raises_commits_nothing(board: sync.Board) -> None:
    def fail() -> None:
        with board.step("ada") as step:
            step.put("public/a", 1)
            raise KeyError("its own")

    with pytest.raises(KeyError):
        fail()
    assert board.get("public/a") is None


def test_inside_a_loop_of_somebody_else(board: sync.Board) -> None:
    async def main() -> object:
        with board.lock("public/a"):
            board.put("public/a", 1)
        return await asyncio.gather(*(asyncio.to_thread(board.get, "public/a") for _ in range(3)))

    assert asyncio.run(main()) == [1, 1, 1]


def test_a_watch_waits_as_long_as_it_may(board: sync.Board) -> None:
    with board.watch("public/**") as watch:
        with pytest.raises(TimeoutError):
            watch.next(timeout_ms=1)
        board.put("public/a", 1)
        assert next(watch).changes[0].value == 1


def test_an_iteration_that_ends_early_is_closed(board: sync.Board) -> None:
    for number in range(3):
        board.put(f"public/{number}", number)
    assert next(board.scan("public/**")).value == 0
    assert [entry.value for entry in board.scan("public/**")] == [0, 1, 2]


def test_a_function_that_delivers_may_use_the_board(board: sync.Board) -> None:
    def deliver() -> list[Op]:
        return [Put("private/ada/n", encode_value(board.get("public/n")))]

    board.put("public/n", 7)
    with board.attach("ada", deliver=deliver):
        taken = board.checkpoint("cut", barrier_ms=30_000)
    assert taken.barrier is not None
    assert taken.barrier.delivered == ("ada",)
    assert board.get("private/ada/n", at="cut") == 7


@dataclass
class Valuation:
    usd_bn: float
    source: str = ""


def test_values_of_a_programs_own_types(board: sync.Board) -> None:
    key = "public/valuation"
    assert_type(board.get(key, as_type=Valuation), Valuation | None)
    board.put(key, Valuation(2.9))
    with board.step("ada") as step:
        known = step.get(key, Valuation(0), as_type=Valuation)
        assert_type(known, Valuation)
        step.put(key, Valuation(known.usd_bn, "10-K"))
        assert step.get(key, as_type=Valuation) == Valuation(2.9, "10-K")
    entry = board.entry(key)
    assert entry is not None
    assert entry.value_as(Valuation) == board.get(key, as_type=Valuation)
    board.put(key, {"usd_bn": "much"})
    with pytest.raises(TypeMismatch, match="usd_bn"):
        board.get(key, as_type=Valuation)


# --- documents ------------------------------------------------------------------------------------


def test_a_transaction_is_one_edit(board: sync.Board) -> None:
    with board.document("public/memo") as doc:
        memo, facts = doc.text(), doc.map("facts")
        with doc.transaction():
            memo.append("Buy")
            memo.append(".")
            facts["price"] = 3
            with pytest.raises(LocalProtocolError, match="transaction"):
                board.get("public/a")
        assert (str(memo), facts["price"], list(facts)) == ("Buy.", 3, ["price"])
        assert doc.undo()
        assert str(memo) == ""
        assert doc.redo()
    with board.document("public/memo") as again:
        assert str(again.text()) == "Buy."


def test_a_transaction_in_another_one_is_a_part_of_it(board: sync.Board) -> None:
    with board.document("public/memo") as doc, board.document("public/plan") as plan:
        memo, steps = doc.text(), plan.text()
        with doc.transaction():
            memo.append("Buy")
            with doc.transaction(), plan.transaction():
                memo.append(".")
                steps.append("Sell")
        assert doc.undo()
        assert (str(memo), str(steps)) == ("", "Sell")
        memo.append("Hold")
    with board.document("public/memo") as doc, board.document("public/plan") as plan:
        assert (str(doc.text()), str(plan.text())) == ("Hold", "Sell")


def test_an_observer_may_read_and_not_wait(board: sync.Board) -> None:
    seen: list[object] = []
    with board.document("public/memo") as doc:
        memo = doc.text()

        def observer(_: object) -> None:
            seen.append(str(memo))
            try:
                board.get("public/a")
            except LocalProtocolError as error:
                seen.append(error.reason)

        end = memo.observe(observer)
        memo.append("a")
        end()
        memo.append("b")
    assert seen[0] == "a"
    assert "callback" in str(seen[1])
    assert len(seen) == 2


def test_what_lies_in_a_document_is_shared(board: sync.Board) -> None:
    with board.document("public/plan") as doc:
        steps = doc.list("steps")
        first = steps.insert_map(0)
        first["title"] = "read"
        steps.append("write")
        inner = steps[0]
        assert isinstance(inner, sync.SharedMap)
        inner["title"] = "think"
        assert doc.value() == {"steps": [{"title": "think"}, "write"]}
        assert [type(one) for one in steps] == [sync.SharedMap, str]


# --- errors and ends ------------------------------------------------------------------------------


def test_errors_are_those_of_the_asynchronous_client(board: sync.Board) -> None:
    with pytest.raises(InvalidRequest, match="key"):
        board.get(7)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest):
        board.document("public//memo")
    with pytest.raises(AccessDenied):
        board.as_agent("bob").get("private/ada/n")
    with pytest.raises(LocalProtocolError):
        board.step("ada").put("public/a", 1)


def test_a_closed_client_ends_what_waits_for_it(tmp_path: Path) -> None:
    client = sync.open(tmp_path, level="memory")
    board, begun = client.board("b"), threading.Event()

    def follow() -> None:
        with board.watch("public/**") as watch:
            begun.set()
            next(watch)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(follow)
        begun.wait()
        client.close()
        with pytest.raises(Unavailable):
            waiting.result()
    client.close()
    with pytest.raises(Unavailable):
        board.get("public/a")


def test_a_closed_client_leaves_no_task_and_no_thread(tmp_path: Path) -> None:
    def tasks() -> set[str]:
        async def names() -> set[str]:
            return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}

        return portal().run(names)

    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if "asyncio" not in thread.name}

    sync.open(tmp_path / "first", level="memory").close()
    tasks_before, threads_before = tasks(), threads()
    with sync.open(tmp_path / "second", level="memory") as client:
        client.board("b").put("public/a", 1)
    assert tasks() == tasks_before
    for thread in threads() - threads_before:
        thread.join(PATIENCE_S)  # the last thing that it does may come after what was waited for
        assert not thread.is_alive(), thread.name
    assert [thread.name for thread in threading.enumerate()].count(NAME) == 1


def test_work_is_awaited_with_the_asynchronous_object(tmp_path: Path) -> None:
    """In the loop; its result and its errors come back."""

    async def put(board: Board) -> int:
        return (await board.put("public/a", 1)).revision

    async def fail(board: Board) -> None:
        await board.put("public/a", 2, expected=7)

    with sync.open(tmp_path / "run", level="memory") as client:
        board = client.board("main")
        assert board.run(put) == 1
        with pytest.raises(Conflict):
            board.run(fail)
        assert board.get("public/a") == 1
