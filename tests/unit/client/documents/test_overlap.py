"""Regions of own edits that are on their way: how they move, what meets them, when they go."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from pycrdt import Array, Doc, Map, Text

from blackboard.client.documents.overlap import (
    RANGES_MAX,
    TEXTS_MAX,
    Overlaps,
    OwnEdits,
    _moved,
    _Range,
)
from blackboard.client.documents.shared_types import Delta


def own(*deltas: Delta, batch: int = 1) -> OwnEdits:
    """What one edit leaves."""
    edits = OwnEdits()
    edits.made(deltas, batch)
    return edits


@pytest.mark.parametrize(
    ("theirs", "met"),
    [
        ([Delta(retain=10), Delta(insert="xx")], (10, 15)),
        ([Delta(retain=12), Delta(insert="xx")], (10, 15)),
        ([Delta(retain=13), Delta(insert="xx")], (10, 15)),
        ([Delta(retain=14), Delta(insert="xx")], None),
        ([Delta(retain=9), Delta(insert="xx")], None),
        ([Delta(retain=8), Delta(delete=4)], (8, 9)),
        ([Delta(retain=14), Delta(delete=4)], None),
        ([Delta(delete=20)], (0, 0)),
        ([Delta(retain=40), Delta(insert="far")], None),
    ],
)
def test_what_touches_an_own_edit_meets_it(
    theirs: list[Delta], met: tuple[int, int] | None
) -> None:
    """Three characters were inserted at 10; told is the region after both."""
    edits = own(Delta(retain=10), Delta(insert="abc"))
    assert edits.met(theirs) == met


def test_an_own_region_moves_with_what_is_before_it() -> None:
    edits = own(Delta(retain=10), Delta(insert="abc"))
    assert edits.met([Delta(insert="12345")]) is None
    assert edits.met([Delta(delete=2)]) is None
    edits.made([Delta(insert="own")], 2)
    assert edits.met([Delta(retain=16), Delta(insert="x")]) == (16, 20)


def test_what_is_committed_is_met_no_more() -> None:
    edits = own(Delta(insert="a"), batch=1)
    edits.made([Delta(retain=9), Delta(insert="b")], 2)
    edits.committed(1)
    assert edits.met([Delta(insert="x")]) is None
    assert edits.met([Delta(retain=10), Delta(insert="x")]) is not None
    edits.committed(2)
    assert not edits


def test_an_author_does_not_overlap_with_a_known_edit() -> None:
    """He built on it: it is on its way only as far as this replica knows."""
    edits = own(Delta(insert="abc"))
    edits.reached(3)
    edits.made([Delta(retain=20), Delta(insert="def")], 1)
    edits.reached(6)
    assert edits.met([Delta(retain=1), Delta(insert="x")], known=3) is None
    assert edits.met([Delta(retain=22), Delta(insert="x")], known=3) is not None
    assert edits.met([Delta(retain=1), Delta(insert="x")], known=2) is not None


def test_only_so_many_own_edits_are_kept_in_mind() -> None:
    """RANGES_MAX; the oldest, which lies last here, is forgotten."""
    edits = OwnEdits()
    for _ in range(RANGES_MAX + 1):
        edits.made([Delta(insert="a"), Delta(retain=1)], 1)
        edits.made([Delta(insert="-")], 0)
    edits.committed(0)
    assert edits.met([Delta(retain=2 * RANGES_MAX + 2), Delta(insert="x")]) is None


def test_what_is_typed_in_one_go_is_one_region() -> None:
    """So that typing costs the same however much of it is on its way."""
    edits = OwnEdits()
    for place in range(3 * RANGES_MAX):
        edits.made([Delta(retain=place), Delta(insert="a")], 1)
        edits.reached(place + 1)
    assert len(edits._ranges) == 1
    assert edits.met([Delta(retain=5), Delta(insert="x")]) == (0, 3 * RANGES_MAX + 1)
    edits.made([Delta(insert="apart, and later")], 2)
    edits.committed(1)
    assert edits.met([Delta(retain=40), Delta(insert="x")]) is None


class Replicas:
    """A replica whose edits are on their way, and somebody else's."""

    def __init__(self) -> None:
        self.met: list[tuple[str, tuple[int, int]]] = []
        self.overlaps = Overlaps(lambda path, region: self.met.append((path, region)))
        self.mine: Doc[Any] = Doc()
        self.theirs: Doc[Any] = Doc()
        root = self.mine.get("plan", type=Array)
        self.subscription = root.observe_deep(self._changed)
        self._root = root

    def _changed(self, events: Sequence[Any]) -> None:
        self.overlaps.changed_below("plan", events)

    def exchange(self) -> None:
        """Both get what they lack."""
        self.theirs.apply_update(self.mine.get_update(self.theirs.get_state()))
        self.overlaps.applying = True
        self.mine.apply_update(self.theirs.get_update(self.mine.get_state()))
        self.overlaps.applying = False

    @staticmethod
    def note(doc: Doc[Any], index: int = 0) -> Text:
        """The text within."""
        found: Text = doc.get("plan", type=Array)[index]["note"]
        return found


