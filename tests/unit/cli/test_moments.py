"""What people may type for a moment, and the errors for anything else."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

from blackboard.cli.errors import CommandError, Exit
from blackboard.cli.values import parse_moment, time_of
from blackboard.limits import REVISION_MAX

PARIS = timezone(timedelta(hours=1))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine in Paris, in winter."""
    monkeypatch.setenv("TZ", "AST-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("0", 0),
        ("0012", 12),
        (str(REVISION_MAX), REVISION_MAX),
        ("0" * 5000 + "7", 7),
        ("now", "now"),
        ("before-plan", "before-plan"),
        ("2025-11-21T09.30.00Z-12ab", "2025-11-21T09.30.00Z-12ab"),
        ("2025-11-21", "2025-11-21"),
        ("2025-11-21T09:30", datetime(2025, 11, 21, 9, 30, tzinfo=PARIS)),
        ("2025-11-21 09:30:15", datetime(2025, 11, 21, 9, 30, 15, tzinfo=PARIS)),
        ("2025-11-21T09:30Z", datetime(2025, 11, 21, 9, 30, tzinfo=UTC)),
    ],
)
def test_a_moment_is_a_revision_a_name_or_a_time(typed: str, meant: object) -> None:
    """An automatic checkpoint's name looks like a time, and stays a name."""
    assert parse_moment(typed) == meant


@pytest.mark.parametrize("typed", ["", "a/b", "日本", "..", "1.5e3 ", "a" * 300, "١٢"])
def test_the_error_for_no_moment_says_what_one_is(typed: str) -> None:
    with pytest.raises(CommandError) as refused:
        parse_moment(typed)
    assert refused.value.exit == Exit.USAGE
    assert "is no moment" in refused.value.message
    assert "the name of a checkpoint, a revision, now, or a time such as" in refused.value.fix


@pytest.mark.parametrize("typed", [str(REVISION_MAX + 1), "9" * 20, "9" * 5000])
def test_a_revision_that_no_board_can_have_is_refused(typed: str) -> None:
    with pytest.raises(CommandError, match="no revision is above") as refused:
        parse_moment(typed)
    assert len(str(refused.value)) < 300


def test_a_date_alone_begins_where_only_a_time_can_be_meant() -> None:
    assert time_of("2025-11-21") == datetime(2025, 11, 21, tzinfo=PARIS)


@pytest.mark.parametrize("typed", ["0", "5", "1700000000", "20251121"])
def test_a_bare_number_is_no_time(typed: str) -> None:
    """As seconds since 1970 it would empty the board."""
    with pytest.raises(CommandError, match="it is a number"):
        time_of(typed)


@pytest.mark.parametrize(
    "typed",
    [
        "10:30",
        "2025-11-21T25:00",
        "0001-01-01T00:00",
        "0001-01-01T00:00Z",
        "1969-12-31T23:59:59Z",
        "9999-12-31T23:59",
        "9999-12-31T23:59-23:00",
        "2099-01-01T00:00Z",
        "a:b",
        "10:\x00",
    ],
)
def test_a_time_that_no_commit_has_is_refused(typed: str) -> None:
    """No time, before all boards, or in the future: as a moment and as a time."""
    for read in (parse_moment, time_of):
        with pytest.raises(CommandError) as refused:
            read(typed)
        assert refused.value.exit == Exit.USAGE
        assert "is no time" in refused.value.message or "in the future" in refused.value.message
        assert refused.value.fix


def test_a_time_says_what_is_wrong_with_it() -> None:
    with pytest.raises(CommandError, match="hour"):
        parse_moment("2025-11-21T25:00")
