"""A recorded team acts once more, and every state is compared with the recording."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from blackboard.cli import replay as trace
from blackboard.core.path import item_key
from tests.acceptance.shell import Shell
from tests.traces import STEPS, TEAM, lines


def test_the_shipped_trace_is_what_its_generator_makes() -> None:
    """So everybody can see how it came about."""
    assert TEAM.read_text().splitlines() == lines()


def test_every_step_is_rewound_to_and_equal(shell: Shell) -> None:
    """All runs, all steps: public and private state, at the checkpoint and after the rewind."""
    report = shell.json("replay", str(TEAM), "--rewind", "every")
    count = 3 * STEPS
    assert report == {
        "runs": 3,
        "steps": count,
        "checkpoints_compared": count,
        "rewinds_compared": count,
        "wrong": [],
    }


def test_a_replayed_team_can_be_kept_and_looked_at(shell: Shell) -> None:
    """Each run is a board, as it was before the step that spoiled it."""
    kept = str(shell.home / "kept")
    assert "all equal" in shell.out("replay", str(TEAM), "--runs", "2", "--keep", kept)
    runs = list(trace.load(TEAM))
    assert runs[1].mistake is not None
    expected = runs[1].after(max(1, runs[1].mistake - 1))
    key = item_key("public/transcript", 0)
    assert shell.json("get", key, "--data", kept, "--board", "run-2") == expected[key]


def test_a_state_that_is_not_the_recorded_one_is_named(shell: Shell, tmp_path: Path) -> None:
    """What the trace says of itself is not believed: a repeated item differs from the fold."""
    step: dict[str, Any] = {"t": "step", "i": 0, "a": "ada", "w": [["pub", "log", "append", 1]]}
    clash: dict[str, Any] = {
        "t": "step",
        "i": 1,
        "a": "ada",
        "w": [["pub", "log/0000000000", "del", None], ["pub", "log", "append", 2]],
    }
    after = {**step, "i": 2, "w": [["pub", "log/0000000005", "put", 9]]}
    bad = {**step, "i": 3, "w": [["pub", "log", "append", k] for k in range(4)]}
    header = {"t": "run", "id": "clash", "agents": ["ada"]}
    path = tmp_path / "clash.jsonl"
    path.write_text("\n".join(map(json.dumps, (header, step, clash, after, bad))))
    done = shell.run("replay", str(path), code=4)
    assert "public/log/0000000005" in done.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2"),
        ('{"t": "step", "i": 1, "a": "ada"}', "step 1 does not follow"),
        ('{"t": "step", "i": 0, "a": "../x"}', "agent"),
        ('{"t": "step", "i": 0, "a": "ada", "w": [["pub", "a b", "put", 1]]}', "public/a b"),
        ('{"t": "step", "i": 0, "a": "ada", "w": [["pub", "a", "eval", 1]]}', "w.0.2"),
        ('{"t": "leap"}', "line 2"),
    ],
)
def test_a_broken_trace_is_refused_by_line(
    shell: Shell, tmp_path: Path, line: str, told: str
) -> None:
    """Before anything is replayed."""
    path = tmp_path / "broken.jsonl"
    path.write_text('{"t": "run", "id": "x", "agents": ["ada"]}\n' + line + "\n")
    assert told in shell.run("replay", str(path), code=2).stderr


@pytest.mark.parametrize("step", ["0", str(STEPS + 1), "9" * 5000, "-1", "last"])
def test_a_step_that_no_run_has_is_refused(shell: Shell, step: str) -> None:
    """Nothing would be rewound, and all of that equal."""
    done = shell.run("replay", str(TEAM), f"--rewind={step}", code=2)
    assert done.stdout == ""


def test_a_trace_without_steps_is_refused(shell: Shell, tmp_path: Path) -> None:
    """Of several runs, one may be without."""
    path = tmp_path / "idle.jsonl"
    idle = json.dumps({"t": "run", "id": "idle", "agents": ["ada"]})
    path.write_text(idle)
    assert "holds no step" in shell.run("replay", str(path), code=2).stderr
    path.write_text("\n".join((idle, *lines()[: STEPS + 1])))
    assert shell.json("replay", str(path))["rewinds_compared"] == 1


def test_a_file_that_is_no_trace_is_refused(shell: Shell, tmp_path: Path) -> None:
    """Nothing, garbage behind a gzip's name, and a file that is not there."""
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "holds no run" in shell.run("replay", str(empty), code=2).stderr
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(TEAM.read_bytes())[:-20])
    assert "cannot be read" in shell.run("replay", str(cut), code=2).stderr
    spoiled = bytearray(gzip.compress(TEAM.read_bytes()))
    for number in range(len(spoiled) // 2, len(spoiled) // 2 + 64):
        spoiled[number] ^= 0xFF
    cut.write_bytes(spoiled)
    assert "cannot be read" in shell.run("replay", str(cut), code=2).stderr
    shell.run("replay", str(tmp_path / "none.jsonl"), code=3)
