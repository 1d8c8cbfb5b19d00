"""What telemetry costs a commit: processor time of one program with it, without it, and bare of it.

    python -m bench.telemetry                                   five rounds
    python -m bench.telemetry --rounds 9 --before ../blackboard-before

A sample is a fresh process that makes COMMITS small commits, from WRITERS tasks: `embedded`, or
over a WebSocket to a service of its own, whose processor time counts, too. `off` and `on` are this
checkout, without and with BLACKBOARD_TELEMETRY and a collector that answers. `bare` is a copy of it
without the hooks: each question whether telemetry is on is a constant there, which the compiler
drops. `before` is a checkout from before there was any, also without the histograms of `/metrics`,
to be named with --before. In every round the variants take turns, in a
new random order. A table has the least time of each variant, and how much more the least of one is
than that of the other. The collector's own time is not counted.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.report import Table

HERE: Final = Path(__file__).resolve().parents[1]
COMMITS: Final = 12_800
WRITERS: Final = 16
WARM: Final = 3_200
"""Commits before the clock starts: imports, the first file, the caches."""
WAYS: Final = ("embedded", "websocket")
HOOKS: Final = (
    (r"\btelemetry\.is_on\(\)", "False"),
    (r"\btelemetry\.traceparent\(\) if self\._traces else \"\"", '""'),
    (r"with telemetry\.continuing\([^)]*\):", "if True:"),
)
"""What a commit asks telemetry, and what stands there without any."""
HOOKED: Final = ("client/writer.py", "client/remote/channel.py", "server/commit_queue.py")
"""Modules of a commit's way, each of which has such hooks."""

CLIENT: Final = f"""
import asyncio, os, sys, time
import blackboard
from pathlib import Path

def used(service):
    if not service:
        return time.process_time()
    fields = Path("/proc/" + service + "/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / {os.sysconf("SC_CLK_TCK")}

async def main(way, where, service):
    expected = os.environ["PYTHONPATH"]
    assert Path(blackboard.__file__).is_relative_to(expected), blackboard.__file__
    is_embedded = way == "embedded"
    opening = blackboard.open(where, level="memory") if is_embedded else blackboard.connect(where)
    async with opening as client:
        board = client.board("main")
        async def write(writer, commits):
            for _ in range(commits):
                await board.put(f"public/bench/{{writer}}", 1)
        async def all_write(commits):
            await asyncio.gather(*(write(w, commits // {WRITERS}) for w in range({WRITERS})))
        await all_write({WARM})
        begun = used(service)
        await all_write({COMMITS})
        print((used(service) - begun) / {COMMITS} * 1e6)

asyncio.run(main(*sys.argv[1:]))
"""
COLLECTOR: Final = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
    def log_request(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def process(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """A program that runs until the block ends: its id, and the first line that it prints."""
    with subprocess.Popen(command, env=dict(environ), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running.pid, running.stdout.readline().strip()
        finally:
            running.kill()


def without_hooks(folder: Path) -> None:
    """Make a copy of the package in `folder` that does not ask for telemetry."""
    package = folder / "blackboard"
    shutil.copytree(HERE / "blackboard", package, ignore=shutil.ignore_patterns("__pycache__"))
    changed = set()
    for path in package.rglob("*.py"):
        source = text = path.read_text(encoding="utf-8")
        for hook, instead in HOOKS:
            text = re.sub(hook, instead, text)
        if text != source:
            path.write_text(text, encoding="utf-8")
            changed.add(path.relative_to(package).as_posix())
    missing = set(HOOKED) - changed
    assert not missing, f"no hooks were found in {missing}"


def variants(bare: Path, before: Path | None, collector: str) -> dict[str, dict[str, str]]:
    """The environment of each variant, by name."""
    plain = {name: text for name, text in os.environ.items() if "BLACKBOARD" not in name}
    found = {
        "bare": {**plain, "PYTHONPATH": str(bare)},
        "off": {**plain, "PYTHONPATH": str(HERE)},
        "on": {
            **plain,
            "PYTHONPATH": str(HERE),
            "BLACKBOARD_TELEMETRY": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector}",
        },
    }
    return found if before is None else {"before": {**plain, "PYTHONPATH": str(before)}, **found}


def sample(way: str, environ: Mapping[str, str]) -> float:
    """Processor time of one commit, in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        own = {**environ, "BLACKBOARD_CONFIG_DIR": folder, "BLACKBOARD_DATA": f"{folder}/data"}
        if way == "embedded":
            return made(way, f"{folder}/boards", "", own)
        serve = ["serve", "--port", "0", "--level", "memory", "--log-format", "json"]
        command = [sys.executable, "-m", "blackboard", *serve]
        with subprocess.Popen(
            command, env=own, cwd=folder, stderr=subprocess.PIPE, text=True
        ) as service:
            assert service.stderr is not None
            try:
                line = next(line for line in service.stderr if "serving ws://" in line)
                url = line.partition("serving ")[2].partition('"')[0]
                return made(way, url, str(service.pid), own)
            finally:
                service.kill()


def made(way: str, where: str, service: str, environ: Mapping[str, str]) -> float:
    """What the program of a sample prints. It runs outside the checkout, which Python would prefer
    to the one that PYTHONPATH names."""
    folder = environ["BLACKBOARD_CONFIG_DIR"]
    command = [sys.executable, "-c", CLIENT, way, where, service]
    found = subprocess.check_output(command, env=dict(environ), cwd=folder, text=True)
    return float(found)


def measure(rounds: int, before: Path | None) -> dict[str, list[dict[str, float]]]:
    """For each way, the samples of each round, by variant."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with (
        tempfile.TemporaryDirectory() as bare,
        process([sys.executable, "-c", COLLECTOR], os.environ) as (_, port),
    ):
        without_hooks(Path(bare))
        known = variants(Path(bare), before, port)
        for number in range(rounds):
            for way in WAYS:
                order = random.sample(sorted(known), len(known))
                samples = {name: sample(way, known[name]) for name in order}
                found[way].append(samples)
                print(number + 1, way, {name: round(us, 1) for name, us in samples.items()})
    return found


def table(found: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """A row for each way and comparison."""
    rows = []
    for way, rounds in found.items():
        for name, reference in (("off", "bare"), ("off", "before"), ("on", "off")):
            if not all(reference in each for each in rounds):
                continue
            was, now = (min(each[n] for each in rounds) for n in (reference, name))
            more = f"{(now / was - 1) * 100:+.1f}"
            rows.append([way, f"{name}, beside {reference}", f"{was:.1f}", f"{now:.1f}", more])
    header = ["commits", "compared", "then, µs", "now, µs", "more, %"]
    return Table("telemetry", header, rows)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="a checkout from before there was telemetry")
    given = parser.parse_args()
    found = table(measure(given.rounds, given.before))
    for row in found.rows:
        print(" | ".join(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
