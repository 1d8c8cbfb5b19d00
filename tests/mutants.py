"""Faults seeded into a copy of the package, and the tests that must notice each: `make mutants`.

    python -m tests.mutants                  # all; BLACKBOARD_PROOF_DIR=... notes the result there
    python -m tests.mutants "syncs"          # those whose name contains that

Each is one change of the text, of the kind that a hurried edit makes, and most are bugs that other
systems had. The tests run in a copy of the checkout, first without any fault, when they must pass.
The faults of commit.lua are in tests/conformance/mutants.py and meet the machine there.
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.proof import DIRECTORY, Layer, say
from tests.source_tree import ROOT

SECONDS_MAX = 60
"""Time in which the tests must notice a fault, on a machine that does nothing else."""
PATIENCE = 4
"""Times SECONDS_MAX, for a machine that does."""
COPIED = ("blackboard", "agents", "demos", "bench", "tests", "pyproject.toml", "README.md")


@dataclass(frozen=True, slots=True)
class Mutant:
    """`path` with `old` (which must occur exactly once) replaced by `new`; `tests` for pytest."""

    name: str
    path: str
    old: str
    new: str
    tests: str

    def apply(self, root: Path) -> None:
        """Change the file below `root`. AssertionError if the text has moved on without us."""
        file = root / self.path
        text = file.read_text()
        assert text.count(self.old) == 1, f"{self.name}: {text.count(self.old)} places to change"
        file.write_text(text.replace(self.old, self.new))


UNIT = "tests/unit"
BOARD = "tests/conformance/test_board_embedded.py"
MODEL = "blackboard/core/model.py"

MUTANTS = (
    # --- exactly once -----------------------------------------------------------------------------
    Mutant(
        "a retry has a new identity",
        "blackboard/client/writer.py",
        "uncertain, commit = failure, replace(commit, retry_since=since)",
        "uncertain, commit = failure, replace(\n"
        "                        commit, id=replace(commit.id, step=commit.id.step + 1)\n"
        "                    )",
        f"{UNIT}/client/test_writer.py",
    ),
    Mutant(
        "the answer is stored after the write",
        "blackboard/engines/sqlite/rows.py",
        "        answers.setdefault(lane, state.answers.get(lane))\n",
        "        lane and answers\n",
        f"{UNIT}/engines/sqlite/test_file.py",
    ),
    Mutant(
        "a first attempt that comes late is applied",
        MODEL,
        "elif commit.known is not None and last.overwritten > commit.known:",
        "elif False:",
        "tests/conformance/test_store_sqlite.py -k late",
    ),
    Mutant(
        "the revision comes from the client",
        MODEL,
        "Committed(revision=state.revision + 1,",
        "Committed(revision=(commit.known or state.revision) + 1,",
        "tests/conformance/test_store_sqlite.py",
    ),
    Mutant(
        "a task is delivered twice",
        "blackboard/client/leases/claim.py",
        "ops = (*task.ops, Delete(task.key), ",
        "ops = (*task.ops, ",
        f"{UNIT}/client/leases/test_claim.py {BOARD} -k claim",
    ),
    # --- fences and leases ------------------------------------------------------------------------
    Mutant(
        "a newer fence passes",
        "blackboard/core/lease.py",
        "if (lease.fence, lease.holder) != (fence.fence, fence.holder):",
        "if lease.fence > fence.fence or lease.holder != fence.holder:",
        f"{UNIT}/core/test_lease.py",
    ),
    Mutant(
        "fences are not checked",
        MODEL,
        "lease.check_fence(state.leases.get(fence.key), fence)",
        "pass",
        f"{UNIT}/core/test_model.py {UNIT}/core/test_model_operations.py",
    ),
    Mutant(
        "another holder releases a lease",
        "blackboard/core/lease.py",
        "return pass_on(check_fence(lease, op), fence, now_ms)",
        "return pass_on(lease, fence, now_ms) if lease else None",
        f"{UNIT}/core/test_lease.py {UNIT}/core/test_model_operations.py",
    ),
    # --- atomic -----------------------------------------------------------------------------------
    Mutant(
        "it is written before everything is checked",
        "blackboard/engines/redis/scripts/commit.lua",
        "  draft.next_item[prefix] = index + 1\n",
        "  draft.next_item[prefix] = index + 1\n"
        "  entries['#' .. prefix] = format('%d', index + 1)\n",
        "tests/conformance/test_mutants.py -k same_walks",
    ),
    Mutant(
        "private state is committed after the public one",
        "blackboard/client/step.py",
        "        grounds = [(key, at)",
        "        while len(self._ops) > 1:\n"
        "            await self._board.commit([self._ops.pop(0)])\n"
        "        grounds = [(key, at)",
        f"{BOARD} -k one_commit",
    ),
    Mutant(
        "a listing is not conditioned",
        "blackboard/client/step.py",
        "conditions += [PrefixUnchanged(p, since) for p, since in self._listed.items()]",
        "pass",
        f"{BOARD} -k listed",
    ),
    # --- watching ---------------------------------------------------------------------------------
    Mutant(
        "a watch resumes without the digest",
        "blackboard/core/watch.py",
        "if position.digest and not entry.digest",
        "if False and not entry.digest",
        f"{UNIT}/core/test_watch.py",
    ),
    Mutant(
        "a full queue drops in silence",
        "blackboard/server/feed.py",
        "            self._after = oldest.revision\n",
        "",
        f"{UNIT}/server/test_feed.py",
    ),
    Mutant(
        "the log is trimmed past who still reads it",
        "blackboard/server/sweeper.py",
        "if entry.revision <= archived]",
        "if archived >= 0]",
        f"{UNIT}/server/test_archiver.py",
    ),
    Mutant(
        "a pattern is taken for a narrower one",
        "blackboard/core/access.py",
        "            return len(narrow) > place\n",
        "            return True\n",
        f"{UNIT}/integrity/test_tokens.py",
    ),
    # --- cuts and restores ------------------------------------------------------------------------
    Mutant(
        "a restore does not begin an epoch",
        "blackboard/core/state.py",
        "state.epoch = entry.epoch",
        "state.epoch = state.epoch",
        f"{UNIT}/core/test_model_restore.py {UNIT}/core/test_state.py",
    ),
    Mutant(
        "a checkpoint does not wait for who is late",
        "blackboard/server/checkpoints/take.py",
        "if answers.not_fresh and not wish.stale_ok:",
        "if False:",
        f"{BOARD} -k deliver",
    ),
    Mutant(
        "a barrier ignores late writers",
        MODEL,
        "            _check_barrier(state, commit, now_ms)\n",
        "            pass\n",
        "tests/conformance/test_store_sqlite.py -k who_is_waited_for",
    ),
    Mutant(
        "replicas of a document share an identity",
        "blackboard/client/documents/document.py",
        "self._doc: Doc[Any] = Doc()",
        "self._doc: Doc[Any] = Doc(client_id=7)",
        f"{BOARD} -k document",
    ),
    # --- engines ----------------------------------------------------------------------------------
    Mutant(
        "a replica is read from",
        "blackboard/engines/redis/facts.py",
        'if info.get("role", "master") != "master":',
        "if False:",
        f"{UNIT}/engines/redis/test_facts.py -k replica",
    ),
    Mutant(
        "a sealed value may lie anywhere",
        "blackboard/integrity/envelope.py",
        '    return front + b"\\0" + namespace_of(path).encode() + b"\\0" + path.encode()\n',
        "    return front\n",
        f"{UNIT}/integrity/test_envelope.py",
    ),
    Mutant(
        "syncs are left to the kernel",
        "blackboard/engines/sqlite/file.py",
        'connection.execute("PRAGMA synchronous=FULL")',
        'connection.execute("PRAGMA synchronous=NORMAL")',
        "tests/faults/test_power_sqlite.py -k acknowledged",
    ),
    Mutant(
        "a journal that is found is believed",
        "blackboard/engines/sqlite/store.py",
        "                    suspect.trust_journal(path)\n",
        "",
        "tests/faults/test_failed_sync.py",
    ),
    Mutant(
        "a board goes on after a failed sync",
        "blackboard/engines/sqlite/board.py",
        "        if failure.is_last:\n",
        "        if False:\n",
        f"{UNIT}/engines/sqlite/test_suspect.py",
    ),
    Mutant(
        "SQLite copies the journal and keeps to itself that a sync failed",
        "blackboard/engines/sqlite/file.py",
        "            if suspect.is_failed_sync(error):\n",
        "            if False:\n",
        f"{UNIT}/engines/sqlite/test_suspect.py",
    ),
    Mutant(
        "it is told before it is written",
        "blackboard/engines/sqlite/board.py",
        "        self._writers.submit(self._write, group, taken)\n",
        "        self._writers.submit(self._write, group, taken)\n        self._finish(group)\n",
        "tests/faults/test_power_sqlite.py -k acknowledged",
    ),
    Mutant(
        "the log is cut before the archive is synced",
        "blackboard/archive/sql.py",
        "        await self._database.sync()\n",
        "",
        "tests/faults/test_power_archive.py",
    ),
    Mutant(
        "blobs are left to the kernel",
        "blackboard/archive/blobs.py",
        "    for synced in (file.parent, directory):\n",
        "    for synced in ():\n",
        f"{UNIT}/archive/test_blobs.py -k outlives",
    ),
    Mutant(
        "a checksum is of keys and values only",
        "blackboard/engines/sqlite/rows.py",
        "    packed = _encode(row)\n",
        "    packed = _encode(row[:3])\n",
        f"{UNIT}/engines/sqlite/test_file.py",
    ),
    Mutant(
        "a damaged journal counts as cut off",
        "blackboard/engines/sqlite/file.py",
        "CUT_OFF_MAX: Final = 1",
        "CUT_OFF_MAX: Final = 1_000_000",
        "tests/faults/test_power_sqlite.py -k journal",
    ),
)


@dataclass(frozen=True, slots=True)
class Found:
    """How a run of tests ended."""

    passed: bool
    seconds: float
    line: str


def run_tests(root: Path, tests: str, seconds_max: float) -> Found:
    """Run pytest in the copy; what takes too long has not passed."""
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *_split(tests)]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop(DIRECTORY, None)  # what a test notes of code that is wrong proves nothing
    began_s = time.monotonic()
    try:
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds_max,
        )
    except subprocess.TimeoutExpired:
        return Found(False, time.monotonic() - began_s, "hung")
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    told = lines[0].partition(" - ")[0] if lines else f"exit {ended.returncode}"
    return Found(ended.returncode == 0, time.monotonic() - began_s, told)


def _split(tests: str) -> Sequence[str]:
    """`files -k expression` as words; the expression is one."""
    files, found, expression = tests.partition(" -k ")
    return [*files.split(), *(["-k", expression] if found else [])]


def copied(target: Path) -> Path:
    """A copy of what tests need of the checkout."""
    ignored = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copyfile(source, target / name)
    return target


@dataclass(slots=True)
class Tally:
    """What became of the mutants, by name."""

    noticed: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    """Their tests do not even pass without them: what they notice proves nothing."""


def tried(root: Path, mutants: Sequence[Mutant]) -> Tally:
    """Try each, and print the table as it grows."""
    tally = Tally()
    whole = functools.cache(lambda tests: run_tests(root, tests, SECONDS_MAX * PATIENCE))
    say(f"{'mutant':<48} {'seconds':>7}  noticed by")
    for mutant in mutants:
        without = whole(mutant.tests)
        if not without.passed:
            tally.untried.append(mutant.name)
            say(f"{mutant.name:<48} {'-':>7}  fails without it: {without.line}")
            continue
        found = run_mutated(root, mutant)
        (tally.survived if found.passed else tally.noticed).append(mutant.name)
        told = "NOBODY" if found.passed else found.line
        say(f"{mutant.name:<48} {found.seconds:>7.1f}  {told}")
    return tally


def run_mutated(root: Path, mutant: Mutant) -> Found:
    """Run the tests of a mutant with it; the copy is whole again afterwards."""
    file = root / mutant.path
    text = file.read_text()
    mutant.apply(root)
    try:
        return run_tests(root, mutant.tests, SECONDS_MAX * PATIENCE)
    finally:
        file.write_text(text)


def main() -> int:
    """The command line; 1 unless every mutant was noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="a part of the names of those to try")
    given = parser.parse_args()
    chosen = [m for m in MUTANTS if not given.names or any(n in m.name for n in given.names)]
    with Layer("mutants") as layer, tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tally = tried(copied(Path(folder)), chosen)
        layer.operations = len(tally.noticed)
        layer.faults["mutant"] = len(chosen)
        layer.violations = len(tally.survived) + len(tally.untried)
    say(f"{len(tally.noticed)} of {len(chosen)} mutants were noticed")
    return 1 if layer.violations else 0


if __name__ == "__main__":
    sys.exit(main())
