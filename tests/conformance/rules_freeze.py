"""Rules of a freeze: a frozen board takes nothing but what an incident needs."""

import pytest

from blackboard import limits
from blackboard.core.commit import (
    SERVICE,
    Append,
    Committed,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    Increment,
    KeyAt,
    Op,
    Put,
    PutBack,
    Release,
    Renew,
)
from blackboard.core.freeze import FROZEN_KEY, freeze_in
from blackboard.engines.base import Store
from blackboard.errors import BoardFrozen, Conflict, Fenced, LimitExceeded, StaleEpoch
from blackboard.limits import NOTE_BYTES_MAX, OPERATIONS_MAX, SEGMENT_BYTES_MAX
from tests.conformance.rules_restore import restored
from tests.conformance.writer import Writer, packed

PLAN, LOCK = "public/plan", "public/lock"
HOUR_MS = 3_600_000
FREEZE = Put(FROZEN_KEY, packed({"by": "boss", "note": "the plan is nonsense"}))
THAW = Delete(FROZEN_KEY)


async def frozen(store: Store, board: str) -> tuple[Writer, Writer, Committed]:
    """A board with a plan that the service has frozen: an agent, the service, and the freeze."""
    ada, service = await Writer.open(store, board), await Writer.open(store, board, SERVICE)
    await ada.commit(Put(PLAN, packed(1)))
    return ada, service, await service.commit(FREEZE)


