"""Rules of a restore: one commit that begins an epoch, at the head that it was computed for."""

from collections.abc import Sequence

import anyio
import pytest

from blackboard import limits
from blackboard.core.commit import (
    ENGINE,
    RESTORE,
    Append,
    Change,
    ChangeKind,
    Commit,
    Committed,
    Delete,
    Epoch,
    Grant,
    Head,
    HeldFence,
    Increment,
    Op,
    Put,
    PutBack,
    Renew,
)
from blackboard.core.history import check_sequence
from blackboard.core.state import State, evolve
from blackboard.engines.base import Store
from blackboard.errors import Fenced, HeadMoved, InvalidRequest, LimitExceeded, StaleEpoch
from blackboard.limits import HOLD_MS_MAX, VALUE_BYTES_MAX, VALUE_INLINE_BYTES_MAX
from tests.conformance.rules_log import whole_log
from tests.conformance.writer import Writer, packed

PLAN, NOTE = "public/plan", "private/ada/note"
ONE = packed(1)
HOUR_MS = 3_600_000
FAR_MS = 2_000_000_000_000
SOON_S = 60
"""What a board that is held longer would exceed."""


def restore(head: Head, writer: Writer, *ops: Op, to: int = 0, number: int | None = None) -> Commit:
    """The restore of a board at `head`, by `writer`, not sent yet."""
    epoch = Epoch(
        number=head.epoch.number + 1 if number is None else number,
        id=f"{writer.board}-{head.revision + 1}",
        cause=RESTORE,
        from_revision=to,
        revision=head.revision + 1,
    )
    return Commit(writer.make().id, head.epoch.id, ops, note="back", begins=epoch)


async def restored(store: Store, writer: Writer, *ops: Op, to: int = 0) -> tuple[Commit, Committed]:
    """A restore that must be accepted."""
    commit = restore(await store.open(writer.board), writer, *ops, to=to)
    outcome = await writer.send(commit)
    assert isinstance(outcome, Committed), outcome
    return commit, outcome


