"""Rules of single commits: atomicity, conditions, results, exactly once, epochs, limits."""

import pytest
from msgspec.structs import replace

from blackboard import limits
from blackboard.core.commit import (
    ABSENT,
    PRESENT,
    Append,
    Commit,
    Committed,
    Delete,
    DeletePrefix,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Op,
    Put,
    Renew,
)
from blackboard.core.path import superseding_key
from blackboard.engines.base import Store
from blackboard.errors import (
    AttemptTooOld,
    Conflict,
    Fenced,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    StaleEpoch,
    StepSuperseded,
    TypeMismatch,
)
from blackboard.limits import INTEGER_MAX, KEY_BYTES_MAX, VALUE_INLINE_BYTES_MAX
from tests.conformance.writer import Writer, packed

PLAN, NOTE, COUNT = "public/plan", "private/ada/note", "public/count"


class CommitRules:
    """What one commit may and may not do."""

    async def test_a_commit_gets_the_next_revision(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        assert (await ada.commit(Put(PLAN, packed(1)))).revision == 1
        assert (await ada.commit(Put(NOTE, packed(2)))).revision == 2

    async def test_all_operations_of_a_commit_share_its_revision(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        done = await ada.commit(Put(PLAN, packed("p")), Put(NOTE, packed("n")))
        reading = await store.read(board, [PLAN, NOTE])
        assert reading.revision == done.revision
        assert [entry.mod_revision for entry in reading.entries] == [1, 1]
        assert [entry.author for entry in reading.entries] == ["ada", "ada"]
        assert [entry.time_ms for entry in reading.entries] == [done.time_ms] * 2

    async def test_a_refused_commit_changes_nothing(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed("p")), Put(COUNT, packed("no number")))
        before = (await store.list(board, "", limit=10), await store.log(board, 0, limit=10))
        refused = await ada.attempt(Put(PLAN, packed("q")), Delete(NOTE), Increment(COUNT, 1))
        assert isinstance(refused, TypeMismatch)
        after = (await store.list(board, "", limit=10), await store.log(board, 0, limit=10))
        assert before[0] == after[0]
        assert before[1].entries == after[1].entries

    async def test_create_revision_survives_an_overwrite_but_not_a_deletion(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        await ada.commit(Put(PLAN, packed(2)))
        [entry] = (await store.read(board, [PLAN])).entries
        assert (entry.create_revision, entry.mod_revision) == (1, 2)
        await ada.commit(Delete(PLAN))
        await ada.commit(Put(PLAN, packed(3)))
        [entry] = (await store.read(board, [PLAN])).entries
        assert (entry.create_revision, entry.mod_revision) == (4, 4)

    async def test_delete_says_whether_the_key_existed(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        assert await ada.result(Delete(PLAN)) == 1
        assert await ada.result(Delete(PLAN)) == 0
        assert (await store.read(board, [PLAN])).entries == ()

    # --- what changes nothing ---------------------------------------------------------------------

    @pytest.mark.parametrize(
        "ops",
        [
            (Delete("public/absent"),),
            (DeletePrefix("public/none"),),
            (Delete("public/absent"), DeletePrefix("public/none"), Delete(NOTE)),
        ],
        ids=["a key", "a prefix", "several"],
    )
    async def test_to_remove_what_is_not_there_makes_no_revision(
        self, store: Store, board: str, ops: tuple[Op, ...]
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)), Put(NOTE, packed(1)))
        await ada.commit(Delete(NOTE))
        before = await store.open(board)
        done = await ada.commit(*ops)
        assert (done.revision, done.duplicate) == (before.revision, False)
        assert [result or 0 for result in done.results] == [0] * len(ops)
        after = await store.open(board)
        assert (after.revision, after.log_entries) == (before.revision, before.log_entries)
        assert (await store.log(board, before.revision, limit=10)).entries == ()
        assert (await ada.commit(Put(PLAN, packed(2)))).revision == before.revision + 1

    async def test_what_changes_nothing_is_checked_as_any_commit(
        self, store: Store, board: str
    ) -> None:
        """Epoch, fences, conditions in their order."""
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        nothing = Delete("public/absent")
        conflict = await ada.send(ada.make(nothing, conditions=[KeyAt(PLAN, 7)]))
        assert isinstance(conflict, Conflict)
        fenced = await ada.send(ada.make(nothing, fences=[HeldFence("public/l", "ada", 1)]))
        assert isinstance(fenced, Fenced)
        held = await ada.send(ada.make(nothing, conditions=[KeyAt(PLAN, 1)]))
        assert isinstance(held, Committed)
        assert held.revision == 1
        ada.epoch = "another"
        assert isinstance(await ada.attempt(nothing), StaleEpoch)

    async def test_with_another_change_it_is_a_revision_as_ever(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        done = await ada.commit(Delete("public/absent"), Put(PLAN, packed(1)))
        assert (done.revision, done.results) == (1, (0, None))
        [entry] = (await store.log(board, 0, limit=10)).entries
        assert [change.key for change in entry.changes] == [PLAN]
        granted = await ada.commit(Delete("public/absent"), Grant("public/l", "ada", 60_000))
        assert granted.revision == 2

    async def test_renewals_with_it_are_carried_out(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        granted = await ada.commit(Grant("public/l", "ada", 0))
        done = await ada.commit(
            Renew("public/l", "ada", granted.revision, 0), Delete("public/absent")
        )
        assert (done.revision, done.results[1]) == (granted.revision, 0)
        [lease] = (await store.leases(board)).leases
        assert lease.until_ms == done.time_ms

    async def test_a_retry_that_removes_nothing_is_logged(self, store: Store, board: str) -> None:
        """Its first attempt may still be under way, and must not remove what is put there later."""
        ada = await Writer.open(store, board)
        bob = await Writer.open(store, board, "bob")
        await bob.commit(Put(NOTE, packed(1)))
        late = ada.make(Delete(PLAN))
        retry = replace(late, retry_since=1)
        done = await ada.send(retry)
        assert isinstance(done, Committed)
        assert (done.revision, done.results) == (2, (0,))
        await bob.commit(Put(PLAN, packed(1)))
        again = await ada.send(late)
        assert isinstance(again, Committed)
        assert (again.duplicate, again.results) == (True, (0,))
        assert len((await store.read(board, [PLAN])).entries) == 1

    async def test_the_end_of_a_lane_is_reported(self, store: Store, board: str) -> None:
        """A step that changes nothing is to keep out an earlier one that is still under way."""
        ada = await Writer.open(store, board)
        await ada.commit(Put(NOTE, packed(1)))
        late = ada.make(Put(PLAN, packed(1)))
        mark = await ada.commit(Delete(superseding_key("ada")))
        assert mark.revision == 2
        assert isinstance(await ada.send(late), StepSuperseded)

    async def test_a_later_operation_sees_the_earlier_ones(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        done = await ada.commit(
            Increment(COUNT, 2), Increment(COUNT, 3), Delete(COUNT), Increment(COUNT, 7)
        )
        assert done.results == (2, 5, 1, 7)
        [entry] = (await store.read(board, [COUNT])).entries
        assert entry.value == packed(7)

    # --- conditions -------------------------------------------------------------------------------

    @pytest.mark.parametrize("expected", [ABSENT, 1, 3, 2**52])
    async def test_a_key_at_another_revision_is_a_conflict(
        self, store: Store, board: str, expected: int
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed("one")))
        await ada.commit(Put(PLAN, packed("two")))
        refused = await ada.attempt(Put(NOTE, packed(1)), conditions=[KeyAt(PLAN, expected)])
        assert isinstance(refused, Conflict)
        assert refused.fields() == {
            "key": PLAN,
            "expected": expected,
            "actual": 2,
            "by": "ada",
            "at_revision": 2,
            "head": 2,
            "current": packed("two"),
        }

    async def test_the_exact_revision_presence_and_absence_hold(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)), conditions=[KeyAt(PLAN, ABSENT)])
        await ada.commit(Put(PLAN, packed(2)), conditions=[KeyAt(PLAN, 1)])
        await ada.commit(Put(PLAN, packed(3)), conditions=[KeyAt(PLAN, PRESENT)])
        assert isinstance(
            await ada.attempt(Put(PLAN, packed(4)), conditions=[KeyAt(NOTE, PRESENT)]), Conflict
        )

    async def test_a_conflict_on_a_removed_key_names_the_remover(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        bob = await Writer.open(store, board, "bob")
        await bob.commit(Delete(PLAN))
        refused = await ada.attempt(Put(PLAN, packed(2)), conditions=[KeyAt(PLAN, 1)])
        assert isinstance(refused, Conflict)
        assert (refused.actual, refused.by, refused.at_revision) == (ABSENT, "bob", 2)

    async def test_a_conflict_does_not_carry_a_large_value(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        for size, is_shown in ((VALUE_INLINE_BYTES_MAX, True), (VALUE_INLINE_BYTES_MAX + 1, False)):
            value = packed(b"x" * (size - 3))
            assert len(value) == size
            await ada.commit(Put(PLAN, value))
            refused = await ada.attempt(Put(PLAN, packed(2)), conditions=[KeyAt(PLAN, ABSENT)])
            assert isinstance(refused, Conflict)
            assert refused.current == (value if is_shown else None)

    # --- increment and append ---------------------------------------------------------------------

    @pytest.mark.parametrize(
        "number", [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, INTEGER_MAX]
    )
    async def test_integers_of_every_width_count_exactly(
        self, store: Store, board: str, number: int
    ) -> None:
        ada = await Writer.open(store, board)
        for target in (number, -number):
            await ada.commit(Put(COUNT, packed(target)))
            assert await ada.result(Increment(COUNT, -target)) == 0
            assert await ada.result(Increment(COUNT, target)) == target
            [entry] = (await store.read(board, [COUNT])).entries
            assert entry.value == packed(target)

    @pytest.mark.parametrize(("start", "by"), [(INTEGER_MAX, 1), (-INTEGER_MAX, -INTEGER_MAX)])
    async def test_an_increment_beyond_the_largest_integer_is_refused_with_the_exact_sum(
        self, store: Store, board: str, start: int, by: int
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(COUNT, packed(start)))
        refused = await ada.attempt(Increment(COUNT, by))
        assert refused_fields(refused) == {
            "limit": "INTEGER_MAX",
            "value": start + by,
            "maximum": INTEGER_MAX,
            "where": COUNT,
            "account": None,
        }

    @pytest.mark.parametrize(
        ("value", "found"),
        [
            ("text", "string"),
            (None, "null"),
            (True, "boolean"),
            (1.5, "float"),
            ([1], "list"),
            ({"a": 1}, "map"),
            (b"b", "bytes"),
            ("x" * 3000, "string"),
            ([0] * 3000, "list"),
            (2**53, "integer"),
            (-(2**53), "integer"),
            (2**64 - 1, "integer"),
        ],
        ids=lambda value: str(value)[:12],
    )
    async def test_only_exact_integers_can_be_incremented(
        self, store: Store, board: str, value: object, found: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(COUNT, packed(value)))
        refused = await ada.attempt(Increment(COUNT, 1))
        assert isinstance(refused, TypeMismatch)
        assert (refused.key, refused.wanted, refused.found) == (COUNT, "integer", found)

    async def test_appended_items_are_numbered_and_never_renumbered(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        first, second = "public/list/0000000000", "public/list/0000000001"
        done = await ada.commit(
            Append("public/list", packed("a")), Append("public/list", packed("b"))
        )
        assert done.results == (first, second)
        await ada.commit(Delete(second))
        assert await ada.result(Append("public/list", packed("c"))) == "public/list/0000000002"
        page = await store.list(board, "public/list", limit=10)
        assert [entry.key for entry in page.entries] == [first, "public/list/0000000002"]

    async def test_an_index_is_spent_even_if_its_commit_removed_the_item(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        item = "public/list/0000000000"
        await ada.commit(Append("public/list", packed("a")), Delete(item))
        assert await ada.result(Append("public/list", packed("b"))) == "public/list/0000000001"

    async def test_append_does_not_overwrite_what_was_put_there(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/list/0000000000", packed("mine")))
        refused = await ada.attempt(Append("public/list", packed("b")))
        assert isinstance(refused, Conflict)
        assert (refused.key, refused.actual) == ("public/list/0000000000", 1)

    async def test_append_below_a_prefix_that_leaves_no_room_is_refused(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        segment = "/" + "s" * 127
        prefix = "public" + segment * 7 + "/" + "t" * (KEY_BYTES_MAX - 6 - 7 * 128 - 1 - 11)
        assert len(prefix) == KEY_BYTES_MAX - 11
        await ada.commit(Append(prefix, packed("fits")))
        refused = await ada.attempt(Append(prefix + "x", packed("too long")))
        assert refused_fields(refused)["limit"] == "KEY_BYTES_MAX"

    # --- exactly once -----------------------------------------------------------------------------

    async def test_the_same_step_again_gets_its_first_answer(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        step = ada.make(Increment(COUNT, 5), Append("public/list", packed(1)), Delete(PLAN))
        first, again = await ada.send(step), await ada.send(step)
        assert isinstance(first, Committed)
        assert isinstance(again, Committed)
        assert again.duplicate
        assert not first.duplicate
        assert (again.revision, again.time_ms, again.results) == (
            first.revision,
            first.time_ms,
            first.results,
        )
        assert (await store.read(board, [COUNT])).entries[0].value == packed(5)

    async def test_a_step_in_the_same_batch_twice_is_applied_once(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        step = ada.make(Increment(COUNT, 5))
        first, again = await ada.send_all([step, step])
        assert isinstance(first, Committed)
        assert isinstance(again, Committed)
        assert (first.duplicate, again.duplicate, again.results) == (False, True, (5,))

    async def test_a_retry_is_answered_whatever_it_says_now(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        step = ada.make(Put(PLAN, packed(2)), conditions=[KeyAt(PLAN, 1)])
        await ada.send(step)
        again = await ada.send(step)
        assert isinstance(again, Committed)
        assert again.duplicate

    async def test_an_older_step_is_superseded(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        old, new = ada.make(Increment(COUNT, 1)), ada.make(Increment(COUNT, 1))
        await ada.send(new)
        refused = await ada.send(old)
        assert isinstance(refused, StepSuperseded)
        assert (refused.agent, refused.step, refused.last_step) == ("ada", 1, 2)

    async def test_a_refused_step_does_not_use_up_its_number(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        step = ada.make(Put(PLAN, packed(1)), conditions=[KeyAt(NOTE, PRESENT)])
        assert isinstance(await ada.send(step), Conflict)
        bob = await Writer.open(store, board, "bob")
        await bob.commit(Put(NOTE, packed(1)))
        done = await ada.send(step)
        assert isinstance(done, Committed)
        assert not done.duplicate

    async def test_lanes_and_agents_do_not_answer_for_each_other(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Increment(COUNT, 1))
        for agent, lane in (("ada", 1), ("ad", 0), ("bob", 0)):
            other = await Writer.open(store, board, agent)
            other.incarnation, other.lane = ada.incarnation, lane
            assert not (await other.commit(Increment(COUNT, 1))).duplicate
        assert await ada.result(Increment(COUNT, 0)) == 4

    async def test_another_incarnation_starts_its_steps_at_one(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        await ada.commit(Put(PLAN, packed(2)))
        reborn = await Writer.open(store, board)
        reborn.incarnation = "ada-2"
        assert not (await reborn.commit(Put(PLAN, packed(3)))).duplicate

    async def test_a_retry_whose_answer_was_pushed_out_is_unknown(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        known = await ada.commit(Increment(COUNT, 1))
        step = ada.make(Increment(COUNT, 1))
        await ada.send(step)
        reborn = await Writer.open(store, board)
        reborn.incarnation = "ada-2"
        await reborn.commit(Increment(COUNT, 1))
        lost = await ada.send(retried(step, since=known.revision))
        assert isinstance(lost, OutcomeUnknown)
        assert (lost.agent, lost.lane, lost.incarnation, lost.step) == ("ada", 0, "ada-1", 2)
        assert await reborn.result(Increment(COUNT, 0)) == 3

    async def test_a_retry_that_cannot_have_been_pushed_out_is_decided(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Increment(COUNT, 1))
        reborn = await Writer.open(store, board)
        reborn.incarnation = "ada-2"
        newest = await reborn.commit(Increment(COUNT, 1))
        step = ada.make(Increment(COUNT, 1))
        done = await ada.send(retried(step, since=newest.revision))
        assert isinstance(done, Committed)
        assert not done.duplicate

    # --- epochs and limits ------------------------------------------------------------------------

    async def test_a_commit_of_another_epoch_is_refused(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        now, ada.epoch = ada.epoch, "another"
        refused = await ada.attempt(Put(PLAN, packed(2)))
        assert isinstance(refused, StaleEpoch)
        assert refused.fields() == {
            "yours": "another",
            "current": now,
            "number": 1,
            "cause": "created",
            "from_revision": 0,
            "head": 1,
        }

    async def test_a_duplicate_is_answered_even_from_another_epoch(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        ada.epoch, ada.step = "another", 0
        again = await ada.attempt(Put(PLAN, packed(1)))
        assert isinstance(again, Committed)
        assert again.duplicate

    async def test_a_commit_without_operations_is_refused(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        refused = await ada.attempt()
        assert isinstance(refused, InvalidRequest)
        assert refused.field == "ops"

    @pytest.mark.parametrize("where", ["ops", "conditions", "fences", "based_on"])
    async def test_each_list_of_a_commit_has_a_limit(
        self, store: Store, board: str, where: str
    ) -> None:
        ada = await Writer.open(store, board)
        maximum = {
            "ops": limits.OPERATIONS_MAX,
            "conditions": limits.OPERATIONS_MAX,
            "fences": limits.FENCES_MAX,
            "based_on": limits.BASED_ON_MAX,
        }[where]
        # Twice: the edge is accepted (fences: reaches the check of the first one), one more is not.
        for more in (0, 1):
            many = range(maximum + more)
            outcome = await ada.send(
                ada.make(
                    *[Delete(f"public/k{i}") for i in (many if where == "ops" else [0])],
                    conditions=[KeyAt(f"public/k{i}", 0) for i in many if where == "conditions"],
                    fences=[HeldFence(PLAN, "ada", i) for i in many if where == "fences"],
                    based_on=[(PLAN, i) for i in many if where == "based_on"],
                )
            )
            if more:
                assert refused_fields(outcome)["where"] == where
                assert refused_fields(outcome)["value"] == maximum + 1
            else:
                assert not isinstance(outcome, LimitExceeded)

    async def test_a_first_attempt_that_comes_late_is_not_applied_again(
        self, store: Store, board: str
    ) -> None:
        """It was held up on its way; its retry was answered, and that answer pushed out since."""
        ada, other = [await Writer.open(store, board) for _ in range(2)]
        other.incarnation = "ada-2"
        await ada.commit(Put(PLAN, packed(1)))
        step = replace(ada.make(Increment(COUNT, 1)), known=1)
        await ada.send(retried(step, since=1))
        await other.commit(Increment(COUNT, 1))
        late = await ada.send(step)
        assert isinstance(late, AttemptTooOld)
        assert (late.agent, late.lane, late.incarnation, late.step) == ("ada", 0, "ada-1", 2)
        assert (late.known, late.head) == (1, 3)
        assert (await store.read(board, [COUNT])).entries[0].value == packed(2)
        asked = await ada.send(retried(step, since=1))
        assert isinstance(asked, OutcomeUnknown)
        again = await ada.send(replace(step, known=late.head))
        assert isinstance(again, Committed)
        assert again.results == (3,)

    async def test_a_first_attempt_of_another_epoch_is_refused_for_that(
        self, store: Store, board: str
    ) -> None:
        """Not for being late: its writer has seen nothing of the epoch whose head it would be told.
        A retry is still told that nobody knows."""
        ada, other = [await Writer.open(store, board) for _ in range(2)]
        other.incarnation = "ada-2"
        await ada.commit(Put(PLAN, packed(1)))
        await other.commit(Increment(COUNT, 1))
        await ada.commit(Put(PLAN, packed(2)))
        ada.incarnation, ada.epoch = "ada-3", "another"
        step = replace(ada.make(Increment(COUNT, 1)), known=1)
        late = await ada.send(step)
        assert isinstance(late, StaleEpoch)
        assert late.head == 3
        assert isinstance(await ada.send(retried(step, since=1)), OutcomeUnknown)

    async def test_a_first_attempt_that_cannot_have_been_pushed_out_is_applied(
        self, store: Store, board: str
    ) -> None:
        ada, other = [await Writer.open(store, board) for _ in range(2)]
        other.incarnation = "ada-2"
        await ada.commit(Increment(COUNT, 1))
        await other.commit(Increment(COUNT, 1))
        ada.incarnation = "ada-3"
        done = await ada.send(replace(ada.make(Increment(COUNT, 1)), known=1))
        assert isinstance(done, Committed)
        assert done.results == (3,)

    @pytest.mark.parametrize("of", ["NAMESPACE", "BOARD"])
    async def test_a_quota_refuses_growth_and_lets_shrink(
        self, store: Store, board: str, of: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(*[Put(f"public/k{i}", packed("x" * 100)) for i in range(3)])
        where = "public" if of == "NAMESPACE" else None
        lower_limit(monkeypatch, f"{of}_KEYS_MAX", 3)
        more_keys = await ada.attempt(Put("public/k3", packed(1)))
        assert refused_fields(more_keys) == {
            "limit": f"{of}_KEYS_MAX",
            "value": 4,
            "maximum": 3,
            "where": where,
            "account": None,
        }
        await ada.commit(Delete("public/k0"), Put("public/k3", packed(1)))
        lower_limit(monkeypatch, f"{of}_KEYS_MAX", 2)
        await ada.commit(Put("public/k3", packed(2)))
        used = 3 * len("public/k0") + 2 * len(packed("x" * 100)) + len(packed(2))
        lower_limit(monkeypatch, f"{of}_BYTES_MAX", used)
        await ada.commit(Put("public/k3", packed(3)))
        more_bytes = await ada.attempt(Put("public/k3", packed(1000)))
        assert refused_fields(more_bytes)["value"] == used + len(packed(1000)) - 1
        lower_limit(monkeypatch, f"{of}_BYTES_MAX", used - 50)
        await ada.commit(Put("public/k1", packed("x" * 99)))

    async def test_a_quota_of_one_namespace_leaves_the_others_alone(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        lower_limit(monkeypatch, "NAMESPACE_KEYS_MAX", 1)
        await ada.commit(*[Put(f"{n}/k", packed(1)) for n in ("public", "private/a", "inbox/a")])
        refused = await ada.attempt(Put("private/a/k2", packed(1)))
        assert refused_fields(refused)["where"] == "private/a"


def retried(commit: Commit, since: int) -> Commit:
    """The same commit as a writer sends it again that knew revision `since` before."""
    return replace(commit, retry_since=since)


def refused_fields(outcome: object) -> dict[str, object]:
    """The fields of an outcome that must be a LimitExceeded."""
    assert isinstance(outcome, LimitExceeded), outcome
    return outcome.fields()


def lower_limit(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    """Lower a row of blackboard/limits.py for this test, for the rules and for every engine."""
    monkeypatch.setattr(limits, name, value)
