"""Running and crashed agents, as one list."""

from blackboard.cli.agents import Line, lines
from blackboard.client.leases.presence import Presence


def test_presences_and_crashes_are_one_list_by_name() -> None:
    """An agent that is there and crashed is listed as crashed; a dead one as gone."""
    there = [
        Presence("cyd", 7, 3, "idle", "public/a", alive=True),
        Presence("ada", 5, 3, "running", "", alive=None),
        Presence("dan", 6, 3, "running", "", alive=False),
    ]
    crashed = {
        "bob": {"state": "crash_loop", "crashes": 5, "error": "ValueError: no"},
        "cyd": {"state": "restarting", "crashes": 1, "error": "KeyError: 'x'"},
        "eve": "nonsense",
        "fay": {},
    }
    assert lines(there, crashed) == [
        Line("ada", "running", 5, ""),
        Line("bob", "crash_loop", None, "ValueError: no"),
        Line("cyd", "restarting", 7, "KeyError: 'x'"),
        Line("dan", "gone", 6, ""),
        Line("fay", "crashed", None, ""),
    ]


def test_nobody_is_no_line() -> None:
    """Neither there nor crashed."""
    assert lines([], {}) == []
