"""Commits of the service itself."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from blackboard.core.commit import ABSENT, Delete, KeyAt, Put
from blackboard.core.model import Outcome
from blackboard.engines.redis.codec import unknown
from blackboard.errors import Conflict, OutcomeUnknown, StepSuperseded, Unavailable
from blackboard.server import commit_queue as system
from blackboard.server.boards import SYSTEM_TRIES
from blackboard.wire.codec import Prepared, encode_value
from tests.unit.server.hooked import HookedStore, service_over

KEY = "system/tests/mine"


async def test_a_commit_that_others_overtook_on_its_lane_is_sent_again_and_happens_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine cannot tell it from a late copy; the service, which sent no other, can."""
    monkeypatch.setattr(system, "LANES_MAX", 1)
    async with service_over(tmp_path) as (service, store):
        main = await service.boards.use("main")
        sent: list[str] = []
        others = [Put("system/tests/other", encode_value(1))]

        async def count() -> None:
            sent.append("commit")

        async def overtake() -> None:
            store.hook("before commit", count)
            for _ in range(2):
                await main.commit_as_system(others)
            sent.append("ours")

        store.hook("before commit", overtake)
        done = await main.commit_as_system([Put(KEY, encode_value(7))])
        log = await store.log("main", 0, limit=9)
    written = [entry.revision for entry in log.entries for it in entry.changes if it.key == KEY]
    assert written == [done.revision] == [3]
    assert sent == ["commit", "commit", "ours", "commit"]


class Late:
    """Batches are numbered from 0. Those of `lost` are kept, and answered as unknown; the others
    get through."""

    def __init__(
        self, store: HookedStore, monkeypatch: pytest.MonkeyPatch, lost: Callable[[int], bool]
    ) -> None:
        self.kept: list[Sequence[Prepared]] = []
        self.real, self.lost, self.sent = store.commit, lost, 0
        monkeypatch.setattr(store, "begin", lambda *_: False)
        monkeypatch.setattr(store, "commit", self.commit)

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`."""
        self.sent += 1
        if not self.lost(self.sent - 1):
            return await self.real(board, batch)
        self.kept.append(batch)
        return [unknown(prepared, "the answer is lost") for prepared in batch]


async def test_a_refused_repeat_supersedes_the_attempt_that_may_arrive_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What refused it may be gone by then: it changes nothing all the same."""
    async with service_over(tmp_path) as (service, store):
        main = await service.boards.use("main")
        await main.commit_as_system([Put(KEY, encode_value(1))])
        late = Late(store, monkeypatch, lambda number: number == 0)
        with pytest.raises(Conflict):
            await main.commit_as_system([Put(KEY, encode_value(7))], [KeyAt(KEY, ABSENT)])
        await main.commit_as_system([Delete(KEY)])
        [outcome] = await late.real("main", late.kept[0])
        assert isinstance(outcome, StepSuperseded)
        assert not (await store.read("main", [KEY])).entries


async def test_a_refusal_is_unknown_while_an_attempt_may_arrive_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing could be committed that supersedes it."""
    async with service_over(tmp_path) as (service, store):
        main = await service.boards.use("main")
        await main.commit_as_system([Put(KEY, encode_value(1))])
        late = Late(store, monkeypatch, lambda number: number != 1)
        with pytest.raises(OutcomeUnknown, match="the answer is lost"):
            await main.commit_as_system([Put(KEY, encode_value(7))], [KeyAt(KEY, ABSENT)])
        assert len(late.kept) == 1 + SYSTEM_TRIES
        late.lost = lambda number: False


@pytest.mark.parametrize("answered", [0, 1], ids=["the commit", "what supersedes it"])
async def test_a_repeat_that_was_certainly_not_applied_leaves_the_first_attempt_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """Of the repeat, or of the commit that supersedes it, the engine knows; of the first not."""
    async with service_over(tmp_path) as (service, store):
        main = await service.boards.use("main")
        await main.commit_as_system([Put(KEY, encode_value(1))])
        late = Late(store, monkeypatch, lambda number: number == 0)
        real = late.real

        async def gone(board: str, batch: Sequence[Prepared]) -> list[Outcome]:
            if late.sent <= 1 + answered:
                return await real(board, batch)
            raise Unavailable(what="engine", reason="it is gone")

        late.real = gone
        with pytest.raises(OutcomeUnknown, match="the answer is lost"):
            await main.commit_as_system([Put(KEY, encode_value(7))], [KeyAt(KEY, ABSENT)])
        late.real = real


async def test_a_board_that_ends_leaves_the_first_attempt_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeat is refused before it reaches the engine."""
    async with service_over(tmp_path) as (service, store):
        main = await service.boards.use("main")
        late = Late(store, monkeypatch, lambda number: number == 0)
        keep = late.commit
        ending: list[asyncio.Task[None]] = []

        async def commit(board: str, batch: Sequence[Prepared]) -> list[Outcome]:
            outcomes = await keep(board, batch)
            # a task, for `end` waits for this commit; its first turn is before that of the repeat
            ending.append(asyncio.create_task(main.end(Unavailable(what="board", reason="gone"))))
            return outcomes

        monkeypatch.setattr(store, "commit", commit)
        with pytest.raises(OutcomeUnknown, match="the answer is lost"):
            await main.commit_as_system([Put(KEY, encode_value(7))])
        await asyncio.gather(*ending)
