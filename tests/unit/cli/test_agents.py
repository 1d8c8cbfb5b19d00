"""Running and crashed agents, as one list."""

import json
from functools import partial
from pathlib import Path

import pytest
from anyio import to_thread

import blackboard
from blackboard.cli.agents import Line, lines
from blackboard.client.leases.presence import Presence
from blackboard.core.commit import Put
from blackboard.limits import LIST_ENTRIES_MAX
from blackboard.runtime.supervisor import SUPERVISION
from blackboard.wire.codec import encode_value
from tests.unit.cli.typed import ended


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


async def test_every_crash_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those that are not on the first page."""
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path))
    value = encode_value({"state": "crash_loop", "error": "it failed"})
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        for first in range(0, LIST_ENTRIES_MAX + 6, 103):
            names = [f"{SUPERVISION}/agent-{first + one}" for one in range(103)]
            await client.board("main").commit([Put(name, value) for name in names])
    listed = partial(ended, "agents", "--json", "--data", str(tmp_path / "data"))
    assert await to_thread.run_sync(listed) == 0
    found = json.loads(capsys.readouterr().out)["agents"]
    assert len(found) == LIST_ENTRIES_MAX + 6