class RestoreRules:
    """A restore is a commit like any other, and begins an epoch besides."""

    async def test_it_puts_back_and_removes_as_one_revision(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        await ada.commit(Put(PLAN, packed(2)), Put(NOTE, packed("new")))
        large = packed("L" * (VALUE_INLINE_BYTES_MAX + 1))
        commit, done = await restored(
            store,
            ada,
            PutBack(PLAN, packed(1)),
            PutBack("public/large", large, FAR_MS),
            Delete(NOTE),
            to=1,
        )
        assert (done.revision, done.results) == (3, (None, None, 1))
        plan, big = (await store.read(board, [PLAN, NOTE, "public/large"])).entries
        assert (plan.value, plan.mod_revision, plan.create_revision) == (packed(1), 3, 1)
        assert (big.value, big.expires_at_ms, big.time_ms) == (large, FAR_MS, done.time_ms)
        [entry] = (await store.log(board, 2, limit=10)).entries
        assert entry.epoch == commit.begins
        assert entry.changes == (
            Change(ChangeKind.PUT, PLAN, packed(1)),
            Change(ChangeKind.PUT, "public/large", large, FAR_MS),
            Change(ChangeKind.DELETE, NOTE),
        )
        assert (entry.author, entry.note) == ("ada", "back")

    async def test_the_epoch_begins_with_it(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        commit, done = await restored(store, ada)
        head = await store.open(board)
        assert head.epoch == commit.begins
        assert (head.revision, head.log_entries) == (done.revision, 2)
        late = await ada.attempt(Put(PLAN, packed(2)))
        assert isinstance(late, StaleEpoch)
        assert (late.cause, late.from_revision, late.head) == (RESTORE, 0, 2)
        ada.epoch = head.epoch.id
        assert (await ada.commit(Put(PLAN, packed(2)))).revision == 3
        assert (await store.read(board, [PLAN])).epoch == head.epoch.id

    async def test_it_takes_effect_at_its_head_or_not_at_all(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        commit = restore(await store.open(board), ada, PutBack(PLAN, packed(0)))
        await (await Writer.open(store, board, "bob")).commit(Put(NOTE, packed(2)))
        refused = await ada.send(commit)
        assert isinstance(refused, HeadMoved)
        assert (refused.expected, refused.head) == (1, 2)
        head = await store.open(board)
        assert (head.revision, head.epoch.number) == (2, 1)
        assert (await store.read(board, [PLAN])).entries[0].value == packed(1)

    async def test_a_retried_restore_gets_its_first_answer(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        commit, done = await restored(store, ada, Delete(PLAN))
        bob = await Writer.open(store, board, "bob")
        await bob.commit(Put(PLAN, packed(2)))
        again = await ada.send(commit)
        assert isinstance(again, Committed)
        assert (again.duplicate, again.revision, again.results) == (True, done.revision, (1,))
        assert (await store.read(board, [PLAN])).entries[0].value == packed(2)

    async def test_lanes_keep_their_answers(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        bob = await Writer.open(store, board, "bob")
        step = bob.make(Increment("public/n", 5))
        first = await bob.send(step)
        assert isinstance(first, Committed)
        await restored(store, ada, Delete("public/n"))
        again = await bob.send(step)
        assert isinstance(again, Committed)
        assert (again.duplicate, again.results, again.revision) == (True, (5,), first.revision)

    async def test_it_ends_every_lease_with_its_queue(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Grant("public/lock", "ada", HOUR_MS))
        await ada.commit(Grant("public/lock", "bob", HOUR_MS, wait=True))
        await ada.commit(Grant("public/other", "ada", HOUR_MS))
        await restored(store, ada)
        assert (await store.leases(board)).leases == ()
        ada.epoch = (await store.open(board)).epoch.id
        refused = await ada.attempt(Renew("public/lock", "ada", 1, HOUR_MS))
        assert isinstance(refused, Fenced)
        assert refused.current == 0
        relies = await ada.attempt(
            Put(PLAN, packed(1)), fences=[HeldFence("public/other", "ada", 3)]
        )
        assert isinstance(relies, Fenced)
        granted = await ada.commit(Grant("public/lock", "cyd", HOUR_MS))
        assert granted.results[0] == ("cyd", granted.revision, granted.time_ms + HOUR_MS)

    async def test_indexes_of_lists_go_on(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Append("public/list", packed("a")))
        await ada.commit(Append("public/list", packed("b")))
        await restored(store, ada, Delete("public/list/0000000001"), to=1)
        ada.epoch = (await store.open(board)).epoch.id
        done = await ada.commit(Append("public/list", packed("c")))
        assert done.results == ("public/list/0000000002",)

    async def test_items_that_the_engine_does_not_know_of_are_counted(
        self, store: Store, board: str
    ) -> None:
        """`append` goes on above what a restore says was given, whether it is there or not."""
        ada = await Writer.open(store, board)
        await ada.commit(*[Append(prefix, packed("a")) for prefix in ("public/far", "inbox/ada")])
        await restored(
            store,
            ada,
            PutBack("public/list/0000000004", packed("e"), item=4),
            PutBack("public/far/0000000007", None, item=7),
            PutBack("inbox/ada/0000000000", None),
            PutBack("public/gone/0000000002", packed("c"), FAR_MS, 2),
            Delete("public/gone/0000000002"),
        )
        [entry] = (await store.log(board, 1, limit=10)).entries
        assert entry.changes == (
            Change(ChangeKind.PUT, "public/list/0000000004", packed("e"), item=4),
            Change(ChangeKind.DELETE, "public/far/0000000007", item=7),
            Change(ChangeKind.DELETE, "inbox/ada/0000000000"),
            Change(ChangeKind.DELETE, "public/gone/0000000002", item=2),
        )
        ada.epoch = (await store.open(board)).epoch.id
        lists = ("public/list", "public/far", "inbox/ada", "public/gone")
        given = await ada.commit(*[Append(prefix, packed("z")) for prefix in lists])
        assert [str(key)[-2:] for key in given.results] == ["05", "08", "01", "03"]
        await restored(store, ada, PutBack("public/list/0000000001", ONE, item=1))
        ada.epoch = (await store.open(board)).epoch.id
        given = await ada.commit(Append("public/list", packed("z")))
        assert given.results == ("public/list/0000000006",)

    async def test_what_came_back_expires(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await restored(store, ada, PutBack(PLAN, packed(1), 1_000), PutBack(NOTE, packed(2)))
        assert [entry.key for entry in (await store.due(board, limit=10)).entries] == [PLAN]
        ada.epoch = (await store.open(board)).epoch.id
        await ada.commit(Delete(PLAN), Put(NOTE, packed(3)))
        assert (await store.due(board, limit=10)).entries == ()

    async def test_the_log_of_a_restored_board_is_its_state(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        first = (await store.open(board)).epoch
        for number in range(3):
            await ada.commit(Put(PLAN, packed(number)), Append("public/list", packed(number)))
        await ada.commit(Grant("public/lock", "ada", HOUR_MS))
        await restored(store, ada, PutBack(PLAN, packed(0)), Delete("public/list/0000000002"))
        ada.epoch = (await store.open(board)).epoch.id
        await ada.commit(Put(NOTE, packed("after")))
        log, state = await whole_log(store, board), State(first)
        assert check_sequence(0, log) == 6
        for entry in log:
            evolve(state, entry)
        assert tuple(state.entries.values()) == (await store.list(board, "", limit=10)).entries
        assert not state.leases

    @pytest.mark.parametrize(
        ("ops", "number", "field"),
        [
            ((Put(PLAN, b"\1"),), None, "ops"),
            ((Grant("public/lock", "ada", HOUR_MS),), None, "ops"),
            ((Append("public/list", b"\1"),), None, "ops"),
            ((Delete(PLAN),), 1, "begins"),
            ((Delete(PLAN),), 3, "begins"),
        ],
        ids=["put", "grant", "append", "this epoch", "a later epoch"],
    )
    async def test_it_has_no_other_form(
        self, store: Store, board: str, ops: Sequence[Op], number: int | None, field: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        outcome = await ada.send(restore(await store.open(board), ada, *ops, number=number))
        assert isinstance(outcome, InvalidRequest)
        assert outcome.field == field
        assert (await store.open(board)).epoch.number == 1

    async def test_only_a_restore_of_this_board_begins_an_epoch(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        head = await store.open(board)
        for cause, since in ((ENGINE, 0), (RESTORE, 1)):
            name = ada.make().id
            begins = Epoch(2, "another", cause, since, head.revision + 1)
            outcome = await ada.send(Commit(name, ada.epoch, (), begins=begins))
            assert isinstance(outcome, InvalidRequest)
            assert outcome.field == "begins"

    async def test_nothing_but_a_restore_puts_back(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        outcome = await ada.attempt(Put(PLAN, packed(1)), PutBack(NOTE, packed(1)))
        assert isinstance(outcome, InvalidRequest)
        assert outcome.field == "ops"
        assert (await store.open(board)).revision == 0

    async def test_it_may_change_more_keys_than_a_commit(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        many = [PutBack(f"public/k/{n}", packed(n)) for n in range(limits.OPERATIONS_MAX + 1)]
        await restored(store, ada, *many)
        monkeypatch.setattr(limits, "RESTORE_CHANGES_MAX", 2)
        ada.epoch = (await store.open(board)).epoch.id
        commit = restore(await store.open(board), ada, *[Delete(op.key) for op in many[:3]])
        refused = await ada.send(commit)
        assert isinstance(refused, LimitExceeded)
        assert (refused.limit, refused.value) == ("RESTORE_CHANGES_MAX", 3)

    async def test_quotas_do_not_keep_back_what_was_there(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        monkeypatch.setattr(limits, "NAMESPACE_KEYS_MAX", 1)
        await restored(store, ada, *[PutBack(f"public/k/{n}", packed(n)) for n in range(3)])
        ada.epoch = (await store.open(board)).epoch.id
        refused = await ada.attempt(Put("public/k/3", packed(3)))
        assert isinstance(refused, LimitExceeded)
        assert (refused.limit, refused.value) == ("NAMESPACE_KEYS_MAX", 4)

    async def test_many_large_values_come_back(self, store: Store, board: str) -> None:
        """More than one log entry of Redis could have as fields of their own; read back whole."""
        ada = await Writer.open(store, board)
        values = [packed(f"{n}" + "v" * VALUE_INLINE_BYTES_MAX) for n in range(4_200)]
        values[0] = packed("x" * (VALUE_BYTES_MAX - 5))
        ops = [PutBack(f"public/k/{n:05d}", value) for n, value in enumerate(values)]
        await restored(store, ada, *ops)
        [entry] = (await store.log(board, 0, limit=1)).entries
        assert [change.value for change in entry.changes] == values
        page = await store.read(board, ["public/k/00000", "public/k/04199"])
        assert [found.value for found in page.entries] == [values[0], values[-1]]


async def hold_long(store: Store, board: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold a board for longer than a slow machine needs for what happens meanwhile."""
    monkeypatch.setattr(limits, "HOLD_MS_MAX", HOUR_MS)
    await store.hold(board, HOUR_MS)


class HoldRules:
    """A board that is held lets commits wait, but for a restore."""

    async def test_commits_wait_until_the_hold_is_over(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        began = anyio.current_time()
        await store.hold(board, 150)
        done = await ada.commit(Put(PLAN, packed(1)))
        assert anyio.current_time() - began > 0.14
        assert done.revision == 1

    async def test_it_can_be_ended_early(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        await hold_long(store, board, monkeypatch)
        with anyio.fail_after(SOON_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ada.commit, Put(PLAN, packed(1)))
                await anyio.wait_all_tasks_blocked()
                assert (await store.open(board)).revision == 0
                await store.hold(board, 0)
        assert (await store.open(board)).revision == 1

    async def test_a_restore_passes_and_ends_it(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        bob = await Writer.open(store, board, "bob")
        await ada.commit(Put(PLAN, packed(1)))
        outcomes: list[object] = []

        async def late() -> None:
            outcomes.append(await bob.attempt(Put(PLAN, packed(2))))

        await hold_long(store, board, monkeypatch)
        with anyio.fail_after(SOON_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(late)
                await anyio.wait_all_tasks_blocked()
                _, done = await restored(store, ada, Delete(PLAN))
                assert done.revision == 2
        [outcome] = outcomes
        assert isinstance(outcome, StaleEpoch)

    async def test_reading_goes_on(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        await hold_long(store, board, monkeypatch)
        with anyio.fail_after(SOON_S):
            assert (await store.read(board, [PLAN])).entries
            assert (await store.log(board, 0, limit=1)).entries
            await store.open(board)
        await store.hold(board, 0)

    async def test_nobody_holds_a_board_for_long(self, store: Store, board: str) -> None:
        await store.open(board)
        await store.hold(board, HOLD_MS_MAX)
        await store.hold(board, 0)
        with pytest.raises(LimitExceeded):
            await store.hold(board, HOLD_MS_MAX + 1)
