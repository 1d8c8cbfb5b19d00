"""A board's state: what one log entry does to it, and what always holds."""

import copy
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from blackboard.core.commit import (
    Append,
    Commit,
    CommitId,
    Committed,
    Delete,
    DeletePrefix,
    Entry,
    Epoch,
    Grant,
    Increment,
    Lease,
    LogEntry,
    Put,
    Release,
    Renew,
)
from blackboard.core.model import decide
from blackboard.core.path import range_below
from blackboard.core.state import BoardUsage, LaneAnswer, State, Tombstone, evolve
from blackboard.wire.codec import marker_entry
from tests.conformance.drawing import Drawing
from tests.conformance.machines import lowered_limits, undated
from tests.unit.core.trial import EPOCH, Trial, faults, packed


def test_a_new_board_is_empty() -> None:
    """And keeps its invariants."""
    state = State(EPOCH)
    assert (state.revision, state.oldest) == (0, 1)
    assert faults(state) == []


def test_put_keeps_when_a_key_came_to_be() -> None:
    """mod_revision, author and time are the last writer's, create_revision the first one's."""
    trial = Trial()
    trial.commit(Put("public/a", packed(1)))
    trial.now_ms = 2_000
    trial.commit(Put("public/a", packed(2), ttl_ms=500), agent="bob")
    expected = Entry("public/a", packed(2), 2, 1, "bob", 2_000, 2_500, 1_000)
    assert trial.state.entries == {"public/a": expected}
    assert trial.state.time_ms == 2_000


def test_a_removed_key_leaves_a_trace_until_it_is_written_again() -> None:
    """The trace says when and by whom; a key that comes back is a new one."""
    trial = Trial()
    trial.commit(Put("public/a", packed(1)))
    trial.commit(Delete("public/a"), agent="bob")
    assert trial.state.entries == {}
    assert trial.state.tombstones == {"public/a": Tombstone(2, "bob")}
    trial.commit(Put("public/a", packed(1)))
    assert trial.state.tombstones == {}
    assert trial.state.entries["public/a"].create_revision == 3


def test_removing_what_never_was_leaves_no_trace() -> None:
    """Even when the log says so."""
    trial = Trial()
    trial.commit(Put("public/a", packed(1)), Delete("public/a"))
    assert trial.log[0].changes[0].value is None
    assert not trial.state.entries
    assert not trial.state.tombstones


def test_compaction_forgets_old_traces_and_never_comes_back_down() -> None:
    """A trace from the oldest kept revision stays."""
    trial = Trial()
    trial.commit(Put("public/a", packed(1)), Put("public/b", packed(1)))
    trial.commit(Delete("public/a"))
    trial.commit(Delete("public/b"))
    trial.state.compact(3)
    assert (trial.state.oldest, [*trial.state.tombstones]) == (3, ["public/b"])
    trial.state.compact(2)
    assert trial.state.oldest == 3
    assert faults(trial.state) == []


def test_below_is_below_and_not_beside() -> None:
    """Neither the prefix itself nor what merely begins with its letters."""
    trial = Trial()
    keys = ["public/d", "public/d/x", "public/d/y/z", "public/d-x", "public/d0", "public/dd/x"]
    trial.commit(*[Put(key, packed(1)) for key in keys])
    assert [*trial.state.below("public/d")] == ["public/d/x", "public/d/y/z"]
    trial.commit(DeletePrefix("public/d"))
    assert [*trial.state.removed_between(*range_below("public/d"))] == [
        "public/d/x",
        "public/d/y/z",
    ]
    assert [*trial.state.below("public/d")] == []


def test_leases_come_change_and_go() -> None:
    """Grant, renewal, another time to live, release: the renewal alone leaves no entry."""
    trial = Trial()
    trial.commit(Grant("public/l", "ada", 1_000))
    assert trial.state.leases == {"public/l": Lease("public/l", "ada", 1, 2_000, (), 1_000, "ada")}
    trial.now_ms = 1_500
    trial.commit(Renew("public/l", "ada", 1, 1_000))
    assert trial.state.leases["public/l"].until_ms == 2_500
    assert trial.state.revision == len(trial.log) == 1
    trial.commit(Renew("public/l", "ada", 1, 3_000))
    assert trial.state.leases == {"public/l": Lease("public/l", "ada", 1, 4_500, (), 3_000, "ada")}
    assert trial.state.revision == len(trial.log) == 2
    trial.commit(Release("public/l", "ada", 1))
    assert trial.state.leases == {}


def test_the_next_index_survives_the_items() -> None:
    """Indexes never repeat, whatever is removed."""
    trial = Trial()
    trial.commit(Append("public/l", packed(1)), Append("public/l", packed(2)))
    trial.commit(DeletePrefix("public/l"))
    assert trial.state.next_item == {"public/l": 2}
    assert trial.commit(Append("public/l", packed(3))).results == ("public/l/0000000002",)


def test_an_item_removed_in_its_own_commit_still_counts() -> None:
    """The log says which index was given, so that a replay knows."""
    trial = Trial()
    trial.commit(Append("public/l", packed(1)), Delete("public/l/0000000000"))
    assert trial.state.entries == {}
    assert trial.state.next_item == {"public/l": 1}


