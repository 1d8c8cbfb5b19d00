"""What is shown of a restore of many keys: what is shown of a small one, found faster."""

from collections.abc import Callable

import pytest
from hypothesis import example, given, strategies as st

from blackboard.core import history
from blackboard.core.commit import RESTORE, Change, ChangeKind, CommitId, Epoch, LogEntry
from blackboard.core.history import LargeEntry
from blackboard.core.path import Pattern, parse_pattern
from blackboard.errors import Resync

SEGMENTS = ("a", "b", "a0", "a-", "~x", "B")
PATHS = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3).map("/".join)
KEYS = st.tuples(st.sampled_from(("public", "private/a", "private/a0", "inbox/b")), PATHS).map(
    "/".join
)
WILD = st.lists(st.sampled_from((*SEGMENTS, "public", "private", "*")), min_size=1, max_size=4).map(
    "/".join
)
PATTERNS = st.lists(
    st.one_of(KEYS, WILD, WILD.map(lambda path: f"{path}/**"), st.just("**")), max_size=4
).map(lambda texts: parsed(*texts))


def restore(*changes: Change) -> LogEntry:
    """The entry of a restore."""
    epoch = Epoch(2, "second", RESTORE, 3, 5)
    grounds = (("public/a", 1), ("private/a/b", 2))
    return LogEntry(
        5, 1_005, CommitId("~s", 0, "i", 1), changes, b"\x01" * 32, grounds, epoch=epoch
    )


def parsed(*texts: str) -> tuple[Pattern, ...]:
    """Patterns."""
    return tuple(map(parse_pattern, texts))


@example(["public/a/a", "public/b"], parsed("public/a/**", "public/**"), parsed("**"), 5_000)
@example(["public/a", "public/b"], parsed("public/**", "private/a/**"), parsed("inbox/**"), 100)
@example(["private/a/b", "public/b"], parsed("**"), parsed("private/a/**", "public/**"), 290)
@example(["private/a/b", "public/b"], parsed("private/**"), parsed("public/**", "**"), 290)
@example(["inbox/b/x", "private/a/b", "public/c"], parsed("public/**"), parsed("inbox/**"), 150)
@given(
    keys=st.lists(KEYS, unique=True, max_size=40),
    wanted=PATTERNS.filter(bool),
    readable=PATTERNS,
    limit=st.integers(0, 5_000),
)
def test_it_is_what_is_shown_of_a_small_one(
    keys: list[str], wanted: tuple[Pattern, ...], readable: tuple[Pattern, ...], limit: int
) -> None:
    """Whatever the patterns and the order, and so is the demand for a new snapshot above a
    limit."""
    entry = restore(
        *(
            Change(ChangeKind.DELETE, key)
            if number % 3 == 0
            else Change(ChangeKind.PUT, key, bytes(number))
            for number, key in enumerate(keys)
        )
    )

    def may_read(key: str) -> bool:
        return any(pattern.matches(key) for pattern in readable)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "RESYNC_BYTES", limit)
        assert outcome(lambda: LargeEntry(entry).visible(wanted, readable)) == outcome(
            lambda: history.bounded(history.visible(entry, wanted, may_read))
        )


def outcome(show: Callable[[], LogEntry | None]) -> object:
    """What is shown, or what the demand for a new snapshot says."""
    try:
        return show()
    except Resync as order:
        return order.fields()
