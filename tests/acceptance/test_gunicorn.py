"""`blackboard.sync` in an application that gunicorn loads once and serves from many processes."""

import json
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.shell import Shell
from tests.ports import free_port

WORKERS = 3
REQUESTS = 60
APPLICATION = """
import json, os
import blackboard.sync as sync

# Loaded before the fork. Each worker connects at its first use.
client = None

def app(environ, start_response):
    global client
    if client is None:
        client = sync.connect()
    count = client.board("main").increment("public/count")
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"pid": os.getpid(), "count": count}).encode()]
"""


def asked(url: str) -> dict[str, int]:
    """What the application answers."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: dict[str, int] = json.load(answer)
        return found


@pytest.mark.skipif(sys.platform == "win32", reason="gunicorn forks")
def test_each_worker_that_was_forked_has_a_client_of_its_own(tmp_path: Path) -> None:
    """Nothing is counted twice or lost, and the workers end at once on a signal."""
    shell = Shell(tmp_path)
    (tmp_path / "counting.py").write_text(APPLICATION)
    with shell.service("--level", "memory") as service:
        token = (Path(shell.environ["BLACKBOARD_DATA"]) / "token").read_text().strip()
        environ = {**shell.environ, "BLACKBOARD_URL": service.url, "BLACKBOARD_TOKEN": token}
        url = f"http://127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "gunicorn", "--preload", "-w", str(WORKERS)]
        command += ["-b", url.removeprefix("http://"), "counting:app"]
        with subprocess.Popen(
            command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True
        ) as gunicorn:
            assert gunicorn.stderr is not None
            for _ in range(WORKERS):
                next(line for line in gunicorn.stderr if "Booting worker" in line)
            with ThreadPoolExecutor(WORKERS) as threads:
                answers = list(threads.map(asked, [url] * REQUESTS))
            gunicorn.send_signal(signal.SIGTERM)
            rest = gunicorn.stderr.read()
            assert gunicorn.wait(30) == 0, rest
        assert sorted(answer["count"] for answer in answers) == list(range(1, REQUESTS + 1))
        assert len({answer["pid"] for answer in answers}) > 1
        assert "Traceback" not in rest
