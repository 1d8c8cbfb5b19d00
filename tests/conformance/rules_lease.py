"""Rules of leases and fences."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from blackboard.core.commit import (
    Committed,
    Expire,
    Grant,
    HeldFence,
    KeyAt,
    Op,
    Put,
    Release,
    Renew,
)
from blackboard.engines.base import Store
from blackboard.errors import Conflict, Fenced, LeaseHeld, StaleEpoch, StepSuperseded
from tests.conformance.rules_commit import lower_limit, refused_fields
from tests.conformance.writer import Writer, packed

LOCK = "public/lock"
HOUR_MS = 3_600_000
ENDED_MS = 0
"""A time to live that has run out by the next commit, whenever that is."""


def lease_of(committed: Committed) -> tuple[str | int, ...]:
    """The lease that the first operation of a commit left."""
    result = committed.results[0]
    assert isinstance(result, tuple)
    return result


class LeaseRules:
    """One holder at a time; equality of (fence, holder) decides, never a clock."""

    async def test_the_fence_of_a_lease_is_the_revision_of_its_grant(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/x", packed(1)))
        granted = await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        assert granted.results == (("ada", 2, granted.time_ms + HOUR_MS),)

    async def test_a_held_lease_is_not_granted_again(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        granted = await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        for holder in ("bob", "ada"):
            refused = await ada.attempt(Grant(LOCK, holder, HOUR_MS))
            assert isinstance(refused, LeaseHeld)
            assert refused.fields() == {
                "key": LOCK,
                "holder": "ada",
                "fence": 1,
                "until_ms": granted.time_ms + HOUR_MS,
            }

    async def test_a_lease_that_ran_out_can_be_taken_over(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", ENDED_MS))
        taken = await ada.commit(Grant(LOCK, "bob", HOUR_MS))
        assert taken.results == (("bob", 2, taken.time_ms + HOUR_MS),)
        refused = await ada.attempt(Put("public/x", packed(1)), fences=[HeldFence(LOCK, "ada", 1)])
        assert isinstance(refused, Fenced)
        assert refused.fields() == {"key": LOCK, "fence": 1, "current": 2, "holder": "bob"}

    async def test_a_lease_that_ran_out_holds_until_somebody_takes_it(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", ENDED_MS))
        await ada.commit(Put("public/x", packed(1)), fences=[HeldFence(LOCK, "ada", 1)])
        assert isinstance(await ada.attempt(Renew(LOCK, "ada", 1, HOUR_MS)), Committed)

    @pytest.mark.parametrize("fence", [0, 1, 3, 4])
    async def test_a_fence_must_be_equal(self, store: Store, board: str, fence: int) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/x", packed(1)))
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await ada.commit(Put("public/x", packed(1)), fences=[HeldFence(LOCK, "ada", 2)])
        operations: list[Callable[[], Op]] = [
            lambda: Renew(LOCK, "ada", fence, HOUR_MS),
            lambda: Release(LOCK, "ada", fence),
        ]
        for make in operations:
            assert isinstance(await ada.attempt(make()), Fenced)
        refused = await ada.attempt(
            Put("public/x", packed(1)), fences=[HeldFence(LOCK, "ada", fence)]
        )
        assert isinstance(refused, Fenced)
        assert (refused.fence, refused.current) == (fence, 2)

    async def test_a_fence_belongs_to_its_holder(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        refused = await ada.attempt(Put("public/x", packed(1)), fences=[HeldFence(LOCK, "bob", 1)])
        assert isinstance(refused, Fenced)
        assert (refused.current, refused.holder) == (1, "ada")

    async def test_a_released_lease_fences_and_can_be_granted(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        assert await ada.result(Release(LOCK, "ada", 1)) == ()
        refused = await ada.attempt(Put("public/x", packed(1)), fences=[HeldFence(LOCK, "ada", 1)])
        assert isinstance(refused, Fenced)
        assert (refused.current, refused.holder) == (0, None)
        assert (await ada.commit(Grant(LOCK, "bob", HOUR_MS))).revision == 3

    async def test_a_renewal_makes_no_revision(self, store: Store, board: str) -> None:
        """Nor does one of a ticket; the answer has the newest revision, and the lease as it is."""
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        waits = await ada.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))
        for _ in range(3):
            renewed = await ada.commit(
                Renew(LOCK, "ada", 1, HOUR_MS), Renew(LOCK, "bob", 0, HOUR_MS)
            )
            until_ms = renewed.time_ms + HOUR_MS
            assert (renewed.revision, renewed.duplicate) == (2, False)
            assert renewed.results[1] == ("ada", 1, until_ms, "bob", HOUR_MS, until_ms)
            [lease] = (await store.leases(board)).leases
            assert (lease.until_ms, lease.waiters[0].until_ms) == (until_ms, until_ms)
        head = await store.open(board)
        assert (head.revision, head.log_entries, head.time_ms >= waits.time_ms) == (2, 2, True)
        assert len((await store.log(board, 0, limit=10)).entries) == 2
        assert (await ada.commit(Put("public/x", packed(1)))).revision == 3

    async def test_another_time_to_live_is_a_revision(self, store: Store, board: str) -> None:
        """For it has to last: with it a lease begins again when the engine comes back."""
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await ada.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))
        assert (await ada.commit(Renew(LOCK, "ada", 1, 2 * HOUR_MS))).revision == 3
        assert (await ada.commit(Renew(LOCK, "bob", 0, 2 * HOUR_MS))).revision == 4
        same = Renew(LOCK, "ada", 1, 2 * HOUR_MS), Renew(LOCK, "bob", 0, 2 * HOUR_MS)
        assert (await ada.commit(*same)).revision == 4
        [lease] = (await store.leases(board)).leases
        assert (lease.ttl_ms, lease.waiters[0].ttl_ms) == (2 * HOUR_MS, 2 * HOUR_MS)

    async def test_a_renewal_with_other_operations_is_one_commit_with_them(
        self, store: Store, board: str
    ) -> None:
        """All of it happens, or nothing: a refusal leaves the deadline where it was."""
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        before = (await store.leases(board)).leases
        for ops in (
            (Renew(LOCK, "ada", 1, 2 * HOUR_MS), Renew("public/none", "ada", 1, HOUR_MS)),
            (Renew(LOCK, "ada", 1, HOUR_MS), Release("public/none", "ada", 1)),
        ):
            assert isinstance(await ada.attempt(*ops), Fenced)
        assert (await store.leases(board)).leases == before
        renewed = await ada.commit(Renew(LOCK, "ada", 1, HOUR_MS), Put("public/x", packed(1)))
        assert renewed.revision == 2
        assert (await store.leases(board)).leases[0].until_ms == renewed.time_ms + HOUR_MS

    async def test_a_renewal_is_checked_as_any_commit(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS), Put("public/x", packed(1)))
        renewal = Renew(LOCK, "ada", 1, HOUR_MS)
        stale = await ada.send(replace(ada.make(renewal), epoch="another"))
        assert isinstance(stale, StaleEpoch)
        conflict = await ada.attempt(renewal, conditions=[KeyAt("public/x", 0)])
        assert isinstance(conflict, Conflict)
        fenced = await ada.attempt(renewal, fences=[HeldFence("public/other", "ada", 1)])
        assert isinstance(fenced, Fenced)

    async def test_a_renewal_sent_again_renews_again(self, store: Store, board: str) -> None:
        """Until a later step of its lane: then it comes too late, and prolongs nothing."""
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        renewal = ada.make(Renew(LOCK, "ada", 1, HOUR_MS))
        first = await ada.send(renewal)
        again = await ada.send(replace(renewal, retry_since=1))
        assert isinstance(first, Committed)
        assert isinstance(again, Committed)
        assert (again.revision, again.duplicate) == (first.revision, False)
        await ada.commit(Put("public/x", packed(1)))
        before = (await store.leases(board)).leases
        assert isinstance(await ada.send(renewal), StepSuperseded)
        assert (await store.leases(board)).leases == before

    async def test_renewal_keeps_the_fence_and_says_until_when(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", ENDED_MS))
        renewed = await ada.commit(Renew(LOCK, "ada", 1, HOUR_MS))
        assert renewed.results == (("ada", 1, renewed.time_ms + HOUR_MS),)
        held = await ada.attempt(Grant(LOCK, "bob", HOUR_MS))
        assert isinstance(held, LeaseHeld)
        assert (held.fence, held.until_ms) == (1, renewed.time_ms + HOUR_MS)

    async def test_operations_of_one_commit_see_its_leases(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        done = await ada.commit(
            Grant(LOCK, "ada", HOUR_MS), Release(LOCK, "ada", 1), Grant(LOCK, "bob", HOUR_MS)
        )
        until_ms = done.time_ms + HOUR_MS
        assert done.results == (("ada", 1, until_ms), (), ("bob", 1, until_ms))
        again = await ada.attempt(Release(LOCK, "bob", 1), Release(LOCK, "bob", 1))
        assert isinstance(again, Fenced)

    async def test_a_lease_and_an_entry_of_the_same_name_are_two_things(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS), Put(LOCK, packed("text")))
        await ada.commit(Release(LOCK, "ada", 1))
        assert (await store.read(board, [LOCK])).entries[0].value == packed("text")

    async def test_leases_of_a_board_are_limited(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        lower_limit(monkeypatch, "LEASES_MAX", 2)
        await ada.commit(Grant("public/l1", "ada", ENDED_MS))
        await ada.commit(Grant("public/l2", "ada", ENDED_MS))
        refused = await ada.attempt(Grant("public/l3", "ada", HOUR_MS))
        assert refused_fields(refused) == {
            "limit": "LEASES_MAX",
            "value": 3,
            "maximum": 2,
            "where": "public/l3",
            "account": None,
        }
        await ada.commit(Grant("public/l1", "bob", HOUR_MS))
        await ada.commit(Release("public/l2", "ada", 2))
        await ada.commit(Grant("public/l3", "ada", HOUR_MS))


class QueueRules:
    """Who waits for a lease gets it in turn; who died is passed over."""

    async def test_a_released_lease_is_granted_to_the_first_waiter(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        for holder in ("bob", "cyd"):
            waits = await ada.commit(Grant(LOCK, holder, HOUR_MS, wait=True))
        bob = ("bob", HOUR_MS, waits.time_ms + HOUR_MS)
        assert lease_of(waits)[:2] == ("ada", 1)
        assert [lease_of(waits)[at] for at in (3, 6)] == [bob[0], "cyd"]
        released = await ada.commit(Release(LOCK, "ada", 1))
        assert lease_of(released)[:3] == ("bob", 4, released.time_ms + HOUR_MS)
        assert lease_of(released)[3] == "cyd"
        fenced = await ada.attempt(Put("public/x", packed(1)), fences=[HeldFence(LOCK, "ada", 1)])
        assert isinstance(fenced, Fenced)
        await ada.commit(Put("public/x", packed(1)), fences=[HeldFence(LOCK, "bob", 4)])

    @pytest.mark.parametrize("holder", ["ada", "bob"])
    async def test_a_holder_has_a_lease_or_waits_for_it_once(
        self, store: Store, board: str, holder: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await ada.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))
        again = await ada.attempt(Grant(LOCK, holder, HOUR_MS, wait=True))
        assert isinstance(again, LeaseHeld)
        assert (again.holder, again.fence) == ("ada", 1)

    async def test_a_ticket_that_ran_out_is_passed_over(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await ada.commit(Grant(LOCK, "bob", ENDED_MS, wait=True))
        await ada.commit(Grant(LOCK, "cyd", HOUR_MS, wait=True))
        released = await ada.commit(Release(LOCK, "ada", 1))
        assert lease_of(released)[:2] == ("cyd", 4)

    async def test_a_ticket_can_be_prolonged(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await ada.commit(Grant(LOCK, "bob", ENDED_MS, wait=True))
        await ada.commit(Renew(LOCK, "bob", 0, HOUR_MS))
        released = await ada.commit(Release(LOCK, "ada", 1))
        assert lease_of(released)[:2] == ("bob", 4)
        assert isinstance(await ada.attempt(Renew(LOCK, "cyd", 0, HOUR_MS)), Fenced)

    async def test_who_waits_can_leave_the_queue(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await ada.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))
        left = await ada.commit(Release(LOCK, "bob", 0))
        assert lease_of(left)[:2] == ("ada", 1)
        refused = await ada.attempt(Release(LOCK, "bob", 0))
        assert isinstance(refused, Fenced)
        assert refused.fields() == {"key": LOCK, "fence": 0, "current": 1, "holder": "ada"}
        assert await ada.result(Release(LOCK, "ada", 1)) == ()

    async def test_an_expired_lease_goes_to_the_waiter_not_to_a_newcomer(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", ENDED_MS))
        await ada.commit(Grant(LOCK, "bob", HOUR_MS))
        await ada.commit(Renew(LOCK, "bob", 2, ENDED_MS), Grant(LOCK, "cyd", HOUR_MS, wait=True))
        assert (await store.leases(board)).leases[0].holder == "cyd"

    async def test_anybody_can_end_a_lease_that_ran_out(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        early = await ada.attempt(Expire(LOCK, "ada", 1))
        assert isinstance(early, LeaseHeld)
        await ada.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))
        await ada.commit(Renew(LOCK, "ada", 1, ENDED_MS))
        assert [lease.fence for lease in (await store.leases(board, due=True)).leases] == [1]
        ended = await ada.commit(Expire(LOCK, "ada", 1))
        assert lease_of(ended)[:2] == ("bob", ended.revision)
        assert isinstance(await ada.attempt(Expire(LOCK, "ada", 1)), Fenced)

    async def test_the_queue_of_a_lease_is_limited(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        lower_limit(monkeypatch, "LEASE_WAITERS_MAX", 1)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await ada.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))
        refused = await ada.attempt(Grant(LOCK, "cyd", HOUR_MS, wait=True))
        assert refused_fields(refused)["limit"] == "LEASE_WAITERS_MAX"

    async def test_leases_are_read_with_their_queues(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        assert (await store.leases(board)).leases == ()
        granted = await ada.commit(Grant(LOCK, "ada", HOUR_MS), Grant("public/a", "ada", HOUR_MS))
        await ada.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))
        reading = await store.leases(board)
        assert [lease.key for lease in reading.leases] == ["public/a", LOCK]
        assert reading.leases[1].until_ms == granted.time_ms + HOUR_MS
        assert [waiter.holder for waiter in reading.leases[1].waiters] == ["bob"]
        assert (await store.leases(board, due=True)).leases == ()

    async def test_the_log_tells_what_became_of_a_lease(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await ada.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))
        await ada.commit(Renew(LOCK, "ada", 1, ENDED_MS))
        await ada.commit(Expire(LOCK, "ada", 1))
        await ada.commit(Release(LOCK, "bob", 4))
        page = await store.log(board, 0, limit=10)
        told = [(c.kind, c.lease.holder) for e in page.entries for c in e.changes if c.lease]
        kinds = ["grant", "wait", "renew", "grant", "release"]
        assert told == list(zip(kinds, ["ada", "ada", "ada", "bob", "bob"], strict=True))
