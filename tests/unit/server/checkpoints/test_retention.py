"""Which checkpoints a policy keeps."""

import pytest

from blackboard.core.checkpoints import AUTOMATIC, NAMED, Checkpoint, RetentionPolicy
from blackboard.errors import InvalidRequest
from blackboard.server.checkpoints.schedule import check_policy, kept_by

DAY_MS = 24 * 3600 * 1000
NOW_MS = 100 * DAY_MS + DAY_MS // 2


def taken(name: str, days_ago: float, kind: str = AUTOMATIC, *, pinned: bool = False) -> Checkpoint:
    """A checkpoint of so many days ago."""
    at_ms = int(NOW_MS - days_ago * DAY_MS)
    return Checkpoint("b", name, at_ms, at_ms, kind, pinned=pinned)


CHECKPOINTS = [
    taken("ancient", 50, pinned=True),
    taken("named", 40, NAMED),
    taken("a", 3.1),
    taken("b", 3.0),
    taken("c", 1.2),
    taken("d", 1.0),
    taken("e", 0.2),
    taken("f", 0.1),
]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (RetentionPolicy(last=0, days=0, named=False), {"ancient"}),
        (RetentionPolicy(last=0, days=0), {"ancient", "named"}),
        (RetentionPolicy(last=1, days=0), {"ancient", "named", "f"}),
        (RetentionPolicy(last=3, days=0), {"ancient", "named", "d", "e", "f"}),
        (RetentionPolicy(last=0, days=1), {"ancient", "named", "f"}),
        (RetentionPolicy(last=0, days=2), {"ancient", "named", "d", "f"}),
        (RetentionPolicy(last=0, days=4), {"ancient", "named", "b", "d", "f"}),
        (RetentionPolicy(last=100, days=0), {c.name for c in CHECKPOINTS}),
    ],
)
def test_a_policy_keeps(policy: RetentionPolicy, kept: set[str]) -> None:
    assert kept_by(policy, CHECKPOINTS, NOW_MS) == kept


@pytest.mark.parametrize("last", range(2 * len(CHECKPOINTS) + 2))
def test_of_few_checkpoints_a_larger_number_keeps_all(last: int) -> None:
    """Whatever the difference between both numbers is."""
    kept = kept_by(RetentionPolicy(last=last, days=0, named=False), CHECKPOINTS, NOW_MS)
    newest = [c.name for c in reversed(CHECKPOINTS)][:last]
    assert kept == {"ancient", *newest}


def test_nothing_is_kept_of_nothing() -> None:
    assert kept_by(RetentionPolicy(), [], NOW_MS) == set()


@pytest.mark.parametrize(
    "policy",
    [
        RetentionPolicy(last=-1),
        RetentionPolicy(days=-1),
        RetentionPolicy(history_ms=-1),
        RetentionPolicy(history_bytes=-1),
    ],
)
def test_negative_numbers_are_refused(policy: RetentionPolicy) -> None:
    with pytest.raises(InvalidRequest):
        check_policy(policy)
