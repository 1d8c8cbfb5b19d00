"""What log entries add to the archive."""

from blackboard.archive.fold import STEP_CHANGES, Fold, Known, large_values
from blackboard.core import digest
from blackboard.core.commit import Append, Delete, Put
from blackboard.engines.base import LoggedValue
from blackboard.wire.codec import encode_value
from tests.unit.core.trial import Trial

ONE, TWO = encode_value(1), encode_value(2)


def told(*, known: dict[str, Known] | None = None, settled: tuple[int, ...] = (4,)) -> Fold:
    """A short history, folded, and settled after some revisions."""
    trial = Trial()
    trial.commit(Put("public/a", ONE), Put("private/ada/a", ONE))
    trial.commit(Put("public/a", TWO))
    trial.commit(Delete("public/a"), Append("public/l", ONE))
    trial.commit(Put("public/a", ONE))
    fold = Fold(1, bytes(32), known or {}, {})
    for entry in trial.log:
        fold.apply(entry)
        if entry.revision in settled:
            fold.settle(entry.revision)
    return fold


def test_versions_say_since_when_a_key_exists() -> None:
    """A removal ends it; what comes after starts a new one."""
    rows = [(r["revision"], r["key"], r["create_revision"], r["item"]) for r in told().versions]
    assert rows == [
        (1, "public/a", 1, None),
        (1, "private/ada/a", 1, None),
        (2, "public/a", 1, None),
        (3, "public/a", 1, None),
        (3, "public/l/0000000000", 3, 0),
        (4, "public/a", 4, None),
    ]


def test_sums_follow_the_content() -> None:
    """As if made from nothing at the end."""
    fold = told()
    content = digest.content_of(ONE)
    public = digest.EMPTY
    for key in ("public/a", "public/l/0000000000"):
        public = digest.add(public, digest.element(key, content, None))
    private = digest.add(digest.EMPTY, digest.element("private/ada/a", content, None))
    assert fold.totals == {"public": public, "private/ada": private}
    assert digest.digests_of(fold.totals | {"inbox/bo": digest.EMPTY}) == {
        "private/ada": digest.digest_of(private),
        "public": digest.digest_of(public),
    }
    revisions = [(row["namespace"], row["revision"]) for row in fold.digests]
    assert revisions == [("public", 4), ("private/ada", 4)]


def test_sums_are_those_of_where_they_were_settled() -> None:
    """However often; in between a key counts once. What is settled again changes nothing."""
    once, often = told(), told(settled=(1, 2, 4))
    assert often.totals == once.totals
    revisions = [(row["namespace"], row["revision"]) for row in often.digests]
    assert revisions == [("public", 1), ("private/ada", 1), ("public", 2), ("public", 4)]
    assert often.digests[-1]["digest"] == digest.digest_of(once.totals["public"])
    often.settle(5)
    assert len(often.digests) == 4
    assert told(settled=()).totals == {}


def test_what_came_and_went_in_between_adds_up_to_nothing() -> None:
    """Its namespace was touched all the same."""
    trial = Trial()
    trial.commit(Put("public/a", ONE))
    trial.commit(Delete("public/a"))
    fold = Fold(1, bytes(32), {}, {})
    for entry in trial.log:
        fold.apply(entry)
    fold.settle(2)
    assert fold.totals == {"public": digest.EMPTY}
    assert [row["digest"] for row in fold.digests] == [digest.EMPTY_DIGEST]


def test_what_a_listing_knows_already_adds_nothing() -> None:
    """Changes up to the revision at which the key was listed."""
    element = digest.element("public/a", digest.content_of(TWO), None)
    fold = told(known={"public/a": Known(2, 1, 9, element)})
    rows = [(row["revision"], row["key"]) for row in fold.versions]
    assert (1, "public/a") not in rows
    assert (2, "public/a") not in rows
    assert (3, "public/a") in rows
    assert len(fold.commits) == 4


def test_large_values_are_those_above_the_limit() -> None:
    """Not one at it."""
    trial = Trial()
    trial.commit(Put("public/a", ONE * 5), Put("public/b", ONE * 6), Delete("public/c"))
    assert large_values(trial.log, {}, 5) == [ONE * 6]
    assert large_values(trial.log, {1: {"public/b": LoggedValue(1, 0, 6)}}, 5) == []


def test_a_large_entry_is_folded_in_short_steps() -> None:
    """A restore changes many keys: others run in between, and the outcome is that of one step."""
    trial = Trial()
    trial.commit(*(Put(f"public/k{number}", ONE) for number in range(200)))
    [entry] = trial.log
    stepwise, whole = Fold(1, bytes(32), {}, {}), Fold(1, bytes(32), {}, {})
    steps = sum(1 for _ in stepwise.steps_of(entry))
    whole.apply(entry)
    assert steps == 200 // STEP_CHANGES
    assert sum(1 for _ in stepwise.steps_to_settle(1)) == 200 // STEP_CHANGES
    whole.settle(1)
    assert stepwise == whole