def test_texts_within_lists_and_maps_are_looked_at() -> None:
    """By code points, although the library counts bytes."""
    both = Replicas()
    both.mine.get("plan", type=Array).append(Map({"note": Text("é😀 fair")}))
    both.exchange()
    both.overlaps.committed(1)
    both.note(both.mine).insert(7, "un")
    both.note(both.theirs).insert(0, "漢 ")
    both.exchange()
    assert both.met == []
    both.overlaps.committed(1)
    assert str(both.note(both.mine)) == "漢 é😀 unfair"
    both.note(both.mine).insert(11, "not ")
    both.note(both.theirs).insert(11, "so ")
    both.exchange()
    ((path, (start, end)),) = both.met
    assert path == "plan/0/note"
    assert str(both.note(both.mine))[start:end] in ("so not ", "not so ")


def test_a_text_that_gets_another_place_is_read_again() -> None:
    """What was known at a path is the content of another text after an insertion into the list."""
    both = Replicas()
    plan = both.mine.get("plan", type=Array)
    plan.append(Map({"note": Text("漢漢漢漢")}))
    both.note(both.mine).insert(0, "漢")
    plan.insert(0, Map({"note": Text("0123456789abcde")}))  # as many bytes
    both.exchange()
    both.overlaps.committed(1)
    both.note(both.mine).insert(8, "mine")
    both.note(both.theirs).insert(8, "theirs")
    both.exchange()
    ((path, (start, end)),) = both.met
    assert path == "plan/0/note"
    assert str(both.note(both.mine))[start:end] in ("minetheirs", "theirsmine")


def test_texts_within_are_forgotten_when_they_are_too_many() -> None:
    """TEXTS_MAX: a document of many texts does not fill the memory twice."""
    both = Replicas()
    plan = both.mine.get("plan", type=Array)
    for _ in range(TEXTS_MAX + 5):
        plan.append(Map({"note": Text("a")}))
    for index in range(TEXTS_MAX + 5):
        plan[index]["note"].insert(0, "b")
    assert len(both.overlaps._contents) == TEXTS_MAX
    both.overlaps.committed(1)
    assert not both.overlaps
    assert len(both.overlaps._own) == 0


def test_what_one_knew_of_meets_nothing(seed: int) -> None:
    """Edits that take turns, in any place, are no overlap."""
    rng, both = random.Random(seed), Replicas()
    both.mine.get("plan", type=Array).append(Map({"note": Text("0123456789")}))
    for _ in range(100):
        both.exchange()
        both.overlaps.committed(1)
        doc = rng.choice((both.mine, both.theirs))
        text = both.note(doc)
        text.insert(rng.randrange(len(text) + 1), rng.choice(("a", "bc", "def")))
    assert both.met == []


@pytest.mark.parametrize("number", range(300))
def test_edits_of_one_place_move_a_region_as_any_edit_does(number: int, seed: int) -> None:
    """Whatever comes before or after it; an edit of two places is not taken for one."""
    rng = random.Random(f"{seed} {number}")
    parts = [Delta(retain=rng.randint(1, 5)), Delta(delete=rng.randint(1, 5)), Delta(insert="ab")]
    deltas = [part for part in parts if rng.random() < 0.7]
    if number % 3 == 0:
        deltas += [Delta(retain=rng.randint(1, 3)), Delta(insert="c")]
    start = rng.randint(0, 12)
    end = start + rng.randint(0, 4)
    own = OwnEdits()
    own._ranges.append(_Range(start, end, 1))
    own._move(deltas)
    assert (own._ranges[0].start, own._ranges[0].end) == (
        _moved(start, deltas),
        _moved(end, deltas),
    )
