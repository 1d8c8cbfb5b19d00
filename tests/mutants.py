"""Faults seeded into a copy of the package, and the tests that must notice each: `make mutants`.

    python -m tests.mutants                  # all; BLACKBOARD_PROOF_DIR=... notes the result there
    python -m tests.mutants "syncs"          # those whose name contains that

Each is one change of the text, of the kind that a hurried edit makes, and most are bugs that other
systems had. The tests run in a copy of the checkout, first without any fault, when they must pass.
Those of `tests/seeded/` were thought of by somebody who had not written the tests. The faults of
commit.lua are in tests/conformance/mutants.py and meet the machine there.
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
from tests.seeded import agents, clients, engines, past, service
from tests.seeded.mutant import BOARD, UNIT, Mutant
from tests.source_tree import ROOT

SECONDS_MAX = 60
"""Time in which the tests must notice a fault, on a machine that does nothing else."""
PATIENCE = 4
"""Times SECONDS_MAX, for a machine that does."""
COPIED = ("blackboard", "agents", "demos", "bench", "tests", "pyproject.toml", "README.md")


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
        "blackboard/engines/sqlite/follower.py",
        "        answers.setdefault(lane, state.answers.get(lane))\n",
        "        lane and answers\n",
        f"{UNIT}/engines/sqlite/test_follower.py -k every_kind",
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
        "    revision = state.revision if draft.tells_nothing(commit) else state.revision + 1\n",
        "    revision = (commit.known or state.revision) + 1\n",
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
        "        self._after = oldest.revision\n",
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
        "if answers.not_fresh and not spec.stale_ok:",
        "if False:",
        f"{BOARD} -k deliver",
    ),
    Mutant(
        "a freeze stops nobody",
        MODEL,
        "        _check_freeze(state, commit)\n",
        "",
        "tests/conformance/test_store_sqlite.py -k refused_with_the_reason",
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
        "blackboard/engines/sqlite/connection.py",
        'connection.execute("PRAGMA synchronous=FULL")',
        'connection.execute("PRAGMA synchronous=NORMAL")',
        "tests/faults/test_power_sqlite.py -k acknowledged",
    ),
    Mutant(
        "a journal that is found is believed",
        "blackboard/engines/sqlite/store.py",
        "                    suspect.trust_journal(path)\n",
        "",
        f"{UNIT}/engines/sqlite/test_suspect.py",
    ),
    Mutant(
        "a journal of the archive that is found is believed",
        "blackboard/archive/database.py",
        "                suspect.trust_journal(self.path)\n",
        "                pass\n",
        "tests/faults/test_failed_sync_archive.py -k written_over",
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
        "        self._writers.submit(self._write, group, taken, then)\n",
        "        self._writers.submit(self._write, group, taken, then)\n"
        "        self._finish(group)\n",
        "tests/faults/test_power_sqlite.py -k acknowledged",
    ),
    Mutant(
        "the log is cut before the archive is synced",
        "blackboard/archive/sql.py",
        "        await self._database.sync()\n        return mark.revision\n",
        "        return mark.revision\n",
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
        "    packed = _encode(row[:-1] if row[-1] is None else row)\n",
        "    packed = _encode(row[:3])\n",
        f"{UNIT}/engines/sqlite/test_file.py",
    ),
    Mutant(
        "a damaged journal counts as cut off",
        "blackboard/engines/sqlite/journal.py",
        "CUT_OFF_MAX: Final = 1",
        "CUT_OFF_MAX: Final = 1_000_000",
        "tests/faults/test_power_sqlite.py -k journal",
    ),
    Mutant(
        "the torn end of a journal stays",
        "blackboard/engines/sqlite/file.py",
        "            cut_journal(self.path, self._index)\n",
        "            pass\n",
        "tests/faults/test_power_sqlite.py -k two_power",
    ),
    # --- restores, claims and locks under others' commits -----------------------------------------
    Mutant(
        "a lease that changes is a removal of its key",
        "blackboard/server/checkpoints/restore.py",
        "if change.lease is None and namespace_of(change.key) != SYSTEM:",
        "if namespace_of(change.key) != SYSTEM:",
        f"{UNIT}/server/checkpoints/test_restore.py -k lease_that_changes",
    ),
    Mutant(
        "nobody looks who restored first",
        "blackboard/server/checkpoints/restore.py",
        "        except HeadMoved as error:\n"
        "            done = await self._asked_before(spec, by)\n",
        "        except HeadMoved as error:\n            done = None\n",
        f"{UNIT}/server/checkpoints/test_restore.py -k was_faster",
    ),
    Mutant(
        "a task is buried though it changed",
        "blackboard/client/leases/claim.py",
        "            conditions = [KeyAt(task.key, entry.mod_revision)]\n",
        "",
        f"{BOARD} -k changes_meanwhile_is_not_removed",
    ),
    Mutant(
        "attempts are not compared",
        "blackboard/client/leases/claim.py",
        "                KeyAt(tries_key(entry.key), found.mod_revision if found else ABSENT),\n",
        "",
        f"{BOARD} -k began_and_ended_meanwhile",
    ),
    Mutant(
        "a lock takes old news for new",
        "blackboard/client/leases/lock.py",
        " and revised.revision >= fence:",
        ":",
        f"{UNIT}/client/leases/test_lock.py -k before_a_grant",
    ),
    Mutant(
        "a lock waits from the head on",
        "blackboard/client/leases/lock.py",
        "request = WatchRequest(self.keys, Position(await writer.epoch(), self._asked_at))",
        "head = await writer.link.head(writer.board)\n"
        "        request = WatchRequest(self.keys, Position(head.epoch.id, head.revision))",
        f"{UNIT}/client/leases/test_lock.py -k between_the_asking",
    ),
    # --- the runtime ------------------------------------------------------------------------------
    Mutant(
        "parts of a result are written without the guard",
        "blackboard/runtime/journal.py",
        '                conditions=[self._origin.guard],\n                note=f"result of',
        '                note=f"result of',
        f"{UNIT}/runtime/test_journal.py -k overtaken",
    ),
    Mutant(
        "large values are put ahead without the guard",
        "blackboard/runtime/journal.py",
        "[*note, *ops], conditions=[self._origin.guard], note=",
        "[*note, *ops], note=",
        f"{UNIT}/runtime/test_journal.py -k overtaken",
    ),
    Mutant(
        "failures are forgotten without the guard",
        "blackboard/runtime/journal.py",
        "commit(some, conditions=[self._origin.guard], note=note)",
        "commit(some, note=note)",
        f"{UNIT}/runtime/test_journal.py -k overtaken",
    ),
    # --- who may see what -------------------------------------------------------------------------
    Mutant(
        "a manifest shows what every agent declared",
        "blackboard/server/checkpoints/take.py",
        "            if readable(declared_key(agent))\n",
        "",
        f"{BOARD} -k shows_each_what_it_may_read",
    ),
    Mutant(
        "a role file cannot redefine the role of agents",
        "blackboard/server/settings.py",
        "    if role in found:\n",
        "    if role in found and role != AGENT:\n",
        f"{UNIT}/server/test_roles.py",
    ),
    # --- what nobody frees, and who is not woken --------------------------------------------------
    Mutant(
        "a large value outlives its key",
        "blackboard/engines/redis/scripts/commit.lua",
        "    fresh_entries['\\0' .. key] = false\n",
        "",
        f"{UNIT}/engines/redis/test_store.py -k large_value_goes",
    ),
    Mutant(
        "shared deliveries are kept for ever",
        "blackboard/server/feed.py",
        "        self._shared.clear()\n        if self._large is not None",
        "        if self._large is not None",
        f"{UNIT}/server/test_feed.py -k shared_only_until",
    ),
    Mutant(
        "a gap that is skipped wakes nobody",
        "blackboard/server/feed.py",
        "  # no view was checked against the trimmed entries\n        self.poke()\n",
        "\n",
        f"{UNIT}/server/test_feed.py -k gap_that_the_reader_skips",
    ),
    Mutant(
        "what is read now counts as read before",
        "blackboard/client/writer.py",
        "if epoch and epoch == self._read_in:",
        "if epoch:",
        f"{UNIT}/client/test_writer.py -k two_epochs",
    ),
    Mutant(
        "only the last reading counts",
        "blackboard/client/writer.py",
        "self._read_to = max(self._read_to, revision)",
        "self._read_to = revision",
        f"{UNIT}/client/test_writer.py -k two_epochs",
    ),
    # --- commits ----------------------------------------------------------------------------------
    Mutant(
        "a step that was superseded is applied",
        MODEL,
        "    if name.step < last.step:\n",
        "    if False:\n",
        f"{UNIT}/core/test_model.py",
    ),
    Mutant(
        "a commit of another epoch is applied",
        MODEL,
        "        _check_epoch(state, commit)\n        _check_limits(commit)\n",
        "        _check_limits(commit)\n",
        f"{UNIT}/core/test_model.py",
    ),
    Mutant(
        "a prefix condition overlooks removals",
        MODEL,
        "        if state.tombstones[key].revision > since:\n",
        "        if False:\n",
        f"{UNIT}/core/test_model.py",
    ),
    Mutant(
        "what was compacted counts as unchanged",
        MODEL,
        "    if since < state.oldest - 1:\n",
        "    if False:\n",
        f"{UNIT}/core/test_model.py",
    ),
    Mutant(
        "a restore follows another head",
        MODEL,
        "    if begins.revision != state.revision + 1:\n",
        "    if False:\n",
        f"{UNIT}/core/test_model_restore.py",
    ),
    # --- leases -----------------------------------------------------------------------------------
    Mutant(
        "a held lease passes to who waits when another asks",
        "blackboard/core/lease.py",
        "    if lease is not None and lease.until_ms <= now_ms:\n",
        "    if lease is not None:\n",
        f"{UNIT}/core/test_lease.py {UNIT}/core/test_model_operations.py",
    ),
    Mutant(
        "a waiter whose ticket is over is granted the lease",
        "blackboard/core/lease.py",
        "        if waiter.until_ms > now_ms:\n",
        "        if True:\n",
        f"{UNIT}/core/test_lease.py {UNIT}/core/test_model_operations.py",
    ),
    Mutant(
        "a lease is ended before its time",
        "blackboard/core/lease.py",
        "    if held.until_ms > now_ms:\n",
        "    if False:\n",
        f"{UNIT}/core/test_lease.py {UNIT}/core/test_model_operations.py",
    ),
    Mutant(
        "who waits behind the next one is forgotten",
        "blackboard/core/lease.py",
        "            rest = lease.waiters[index + 1 :]\n",
        "            rest = ()\n",
        f"{UNIT}/core/test_lease.py {UNIT}/core/test_model_operations.py",
    ),
    # --- watches ----------------------------------------------------------------------------------
    Mutant(
        "a client that has seen more is not informed of a loss",
        "blackboard/core/watch.py",
        "if entry.epoch.cause != RESTORE and self.position.revision > survived:",
        "if False:",
        f"{UNIT}/core/test_watch.py",
    ),
    Mutant(
        "a watch begins in a log that was cut",
        "blackboard/core/watch.py",
        "    if after < head.oldest - 1:\n",
        "    if False:\n",
        f"{UNIT}/core/test_watch.py",
    ),
    # --- access -----------------------------------------------------------------------------------
    Mutant(
        "a narrowed token reaches more boards",
        "blackboard/core/access.py",
        "    if principal.boards and not (boards and boards <= principal.boards):\n",
        "    if False:\n",
        f"{UNIT}/integrity/test_tokens.py {UNIT}/core/test_access.py",
    ),
    Mutant(
        "a narrowed token outlives the whole one",
        "blackboard/core/access.py",
        "expires_at_ms=min(ends, default=None),",
        "expires_at_ms=ends[-1] if ends else None,",
        f"{UNIT}/integrity/test_tokens.py {UNIT}/core/test_access.py",
    ),
    Mutant(
        "anybody commits as anybody",
        "blackboard/core/access.py",
        "    if commit.id.agent != principal.name:\n",
        "    if False:\n",
        f"{UNIT}/core/test_access.py",
    ),
    Mutant(
        "an admin of one board is one of all",
        "blackboard/core/access.py",
        "    return whole and not principal.boards\n",
        "    return whole\n",
        f"{UNIT}/core/test_access.py {UNIT}/server/security",
    ),
    Mutant(
        "a signature is not compared",
        "blackboard/integrity/tokens.py",
        "if len(links) > NARROWINGS_MAX or not hmac.compare_digest(expected, signature):",
        "if len(links) > NARROWINGS_MAX:",
        f"{UNIT}/integrity/test_tokens.py",
    ),
    Mutant(
        "a token is good for every audience",
        "blackboard/integrity/tokens.py",
        'options: Any = {"require": _REQUIRED}',
        'options: Any = {"require": _REQUIRED, "verify_aud": False}',
        f"{UNIT}/integrity/test_tokens.py",
    ),
    Mutant(
        "the end of a narrowing is not checked",
        "blackboard/integrity/tokens.py",
        "    return _in_time(_narrowed_by(_principal(claims), links))\n",
        "    return _narrowed_by(_principal(claims), links)\n",
        f"{UNIT}/integrity/test_tokens.py",
    ),
    # --- the wire ---------------------------------------------------------------------------------
    Mutant(
        "a map may pass for bytes",
        "blackboard/wire/codec.py",
        "if type(key) is not str or key == BYTES_KEY:",
        "if type(key) is not str:",
        f"{UNIT}/wire/test_codec.py",
    ),
    Mutant(
        "extension types are decoded",
        "blackboard/wire/codec.py",
        "timestamp=1, ext_hook=_refuse_extension)",
        "timestamp=1)",
        f"{UNIT}/wire/test_codec.py",
    ),
    # --- the archive ------------------------------------------------------------------------------
    Mutant(
        "a change that is known is archived again",
        "blackboard/archive/fold.py",
        "            if before.revision >= revision:\n",
        "            if False:\n",
        f"{UNIT}/archive/test_fold.py",
    ),
    Mutant(
        "a lease is archived as a removal",
        "blackboard/archive/fold.py",
        "            if change.lease is None:\n",
        "            if True:\n",
        f"{UNIT}/archive/test_fold.py tests/conformance/test_archive_sqlite.py",
    ),
    Mutant(
        "a sum keeps what was overwritten",
        "blackboard/archive/fold.py",
        "                    total = digest.remove(total, before)\n",
        "                    pass\n",
        f"{UNIT}/archive/test_fold.py",
    ),
    Mutant(
        "a pinned checkpoint is pruned",
        "blackboard/archive/prune.py",
        "        for query in (pinned, branches):\n",
        "        for query in (branches,):\n",
        f"{UNIT}/archive/test_prune.py tests/conformance/test_archive_sqlite.py -k prun",
    ),
    Mutant(
        "what a branch left from is pruned",
        "blackboard/archive/prune.py",
        "        for query in (pinned, branches):\n",
        "        for query in (pinned,):\n",
        f"{UNIT}/archive/test_prune.py tests/conformance/test_archive_sqlite.py -k prun",
    ),
    Mutant(
        "a stranger signs manifests",
        "blackboard/integrity/signing.py",
        "        if signer not in self._trusted:\n",
        "        if False:\n",
        f"{UNIT}/integrity/test_signing.py",
    ),
    # --- the journal ------------------------------------------------------------------------------
    Mutant(
        "a call that is recorded is made again",
        "blackboard/runtime/journal.py",
        '        if found is not None and found.outcome == "done":\n',
        "        if False:\n",
        f"{UNIT}/runtime/test_journal.py",
    ),
    Mutant(
        "the same call twice is one call",
        "blackboard/runtime/journal.py",
        "        self._counts[digest] += 1\n",
        "",
        f"{UNIT}/runtime/test_journal.py",
    ),
    Mutant(
        "the next step has the same idempotency keys",
        "blackboard/runtime/journal.py",
        "self._port.agent, self._origin.step, slot])",
        "self._port.agent, 0, slot])",
        f"{UNIT}/runtime/test_journal.py",
    ),
    # --- restores ---------------------------------------------------------------------------------
    Mutant(
        "a large restore lets others commit",
        "blackboard/server/checkpoints/restore.py",
        "                await store.hold(board, HOLD_MS_MAX)\n",
        "",
        f"{UNIT}/server/checkpoints/test_restore.py -k tried_without_a_hold",
    ),
    Mutant(
        "a restore leaves documents as they are",
        "blackboard/server/checkpoints/restore.py",
        "            found += restored(document, kept, now, authors)\n",
        "",
        f"{BOARD} -k restore_takes_an_open_document_back",
    ),
    *past.MUTANTS,
    *clients.MUTANTS,
    *service.MUTANTS,
    *agents.MUTANTS,
    *engines.MUTANTS,
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


def all_fit(root: Path, mutants: Sequence[Mutant]) -> bool:
    """Whether all can be seeded below `root`; prints those that cannot."""
    misfits = [reason for mutant in mutants if (reason := mutant.misfit(root))]
    for reason in misfits:
        say(f"does not fit the code any more: {reason}")
    return not misfits


def main() -> int:
    """The command line; 1 unless every mutant was noticed, 2 if one does not fit the code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="a part of the names of those to try")
    given = parser.parse_args()
    chosen = [m for m in MUTANTS if not given.names or any(n in m.name for n in given.names)]
    if not all_fit(ROOT, chosen):
        return 2
    with Layer("mutants") as layer, tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tally = tried(copied(Path(folder)), chosen)
        layer.operations = len(tally.noticed)
        layer.faults["mutant"] = len(chosen)
        layer.violations = len(tally.survived) + len(tally.untried)
    say(f"{len(tally.noticed)} of {len(chosen)} mutants were noticed")
    return 1 if layer.violations else 0


if __name__ == "__main__":
    sys.exit(main())
