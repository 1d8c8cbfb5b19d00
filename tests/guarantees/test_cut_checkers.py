"""The checkers of cuts can see: a good history passes, and each fault planted in it is found."""

from dataclasses import replace

import pytest

from tests.guarantees.cut_checkers import CUT_GUARANTEES, check
from tests.guarantees.cut_history import Cut, Restored, Step, TeamHistory
from tests.guarantees.planting import Faults


def good() -> TeamHistory:
    """Ada publishes and writes to bob, who answers; a cut, an abandoned future, a restore."""
    a1 = Step("ada", 1, "e1", 1, 0, "a1", (("public/a", "1"),), sent=("m1",))
    b1 = Step("bob", 1, "e1", 2, 1, "b1", (("public/b", "1"),), sent=("m2",), taken=("m1",))
    a2 = Step("ada", 2, "e1", 3, 2, "a2", (("public/a", "2"),), sent=("m3",))
    lost = Step("bob", 2, "e1", 4, 3, "b2", (("public/b", None),), taken=("m3",))
    cut = Cut(
        epoch="e1",
        revision=3,
        steps={"ada": 2, "bob": 1},
        states={"ada": "a2", "bob": "b1"},
        know={"ada": 2, "bob": 1},
        public={"public/a": "2", "public/b": "1"},
        inboxes=frozenset({"m2", "m3"}),
    )
    again = Step("bob", 2, "e2", 6, 5, "b2'", (("public/b", "2"),), taken=("m3",))
    later = Cut(
        epoch="e2",
        revision=6,
        steps={"ada": 2, "bob": 2},
        states={"ada": "a2", "bob": "b2'"},
        know={"ada": 2, "bob": 5},
        public={"public/a": "2", "public/b": "2"},
        inboxes=frozenset({"m2"}),
    )
    restored = Restored(cut, "e1", "e2", 5, replace(cut, epoch="e2", revision=5))
    return TeamHistory([a1, b1, a2, lost, again], [cut, later], [restored])


fault = Faults[TeamHistory]()
FAULTS = fault.planted


@fault("C1")
def an_agent_was_asked_after_it_had_read_on(history: TeamHistory) -> None:
    """Its state in the cut knows of a revision that the cut does not have."""
    history.cuts[0] = replace(history.cuts[0], know={"ada": 2, "bob": 4})


@fault("C2")
def the_board_was_copied_after_the_agents(history: TeamHistory) -> None:
    """Public has ada's second step, her copied state is that of the first."""
    cut = history.cuts[0]
    history.cuts[0] = replace(cut, steps={"ada": 1, "bob": 1}, states={"ada": "a1", "bob": "b1"})


@fault("C3")
def the_board_was_copied_before_the_agents(history: TeamHistory) -> None:
    """Bob remembers a step whose entry is not in the cut."""
    cut = history.cuts[0]
    steps, states = {"ada": 2, "bob": 2}, {"ada": "a2", "bob": "b2"}
    history.cuts[0] = replace(cut, steps=steps, states=states)


@fault("C4")
def a_private_state_is_another_one(history: TeamHistory) -> None:
    """The step's number is right, its state is not."""
    history.cuts[0] = replace(history.cuts[0], states={"ada": "a1", "bob": "b1"})


@fault("C4")
def a_public_key_is_older_than_the_cut(history: TeamHistory) -> None:
    """One key was read before the others."""
    public = {"public/a": "1", "public/b": "1"}
    history.cuts[0] = replace(history.cuts[0], public=public)


@fault("C4")
def a_removed_key_is_back(history: TeamHistory) -> None:
    """A key that the log removed is in the cut."""
    history.cuts[1] = replace(
        history.cuts[1], public={"public/a": "2", "public/b": "2", "public/c": "?"}
    )


@fault("C5")
def a_message_is_delivered_twice(history: TeamHistory) -> None:
    """Bob took it, and it still lies in his inbox."""
    history.cuts[0] = replace(history.cuts[0], inboxes=frozenset({"m1", "m2", "m3"}))


@fault("C5")
def a_message_is_lost(history: TeamHistory) -> None:
    """Ada sent it, bob did not take it, and it is in no inbox."""
    history.cuts[0] = replace(history.cuts[0], inboxes=frozenset({"m2"}))


@fault("C5")
def a_message_comes_from_nowhere(history: TeamHistory) -> None:
    """It is in an inbox, and no step that counts has sent it."""
    history.cuts[0] = replace(history.cuts[0], inboxes=frozenset({"m2", "m3", "m9"}))


@fault("C6")
def an_agent_goes_back(history: TeamHistory) -> None:
    """A later cut of the same epoch has an earlier step."""
    cut = history.cuts[0]
    history.cuts.append(replace(cut, revision=4, steps={"ada": 1, "bob": 2}))


@fault("C7")
def a_process_of_the_abandoned_future_commits(history: TeamHistory) -> None:
    """A step of the old epoch is in the log after the restore."""
    history.steps.append(Step("ada", 3, "e1", 7, 4, "a3"))


@fault("C7")
def a_revision_is_given_out_twice(history: TeamHistory) -> None:
    """The restored board counts on from the checkpoint."""
    history.steps[4] = replace(history.steps[4], revision=4)


@fault("C8")
def a_key_was_not_restored(history: TeamHistory) -> None:
    """The shared key keeps its value of the abandoned future."""
    restored = history.restored[0]
    cut = replace(restored.cut, public={"public/a": "2"})
    history.restored[0] = replace(restored, cut=cut)


@fault("C8")
def an_agent_goes_on_from_the_abandoned_future(history: TeamHistory) -> None:
    """Its first step after the restore follows what it did before it."""
    history.steps[4] = replace(history.steps[4], number=3)


def test_a_good_history_passes() -> None:
    """No checker cries wolf."""
    assert check(good()) == {}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str) -> None:
    """By the checker whose guarantee it breaks."""
    guarantee, plant = FAULTS[name]
    history = good()
    plant(history)
    assert any(found.startswith(guarantee) for found in check(history)), check(history)


def test_every_guarantee_has_a_fault() -> None:
    """A checker that was never seen to fail proves nothing."""
    broken = {guarantee for guarantee, _ in FAULTS.values()}
    assert {name.split()[0] for name in CUT_GUARANTEES} == broken
