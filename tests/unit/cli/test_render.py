"""What people see: ages, shortened values, lines of the log, the tree of causes."""

import re
from datetime import datetime

import pytest

from blackboard.cli import render as show, screen
from blackboard.client.views import Cause, Change, Entry, RevisionEvent
from blackboard.core.commit import Epoch, Lease

NOON = int(datetime(2026, 11, 21, 12, 0, 0).astimezone().timestamp() * 1000)
STYLE = re.compile("\x1b\\[[0-9;]*m")
ENTRY = Entry("public/plan", {"a": "x" * 300}, 7, 3, "planner", NOON)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output as to a pipe, whatever runs the tests."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output as to a terminal of 80 columns that knows no colours."""
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "now"),
        (0, "now"),
        (1, "1 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (86_399, "23 h"),
        (86_400, "1 d"),
    ],
)
def test_age(seconds: int, text: str) -> None:
    """The largest unit that fits; a clock that is a little ahead is no age."""
    assert show.age(NOON - seconds * 1000, NOON) == text


def test_the_time_has_a_date_unless_it_is_today() -> None:
    """Old lines of a log are not taken for new ones."""
    assert show.clock(NOON - 1000, NOON) == "11:59:59"
    assert show.clock(NOON - 86_400_000, NOON) == "2026-11-20 12:00:00"


@pytest.mark.parametrize("time_ms", [10**17, -(10**17), 10**40])
def test_a_time_may_be_out_of_all_calendars(time_ms: int) -> None:
    """A token says when it expires, and anybody can write one."""
    assert show.clock(time_ms, 0) == "at no time of a calendar"


def test_values_are_shortened_with_a_mark() -> None:
    """What is cut says so, and what fits is whole."""
    assert screen.shortened("abcde", 5) == "abcde"
    assert screen.shortened("abcdef", 5) == "abcd\u2026"


def test_a_listing_to_a_pipe_is_tabbed_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """One entry a line, five fields, nothing cut."""
    show.print_entries([ENTRY])
    [line] = capsys.readouterr().out.splitlines()
    fields = line.split("\t")
    assert fields[0] == "public/plan"
    assert fields[1:3] == ["7", "planner"]
    assert fields[4] == '{"a":"' + "x" * 300 + '"}'


@pytest.mark.usefixtures("wide_terminal")
def test_a_listing_on_a_terminal_keeps_to_its_width(capsys: pytest.CaptureFixture[str]) -> None:
    """Header and rows, the value shortened, keys never."""
    show.print_entries([ENTRY])
    header, row = STYLE.sub("", capsys.readouterr().out).splitlines()
    assert "revision" in header
    assert row.startswith("public/plan")
    assert "\u2026" in row
    assert len(row) <= 80


def test_a_change_is_one_tabbed_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Revision, time, author, kind, key, value, note."""
    changes = (Change("put", "public/a", "line\nbreak"), Change("delete", "public/b"))
    printer = show.LogPrinter(as_json=False)
    printer.revision(RevisionEvent(9, NOON, "planner", changes, note="why"))
    first, second = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert (first[0], first[2:]) == ("9", ["planner", "put", "public/a", '"line\\nbreak"', "why"])
    assert second[3:] == ["delete", "public/b", "", "why"]


def test_leases_and_epochs_are_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Who holds what under which fence; why a new epoch began."""
    lease = Lease("public/lock", "planner", 4, NOON)
    printer = show.LogPrinter(as_json=False)
    printer.revision(
        RevisionEvent(4, NOON, "planner", (Change("grant", "public/lock", lease=lease),))
    )
    epoch = Epoch(2, "e", "engine", from_revision=4, revision=99)
    printer.revision(RevisionEvent(99, NOON, "~engine", (), epoch=epoch))
    out = capsys.readouterr().out
    assert "grant\tpublic/lock\tplanner fence 4" in out
    assert "epoch\tepoch 2 begins (engine) after 4" in out


@pytest.mark.usefixtures("wide_terminal")
def test_a_change_on_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """However long its value and its note are."""
    changes = (Change("put", "public/a", "v" * 500),)
    show.LogPrinter(as_json=False).revision(
        RevisionEvent(9, NOON, "planner", changes, note="n" * 500)
    )
    [line] = STYLE.sub("", capsys.readouterr().out).splitlines()
    assert len(line) <= 80
    assert "planner" in line


def test_a_control_sequence_in_a_note_does_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What an agent wrote cannot move the cursor, nor forge a line or a column."""
    changes = (Change("put", "public/a", "\x1b[2J"),)
    printer = show.LogPrinter(as_json=False)
    printer.revision(RevisionEvent(9, NOON, "planner", changes, note="a\x1b[2J\tb\nc"))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("\n") == 1
    assert out.count("\t") == 6


def test_causes_are_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    """Grounds hang below what they were read for; nothing is printed twice."""
    show.print_causes(
        [
            Cause(
                "public/plan", 9, 0, "planner", NOON, "the plan", (("public/a", 5), ("public/b", 6))
            ),
            Cause("public/a", 5, 1, "researcher", NOON, "", (("public/b", 6), ("public/c", 2))),
            Cause("public/b", 6, 1, missing="compacted"),
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("public/plan @ 9  planner")
    assert lines[0].endswith("# the plan")
    assert "public/a @ 5  researcher" in lines[1]
    assert "public/b @ 6  (shown elsewhere)" in lines[2]
    assert "public/c @ 2  (not followed further)" in lines[3]
    assert "public/b @ 6  (compacted)" in lines[4]
