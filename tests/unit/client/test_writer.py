"""Exactly once, whatever happens to answers: the writer over a link that loses them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from blackboard.client.views import Receipt
from blackboard.client.writer import CommitRequest, Writer
from blackboard.core.access import operator
from blackboard.core.commit import (
    ABSENT,
    Commit,
    CommitId,
    Delete,
    Epoch,
    Grant,
    Increment,
    KeyAt,
    Put,
    Renew,
)
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import (
    AttemptTooOld,
    Conflict,
    InvalidRequest,
    OutcomeUnknown,
    StaleEpoch,
    StepSuperseded,
    Unavailable,
)
from blackboard.limits import DEFAULT, FROZEN_WAIT_MS_MAX, LANES_MAX
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.unit.server.hooked import service_over

PATIENCE_S = 60.0
ADD_ONE = CommitRequest((Increment("public/n", 1),))
Deliver = Callable[[Commit], Awaitable[Receipt]]
Fault = Callable[[Commit, Deliver], Awaitable[Receipt]]


class LossyLink(RequestHandler):
    """The way to a real service on which each attempt at a commit meets the next of `faults`."""

    def prepare(self, *faults: Fault) -> "LossyLink":
        """Let the next attempts meet `faults`; those after them meet none."""
        self.faults = list(faults)
        self.attempts: list[Commit] = []
        return self

    async def commit(self, board: str, commit: Commit) -> Receipt:
        """As `Link.commit`, with faults."""
        self.attempts.append(commit)
        deliver = super().commit
        if self.faults:
            return await self.faults.pop(0)(commit, lambda it: deliver(board, it))
        return await deliver(board, commit)


async def lost_request(commit: Commit, _: Deliver) -> Receipt:
    """It never arrived, and nobody knows."""
    raise _unknown(commit)


async def lost_answer(commit: Commit, deliver: Deliver) -> Receipt:
    """It was carried out, and nobody knows."""
    await deliver(commit)
    raise _unknown(commit)


async def not_reached(_: Commit, __: Deliver) -> Receipt:
    """It was certainly not carried out."""
    raise Unavailable("service", "away")


async def time_is_up(_: Commit, __: Deliver) -> Receipt:
    """Nobody was there until COMMIT_TIMEOUT_MS were over: the event loop's clock jumps ahead."""
    loop = asyncio.get_running_loop()
    before, jump_s = loop.time, DEFAULT.client.commit_timeout_ms / 1000
    loop.time = lambda: before() + jump_s  # type: ignore[method-assign]
    raise Unavailable("service", "away")


