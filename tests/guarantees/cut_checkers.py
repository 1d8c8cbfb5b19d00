"""Is a cut consistent, and a restore one? One pure function for each of C1 to C8.

Each returns what it found against it, as sentences; an empty list is good.
"""

import hashlib
from collections.abc import Callable
from itertools import pairwise

from tests.guarantees.cut_history import Step, TeamHistory

Checker = Callable[[TeamHistory], list[str]]


def no_orphan_knowledge(history: TeamHistory) -> list[str]:
    """C1: nothing that an agent knows in a cut was written after the cut."""
    return [
        f"cut at {cut.revision}: {agent} knows revision {know}"
        for cut in history.cuts
        for agent, know in cut.know.items()
        if know > cut.revision
    ]


def no_orphan_effect(history: TeamHistory) -> list[str]:
    """C2: an entry in the cut was written by a step that its agent remembers in the cut."""
    return [
        f"cut at {cut.revision}: it has step {step.number} of {step.agent}, who is at {at}"
        for cut in history.cuts
        for step in history.lineage(cut.epoch, cut.revision)
        if step.number > (at := cut.steps.get(step.agent, 0))
    ]


def no_lost_effect(history: TeamHistory) -> list[str]:
    """C3: what a step that an agent remembers in the cut has written is in the cut."""
    found = []
    for cut in history.cuts:
        there = {(s.agent, s.number) for s in history.lineage(cut.epoch, cut.revision)}
        for agent, at in cut.steps.items():
            missing = [n for n in range(1, at + 1) if (agent, n) not in there]
            found += [f"cut at {cut.revision}: step {n} of {agent} is not in it" for n in missing]
    return found


def fidelity(history: TeamHistory) -> list[str]:
    """C4: private states are those of the ghost, public keys are the replay of the log."""
    found = []
    for cut in history.cuts:
        past = history.lineage(cut.epoch, cut.revision)
        states = {(s.agent, s.number): s.state for s in past}
        for agent, at in cut.steps.items():
            if at and digest(cut.states.get(agent, "")) != digest(states.get((agent, at), "?")):
                found.append(f"cut at {cut.revision}: the state of {agent} is not that of {at}")
        public = _replayed(past)
        if public != dict(cut.public):
            wrong = sorted(dict(public.items() ^ cut.public.items()))
            found.append(f"cut at {cut.revision}: public keys {wrong} are not those of the log")
    return found


def messages(history: TeamHistory) -> list[str]:
    """C5: a message that was sent is in an inbox or was taken, never both, never neither."""
    found = []
    for cut in history.cuts:
        remembered = [
            s
            for s in history.lineage(cut.epoch, max(cut.revision, _last(history)))
            if s.number <= cut.steps.get(s.agent, 0)
        ]
        sent = {m for step in remembered for m in step.sent}
        taken = {m for step in remembered for m in step.taken}
        for name in sorted(sent | taken | cut.inboxes):
            places = (name in taken) + (name in cut.inboxes)
            if places != 1 or name not in sent:
                known = name in sent
                found.append(f"cut at {cut.revision}: {name}: sent {known}, in {places} places")
    return found


def order(history: TeamHistory) -> list[str]:
    """C6: of two cuts of one epoch the later one has no agent further back."""
    found = []
    cuts = sorted(history.cuts, key=lambda cut: cut.revision)
    for epoch in {cut.epoch for cut in cuts}:
        for before, after in pairwise([cut for cut in cuts if cut.epoch == epoch]):
            back = [a for a, at in before.steps.items() if after.steps.get(a, 0) < at]
            found += [f"{agent} went back between two cuts of {epoch}" for agent in back]
    return found


def nothing_of_an_old_epoch(history: TeamHistory) -> list[str]:
    """C7: after an epoch ended nothing is committed in it; no revision is given out twice."""
    found = []
    ends = {restore.ended: restore.revision for restore in history.restored}
    seen: set[int] = set()
    for step in history.steps:
        if step.revision in seen:
            found.append(f"revision {step.revision} was given out twice")
        seen.add(step.revision)
        if step.revision >= ends.get(step.epoch, step.revision + 1):
            found.append(f"{step.revision} was committed in {step.epoch}, which had ended")
    return found


def restored_as_it_was(history: TeamHistory) -> list[str]:
    """C8: a restore holds what its checkpoint held, and agents go on from their steps of then."""
    found = []
    for restore in history.restored:
        was, now = restore.source, restore.cut
        if (dict(was.public), dict(was.states), was.inboxes) != (
            dict(now.public),
            dict(now.states),
            now.inboxes,
        ):
            found.append(f"restore at {restore.revision}: it is not what {was.revision} held")
        first: dict[str, int] = {}
        for step in history.steps:
            if step.epoch == restore.epoch:
                first.setdefault(step.agent, step.number)
        for agent, number in first.items():
            if number != was.steps.get(agent, 0) + 1:
                found.append(f"{agent} went on with step {number} after {restore.revision}")
    return found


CUT_GUARANTEES: dict[str, Checker] = {
    "C1 no orphan knowledge": no_orphan_knowledge,
    "C2 no orphan effect": no_orphan_effect,
    "C3 no lost effect": no_lost_effect,
    "C4 fidelity": fidelity,
    "C5 messages": messages,
    "C6 order": order,
    "C7 epochs": nothing_of_an_old_epoch,
    "C8 restore": restored_as_it_was,
}


def check(history: TeamHistory) -> dict[str, list[str]]:
    """What was found against each guarantee; those that hold are left out."""
    found = {name: checker(history) for name, checker in CUT_GUARANTEES.items()}
    return {name: sentences for name, sentences in found.items() if sentences}


def digest(state: str) -> str:
    """A private state's digest: what the ghost compares."""
    return hashlib.sha256(state.encode()).hexdigest()


def _last(history: TeamHistory) -> int:
    return max((step.revision for step in history.steps), default=0)


def _replayed(steps: list[Step]) -> dict[str, str]:
    public: dict[str, str] = {}
    for step in steps:
        for key, value in step.writes:
            if value is None:
                public.pop(key, None)
            else:
                public[key] = value
    return public
