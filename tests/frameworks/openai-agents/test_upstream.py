"""The SDK's own tests of sessions, from its source distribution, with our session in them."""

import re
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
SUITES = ("tests/memory/test_session.py", "tests/memory/test_session_limit.py")
PASSED = 53
OF_SQLITE = (
    "connections corrupt connection file_lock write_lock rolls_back closed_rejects "
    "post_commit_cancellation"
).split()
"""Tests of SQLiteSession's threads, files and transactions, which have nothing of ours in them."""


def test_the_tests_of_the_sdk_pass(tmp_path: Path) -> None:
    """All that are about sessions rather than about SQLite."""
    version = metadata.version("openai-agents")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(tmp_path)]
    subprocess.run([*command, *options, f"openai-agents=={version}"], check=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    chosen = "not " + " and not ".join(OF_SQLITE)
    run = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "on_a_board", "-k", chosen, *SUITES],
        cwd=next(tmp_path.glob("openai_agents-*/")),
        env={"PYTHONPATH": str(HERE), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"(\d+) passed", run.stdout)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
    assert found is not None
    assert int(found[1]) >= PASSED, run.stdout[-500:]