def _unknown(commit: Commit) -> OutcomeUnknown:
    name = commit.id
    return OutcomeUnknown(name.agent, name.lane, name.incarnation, name.step, "lost")


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service."""
    async with service_over(tmp_path) as (service, _):
        yield service


@pytest.fixture
def link(service: Service) -> LossyLink:
    """A connection to it that loses the chosen messages."""
    return LossyLink(service.boards, operator()).prepare()


@pytest.fixture
def writer(link: LossyLink) -> Writer:
    """A writer on that way."""
    return Writer(link, "main")


@pytest.mark.parametrize(
    "faults",
    [
        [lost_request],
        [lost_answer],
        [not_reached],
        [lost_answer, lost_answer, not_reached],
        [not_reached, lost_request, lost_answer],
    ],
)
async def test_a_commit_is_sent_until_it_is_answered_and_happens_once(
    writer: Writer, link: LossyLink, faults: list[Fault]
) -> None:
    link.prepare(*faults)
    with anyio.fail_after(PATIENCE_S):
        receipt = await writer.commit(ADD_ONE)
    assert (receipt.revision, receipt.results) == (1, (1,))
    assert receipt.duplicate is (lost_answer in faults)
    assert len({commit.id for commit in link.attempts}) == 1
    assert (await writer.commit(ADD_ONE)).results == (2,)


async def test_only_an_attempt_that_may_have_got_through_makes_the_next_one_a_retry(
    writer: Writer, link: LossyLink
) -> None:
    await writer.commit(ADD_ONE)
    link.prepare(not_reached, lost_request)
    with anyio.fail_after(PATIENCE_S):
        await writer.commit(ADD_ONE)
    assert [commit.retry_since for commit in link.attempts] == [None, None, 1]


async def test_every_attempt_says_what_was_known_before_the_first(
    writer: Writer, link: LossyLink
) -> None:
    await writer.commit(ADD_ONE)
    link.prepare(not_reached, lost_request)
    with anyio.fail_after(PATIENCE_S):
        await writer.commit(ADD_ONE)
    assert [commit.known for commit in link.attempts] == [1, 1, 1]


async def test_an_attempt_that_arrives_after_its_retry_was_forgotten_does_nothing(
    writer: Writer, link: LossyLink
) -> None:
    """It was held up; the retry got through, and another process of the agent used the lane."""
    late: list[Awaitable[Receipt]] = []

    async def held_up(commit: Commit, deliver: Deliver) -> Receipt:
        late.append(deliver(commit))
        raise _unknown(commit)

    link.prepare(held_up)
    with anyio.fail_after(PATIENCE_S):
        assert (await writer.commit(ADD_ONE)).results == (1,)
    name = replace(link.attempts[0].id, incarnation="another", step=1)
    other = replace(link.attempts[0], id=name, known=1)
    assert (await link.commit("main", other)).results == (2,)
    with pytest.raises(AttemptTooOld):
        await late[0]
    assert (await writer.commit(ADD_ONE)).results == (3,)


async def test_a_first_attempt_that_knew_too_little_is_sent_with_the_given_head(
    writer: Writer, link: LossyLink
) -> None:
    """The lane of a writer that slept was used by two others meanwhile."""
    await writer.epoch()
    epoch = (await link.head("main")).epoch.id
    for number in range(1, 3):
        for lane in range(LANES_MAX):
            name = CommitId(link.agent, lane, f"other{number}", 1)
            await link.commit("main", Commit(name, epoch, ADD_ONE.ops))
    link.prepare()
    receipt = await writer.commit(ADD_ONE)
    assert receipt.results == (2 * LANES_MAX + 1,)
    assert [commit.known for commit in link.attempts] == [0, 2 * LANES_MAX]
    assert len({commit.id for commit in link.attempts}) == 1


async def test_what_nobody_can_tell_any_more_is_not_asked_again(
    writer: Writer, link: LossyLink
) -> None:
    """The engine no longer keeps the answer: asking for half a minute would not bring it back."""

    async def answer_not_kept(commit: Commit, _: Deliver) -> Receipt:
        name = commit.id
        raise OutcomeUnknown(
            name.agent, name.lane, name.incarnation, name.step, "not kept", final=True
        )

    link.prepare(answer_not_kept)
    with pytest.raises(OutcomeUnknown):
        await writer.commit(ADD_ONE)
    assert len(link.attempts) == 1


async def test_a_refusal_is_not_sent_again(writer: Writer, link: LossyLink) -> None:
    with pytest.raises(InvalidRequest):
        await writer.commit(CommitRequest(()))
    assert len(link.attempts) == 1


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ([not_reached, time_is_up], Unavailable),
        ([lost_answer, not_reached, time_is_up], OutcomeUnknown),
        ([not_reached, lost_request, time_is_up], OutcomeUnknown),
    ],
)
async def test_when_nobody_answers_for_too_long_it_says_what_is_known(
    writer: Writer,
    link: LossyLink,
    faults: list[Fault],
    error: type[Exception],
) -> None:
    """Once one attempt may have got through, a later "not done" does not undo it."""
    link.prepare(*faults)
    with anyio.fail_after(PATIENCE_S), pytest.raises(error):
        await writer.commit(ADD_ONE)
    link.prepare()
    assert (await writer.commit(ADD_ONE)).results in ((1,), (2,))


def stale(from_revision: int, *, cause: str = "engine", number: int = 2) -> Fault:
    """The answer of a board whose epoch is another one, which counts up to `from_revision`."""

    async def answer(commit: Commit, _: Deliver) -> Receipt:
        raise StaleEpoch(commit.epoch, "new", number, cause, from_revision, head=1_000)

    return answer


async def test_an_epoch_that_lost_nothing_seen_is_adopted(writer: Writer, link: LossyLink) -> None:
    await writer.commit(ADD_ONE)
    link.prepare(stale(1), stale(1, number=3))
    with pytest.raises(StaleEpoch) as refused:  # the real board is not in the new epoch
        await writer.commit(ADD_ONE)
    assert [commit.epoch for commit in link.attempts[1:]] == ["new", "new"]
    assert [commit.retry_since for commit in link.attempts] == [None] * 3
    assert refused.value.yours == "new"


@pytest.mark.parametrize(("seen", "cause"), [(2, "engine"), (1, "restore"), (0, "restore")])
async def test_an_epoch_that_lost_something_seen_or_was_restored_is_not(
    writer: Writer, link: LossyLink, seen: int, cause: str
) -> None:
    await writer.commit(ADD_ONE)
    writer.saw(seen)
    link.prepare(stale(1, cause=cause))
    with pytest.raises(StaleEpoch):
        await writer.commit(ADD_ONE)
    assert len(link.attempts) == 1


async def test_an_epoch_behind_another_one_is_not_adopted(writer: Writer, link: LossyLink) -> None:
    """The one in between may have lost what was seen, or have been a restore."""
    await writer.commit(ADD_ONE)
    link.prepare(stale(1_000, number=3))
    with pytest.raises(StaleEpoch):
        await writer.commit(ADD_ONE)
    assert len(link.attempts) == 1
    await writer.refresh()
    link.prepare()
    assert (await writer.commit(ADD_ONE)).results == (2,)


@pytest.mark.parametrize(("seen", "is_told"), [(1, False), (2, True)])
async def test_what_was_read_before_the_first_commit_counts(
    tmp_path: Path, seen: int, is_told: bool
) -> None:
    """A power loss took revision 2: a writer that read it gets an error, another one continues."""
    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store) as service:
        await Writer(LossyLink(service.boards, operator()).prepare(), "main").commit(ADD_ONE)
        store._boards.pop("main")._file.abandon()  # as the end of a process does
    async with Service(await SqliteStore.at(tmp_path, "memory")) as service:
        reader = Writer(LossyLink(service.boards, operator()).prepare(), "main")
        reader.saw(seen)
        if is_told:
            with pytest.raises(StaleEpoch) as told:
                await reader.commit(ADD_ONE)
            assert (told.value.cause, told.value.from_revision) == ("engine", 1)
            await reader.refresh()
        assert (await reader.commit(ADD_ONE)).results == (2,)


@pytest.mark.parametrize("ahead", [1, 10**12])
async def test_what_is_read_after_a_loss_does_not_hide_what_was_read_before(
    tmp_path: Path, ahead: int
) -> None:
    """Nor does it matter how far the lost epoch was: that of a server that split off begins
    anywhere."""
    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store) as service:
        await Writer(LossyLink(service.boards, operator()).prepare(), "main").commit(ADD_ONE)
        before = await store.open("main")
        store._boards.pop("main")._file.abandon()  # as the end of a process does
    async with Service(await SqliteStore.at(tmp_path, "memory")) as service:
        reader = Writer(LossyLink(service.boards, operator()).prepare(), "main")
        reader.saw(before.revision + ahead, before.epoch.id)
        now = await reader.link.head("main")
        reader.saw(now.revision, now.epoch.id)
        for _ in range(2):
            with pytest.raises(StaleEpoch) as told:
                await reader.commit(ADD_ONE)
            assert told.value.from_revision == before.revision
        await reader.refresh()
        assert reader.seen == now.revision
        assert (await reader.commit(ADD_ONE)).results == (2,)


@pytest.mark.parametrize(("read", "is_told"), [([1], False), ([2, 1], True), ([1, 2], True)])
async def test_what_was_read_in_two_epochs_counts_in_each(
    tmp_path: Path, read: list[int], is_told: bool
) -> None:
    """Revision 1 was kept, 2 was lost. What is read in the present epoch is no loss."""
    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store) as service:
        await Writer(LossyLink(service.boards, operator()).prepare(), "main").commit(ADD_ONE)
        before = await store.open("main")
        store._boards.pop("main")._file.abandon()  # as the end of a process does
    async with Service(await SqliteStore.at(tmp_path, "memory")) as service:
        reader = Writer(LossyLink(service.boards, operator()).prepare(), "main")
        now = await reader.link.head("main")
        for revision in read:
            reader.saw(revision, before.epoch.id)
        reader.saw(now.revision, now.epoch.id)
        if is_told:
            with pytest.raises(StaleEpoch):
                await reader.commit(ADD_ONE)
            await reader.refresh()
        assert (await reader.commit(ADD_ONE)).results == (2,)


async def test_refreshing_accepts_the_present_epoch(writer: Writer, link: LossyLink) -> None:
    await writer.commit(ADD_ONE)
    writer._epoch = Epoch(1, "abandoned")
    with pytest.raises(StaleEpoch):
        await writer.commit(ADD_ONE)
    await writer.refresh()
    assert (await writer.commit(ADD_ONE)).results == (2,)


async def test_one_commit_at_a_time_stays_on_one_lane(writer: Writer, link: LossyLink) -> None:
    for _ in range(5):
        await writer.commit(ADD_ONE)
    names = [commit.id for commit in link.attempts]
    assert len({(name.lane, name.incarnation) for name in names}) == 1
    assert [name.step for name in names] == [1, 2, 3, 4, 5]


async def test_no_lane_has_two_commits_in_flight(writer: Writer, link: LossyLink) -> None:
    gate = anyio.Event()
    in_flight: list[CommitId] = []

    async def held(commit: Commit, deliver: Deliver) -> Receipt:
        in_flight.append(commit.id)
        await gate.wait()
        return await deliver(commit)

    await writer.refresh()
    link.prepare(*[held] * (2 * LANES_MAX))
    commits = [asyncio.create_task(writer.commit(ADD_ONE)) for _ in range(2 * LANES_MAX)]
    await anyio.wait_all_tasks_blocked()
    assert sorted(name.lane for name in in_flight) == list(range(LANES_MAX))
    gate.set()
    with anyio.fail_after(PATIENCE_S):
        receipts = await asyncio.gather(*commits)
    sums = [receipt.results[0] for receipt in receipts]
    assert sorted(sums, key=str) == sorted(range(1, 2 * LANES_MAX + 1), key=str)


async def test_a_cancelled_commit_gives_its_lane_back_and_its_number_is_not_used_again(
    writer: Writer, link: LossyLink
) -> None:
    async def for_ever(_: Commit, __: Deliver) -> Receipt:
        await anyio.sleep_forever()
        raise AssertionError

    await writer.refresh()
    for _ in range(LANES_MAX + 1):
        link.prepare(for_ever)
        task = asyncio.create_task(writer.commit(ADD_ONE))
        await anyio.wait_all_tasks_blocked()
        task.cancel()
        await asyncio.wait([task])
    with anyio.fail_after(PATIENCE_S):
        assert (await writer.commit(ADD_ONE)).results == (1,)
    assert link.attempts[-1].id.step == LANES_MAX + 2


async def test_a_conflict_uses_up_a_number_and_costs_nothing(
    writer: Writer, link: LossyLink
) -> None:
    refused = CommitRequest(ADD_ONE.ops, conditions=(KeyAt("public/n", 7),))
    with pytest.raises(Conflict):
        await writer.commit(refused)
    assert (await writer.commit(ADD_ONE)).revision == 1
    assert [commit.id.step for commit in link.attempts] == [1, 2]


class Stalled:
    """An attempt that is held up on its way: nobody knows whether it arrives."""

    arrive: Callable[[], Awaitable[Receipt]]

    async def __call__(self, commit: Commit, deliver: Deliver) -> Receipt:
        """Hold it up."""
        self.arrive = lambda: deliver(commit)
        raise _unknown(commit)


async def test_an_attempt_that_arrives_after_its_retry_was_refused_does_nothing(
    writer: Writer, link: LossyLink
) -> None:
    """What was in the way of the retry is gone by then."""
    other, stalled = Writer(link, "main"), Stalled()
    link.prepare(stalled)

    async def in_the_way(commit: Commit, deliver: Deliver) -> Receipt:
        await other.commit(CommitRequest((Put("public/n", encode_value(7)),)))
        return await deliver(commit)

    link.faults.append(in_the_way)
    with anyio.fail_after(PATIENCE_S), pytest.raises(Conflict):
        await writer.commit(CommitRequest(ADD_ONE.ops, conditions=(KeyAt("public/n", ABSENT),)))
    await other.commit(CommitRequest((Delete("public/n"),)))
    with pytest.raises((StepSuperseded, AttemptTooOld)):  # the latter if both drew one lane
        await stalled.arrive()
    assert (await writer.commit(ADD_ONE)).results == (1,)


async def test_a_refusal_of_a_retry_is_unknown_while_the_first_attempt_may_get_in(
    writer: Writer, link: LossyLink
) -> None:
    """Nobody can be reached any more to rule it out."""
    await writer.commit(ADD_ONE)

    async def delivered(commit: Commit, deliver: Deliver) -> Receipt:
        return await deliver(commit)

    link.prepare(lost_request, delivered, not_reached, time_is_up)
    with anyio.fail_after(PATIENCE_S), pytest.raises(OutcomeUnknown):
        await writer.commit(CommitRequest(ADD_ONE.ops, conditions=(KeyAt("public/n", ABSENT),)))
    link.prepare()
    assert (await writer.commit(ADD_ONE)).results == (2,)


@pytest.mark.parametrize("fault", [lost_request, lost_answer, not_reached])
async def test_what_makes_a_refusal_certain_is_sent_until_it_is_answered(
    writer: Writer, link: LossyLink, fault: Fault
) -> None:
    """And changes nothing."""
    await writer.commit(ADD_ONE)

    async def delivered(commit: Commit, deliver: Deliver) -> Receipt:
        return await deliver(commit)

    link.prepare(lost_request, delivered, fault)
    with anyio.fail_after(PATIENCE_S), pytest.raises(Conflict):
        await writer.commit(CommitRequest(ADD_ONE.ops, conditions=(KeyAt("public/n", ABSENT),)))
    assert [commit.id.step for commit in link.attempts] == [2, 2, 3, 3]
    assert (await writer.commit(ADD_ONE)).results == (2,)


async def test_what_may_be_applied_after_the_thaw_is_unknown_and_not_refused(
    writer: Writer, link: LossyLink
) -> None:
    """The wait for the thaw was in vain, and the first attempt is still on its way."""
    await writer.commit(ADD_ONE)
    stalled = Stalled()
    link.prepare(stalled)
    await link.freeze("main", "")
    writer.wait_frozen_ms = 1
    with anyio.fail_after(PATIENCE_S), pytest.raises(OutcomeUnknown):
        await writer.commit(ADD_ONE)
    await link.thaw("main", "")
    assert (await stalled.arrive()).results == (2,)


async def test_a_renewal_whose_answer_was_lost_does_not_wait_for_the_thaw(
    writer: Writer, link: LossyLink
) -> None:
    """Its lease would run out meanwhile."""
    fence = (await writer.commit(CommitRequest((Grant("public/l", "ada~1", 60_000),)))).revision
    link.prepare(lost_request)
    await link.freeze("main", "")
    writer.wait_frozen_ms = FROZEN_WAIT_MS_MAX
    ops = (Renew("public/l", "ada~1", fence, 60_000), Put("public/n", encode_value(1)))
    with anyio.fail_after(PATIENCE_S), pytest.raises(OutcomeUnknown):
        await writer.commit(CommitRequest(ops), waits=False)