def test_each_lane_keeps_its_last_answer() -> None:
    """With the results; another process on the same lane notes whose answer it pushed out."""
    trial = Trial()
    trial.commit(Increment("public/n", 5))
    first = LaneAnswer("ada-1", 1, 1, 1_000, (5,), overwritten=0)
    assert trial.state.answers == {("ada", 0): first}
    other = Commit(CommitId("ada", 0, "ada-2", 1), "first", (Increment("public/n", 1),))
    trial.send(other)
    assert trial.state.answers["ada", 0] == LaneAnswer("ada-2", 1, 2, 1_000, (6,), overwritten=1)
    trial.send(replace(other, id=CommitId("ada", 0, "ada-2", 2)))
    assert trial.state.answers["ada", 0].overwritten == 1


def test_an_epoch_marker_jumps_and_changes_nothing_else() -> None:
    """Entries stay; the revision is the marker's."""
    trial = Trial()
    trial.commit(Put("public/a", packed(1)))
    entries = dict(trial.state.entries)
    epoch = Epoch(2, "second", "engine", 1, 1_000)
    evolve(trial.state, marker_entry(epoch, 7_000))
    assert (trial.state.revision, trial.state.epoch, trial.state.time_ms) == (1_000, epoch, 7_000)
    assert trial.state.entries == entries
    assert trial.commit(Put("public/a", packed(2))).revision == 1_001


@pytest.mark.parametrize("revision", [0, 1, 3])
def test_a_log_entry_out_of_order_is_not_applied(revision: int) -> None:
    """Only the next one is."""
    trial = Trial()
    trial.commit(Put("public/a", packed(1)))
    entry = LogEntry(revision, 0, CommitId("ada", 0, "ada-1", 9), (), b"")
    with pytest.raises(AssertionError):
        evolve(trial.state, entry)
    assert trial.state.revision == 1


@settings(max_examples=50)
@given(st.data())
def test_what_always_holds_holds_always(data: st.DataObject) -> None:
    """Random commits, batches, retries, a moving clock, compaction: every invariant, every time."""
    with lowered_limits():
        trial = Trial()
        drawing = Drawing(data.draw, trial.state)
        for _ in range(drawing.pick((5, 20))):
            before = copy.deepcopy(trial.state)
            commit = drawing.commit()
            outcome = trial.decide(commit)
            assert trial.state == before, "decide changed something"
            trial.send(commit)
            check_step(before, trial.state, isinstance(outcome, Committed))
            trial.now_ms += drawing.pick((0, 1, 3_600_000))
            if drawing.one_in(12):
                trial.state.compact(drawing.pick((1, trial.state.revision)))
            assert faults(trial.state) == []
        check_replay(trial)


def check_step(before: State, after: State, accepted: bool) -> None:
    """What one commit may do."""
    assert after.revision in (before.revision, before.revision + 1)
    if not accepted:
        assert after == before
    for prefix, item in before.next_item.items():
        assert after.next_item[prefix] >= item


def check_replay(trial: Trial) -> None:
    """The log, from the beginning, adds up to the state (but for compaction); twice, too."""
    replayed = State(EPOCH)
    for entry in trial.log:
        evolve(replayed, entry)
    replayed.compact(trial.state.oldest)
    assert undated(replayed) == undated(trial.state)
    again = copy.deepcopy(replayed)
    for entry in trial.log[-3:]:
        again.revision = entry.revision - 1
        evolve(again, entry)
    assert again.entries.keys() == replayed.entries.keys()
    assert {k: e.value for k, e in again.entries.items()} == {
        k: e.value for k, e in replayed.entries.items()
    }
    assert (again.leases, again.next_item) == (replayed.leases, replayed.next_item)


def a_full_state() -> State:
    """A state with something in each part."""
    trial = Trial()
    trial.commit(Append("public/l", packed(1), ttl_ms=9), Grant("public/x", "ada", 1))
    trial.commit(Put("public/b", packed(1)), Delete("public/l/0000000000"))
    trial.commit(Append("public/l", packed(1), ttl_ms=9))
    assert faults(trial.state) == []
    return trial.state


BREAKS: list[tuple[Callable[[State], object], str]] = [
    (
        lambda state: state.tombstones.update({"public/b": Tombstone(2, "ada")}),
        "a key lives and is removed",
    ),
    (lambda state: setattr(state, "oldest", 3), "a trace of a removal is older than the log"),
    (lambda state: setattr(state, "revision", 2), "a revision is in the future"),
    (lambda state: state.usage.update(public=BoardUsage(1, 9)), "the sums are wrong"),
    (lambda state: state.usage.pop(""), "the sums are wrong"),
    (lambda state: state.expiring.clear(), "the order of expiry is wrong"),
]


@pytest.mark.parametrize(("spoil", "fault"), BREAKS)
def test_each_invariant_is_really_checked(spoil: Callable[[State], object], fault: str) -> None:
    """A state with that fault, and no other, is reported."""
    state = a_full_state()
    spoil(state)
    assert faults(state) == [fault]


def test_decide_needs_no_copy_of_the_state() -> None:
    """A refusal late in a commit leaves nothing of the operations before it."""
    trial = Trial()
    trial.commit(Put("public/a", packed("text")))
    before = copy.deepcopy(trial.state)
    made = trial.make(Put("public/b", packed(1)), Append("public/l", packed(1)))
    made = replace(made, ops=(*made.ops, Increment("public/a", 1)))
    assert not isinstance(decide(trial.state, made, 0), Committed)
    assert trial.state == before