class FreezeRules:
    """`system/frozen` stops everybody's commits, but for those that an incident needs."""

    async def test_a_full_board_can_be_frozen(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Records of the service are bounded by the quota of their namespace only."""
        ada, service = await Writer.open(store, board), await Writer.open(store, board, SERVICE)
        await ada.commit(Put(PLAN, packed(1)))
        for limit, used in (("BOARD_KEYS_MAX", 1), ("BOARD_BYTES_MAX", len(PLAN) + 1)):
            monkeypatch.setattr(limits, limit, used)
            full = await ada.attempt(Put("public/more", packed(1)))
            assert isinstance(full, LimitExceeded)
            assert full.limit == limit
            both = await service.attempt(FREEZE, Put("public/more", packed(1)))
            assert isinstance(both, LimitExceeded)
            await service.commit(FREEZE)
            await service.commit(THAW)
            monkeypatch.undo()
        monkeypatch.setattr(limits, "NAMESPACE_KEYS_MAX", 0)
        own = await service.attempt(FREEZE)
        assert isinstance(own, LimitExceeded)
        assert (own.limit, own.where) == ("NAMESPACE_KEYS_MAX", "system")

    @pytest.mark.parametrize(
        "op",
        [
            Put(PLAN, packed(1)),
            Delete(PLAN),
            Delete("public/nothing"),
            Delete(FROZEN_KEY),
            DeletePrefix("public"),
            Append("public/list", packed(1)),
            Increment("public/n", 1),
            Grant(LOCK, "ada", HOUR_MS),
            Expire(LOCK, "bob", 1),
        ],
        ids=lambda op: type(op).__name__,
    )
    async def test_what_changes_the_board_is_refused_with_the_reason(
        self, store: Store, board: str, op: Op
    ) -> None:
        ada, _, since = await frozen(store, board)
        refused = await ada.attempt(op)
        assert isinstance(refused, BoardFrozen)
        told = (refused.by, refused.note, refused.since_ms, refused.revision)
        assert told == ("boss", "the plan is nonsense", since.time_ms, since.revision)
        assert (await store.open(board)).revision == since.revision

    async def test_the_longest_reason_is_kept(self, store: Store, board: str) -> None:
        """Also by an engine that keeps large values elsewhere than small ones."""
        ada, service = await Writer.open(store, board), await Writer.open(store, board, SERVICE)
        told = {"by": "b" * SEGMENT_BYTES_MAX, "note": "n" * NOTE_BYTES_MAX}
        await service.commit(Put(FROZEN_KEY, packed(told)))
        refused = await ada.attempt(Put(PLAN, packed(1)))
        assert isinstance(refused, BoardFrozen)
        assert (refused.by, refused.note) == (told["by"], told["note"])

    async def test_the_thaw_ends_it(self, store: Store, board: str) -> None:
        ada, service, since = await frozen(store, board)
        await service.commit(THAW)
        done = await ada.commit(Put(PLAN, packed(2)))
        assert done.revision == since.revision + 2

    async def test_leases_are_kept_and_given_back(self, store: Store, board: str) -> None:
        ada, bob = await Writer.open(store, board), await Writer.open(store, board, "bob")
        held = await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await bob.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))
        await (await Writer.open(store, board, SERVICE)).commit(FREEZE)
        await ada.commit(Renew(LOCK, "ada", held.revision, HOUR_MS))
        await bob.commit(Renew(LOCK, "bob", 0, HOUR_MS))
        mixed = await ada.attempt(Renew(LOCK, "ada", held.revision, HOUR_MS), Put(PLAN, packed(1)))
        assert isinstance(mixed, BoardFrozen)
        released = await ada.commit(Release(LOCK, "ada", held.revision))
        [lease] = (await store.leases(board)).leases
        assert (lease.holder, lease.fence) == ("bob", released.revision)

    async def test_a_lease_that_is_lost_is_not_renewed(self, store: Store, board: str) -> None:
        ada, _, _ = await frozen(store, board)
        assert isinstance(await ada.attempt(Renew(LOCK, "ada", 1, HOUR_MS)), Fenced)

    async def test_the_service_goes_on(self, store: Store, board: str) -> None:
        """Its checkpoints are such commits."""
        _, service, _ = await frozen(store, board)
        await service.commit(Put("system/checkpoints/x", packed(1)))

    async def test_a_restore_gets_in_and_thaws_nothing(self, store: Store, board: str) -> None:
        ada, _, since = await frozen(store, board)
        commit, done = await restored(store, ada, PutBack(PLAN, packed(0)), to=1)
        assert done.revision == since.revision + 1
        assert commit.begins is not None
        ada.epoch = commit.begins.id
        refused = await ada.attempt(Put(PLAN, packed(2)))
        assert isinstance(refused, BoardFrozen)
        [entry] = (await store.read(board, [FROZEN_KEY])).entries
        found = freeze_in(entry.value, entry.time_ms, entry.mod_revision)
        assert (found.by, found.since_ms, found.revision) == ("boss", since.time_ms, since.revision)

    async def test_a_retry_gets_its_first_answer(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        commit = ada.make(Put(PLAN, packed(1)))
        first = await ada.send(commit)
        await (await Writer.open(store, board, SERVICE)).commit(FREEZE)
        again = await ada.send(commit)
        assert isinstance(first, Committed)
        assert isinstance(again, Committed)
        assert (again.revision, again.duplicate) == (first.revision, True)

    async def test_what_is_under_way_is_decided_in_its_place(
        self, store: Store, board: str
    ) -> None:
        """In one batch: what comes before the freeze is in, what comes after it is not."""
        ada, service = await Writer.open(store, board), await Writer.open(store, board, SERVICE)
        put = Put(PLAN, packed(1))
        commits = [ada.make(put), service.make(FREEZE), ada.make(put), service.make(THAW)]
        outcomes = await ada.send_all([*commits, ada.make(put)])
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [Committed, Committed, BoardFrozen, Committed, Committed]

    async def test_the_epoch_and_the_limits_come_first(self, store: Store, board: str) -> None:
        """And conditions and fences after it: a frozen board tells nothing else."""
        ada, _, _ = await frozen(store, board)
        many = await ada.attempt(*[Delete(PLAN)] * (OPERATIONS_MAX + 1))
        assert isinstance(many, LimitExceeded)
        wrong = ada.make(Put(PLAN, packed(2)), conditions=[KeyAt(PLAN, 99)])
        assert isinstance(await ada.send(wrong), BoardFrozen)
        ada.epoch = "another"
        assert isinstance(await ada.attempt(Put(PLAN, packed(2))), StaleEpoch)

    async def test_conditions_still_hold_for_what_gets_in(self, store: Store, board: str) -> None:
        """As those of the sweeper, which wants no frozen board."""
        _, service, since = await frozen(store, board)
        commit = service.make(Delete(PLAN), conditions=[KeyAt(FROZEN_KEY, 0)])
        refused = await service.send(commit)
        assert isinstance(refused, Conflict)
        assert (refused.key, refused.actual) == (FROZEN_KEY, since.revision)
