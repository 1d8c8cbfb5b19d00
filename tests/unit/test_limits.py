"""At the edge of each limit that the rules, the codec and the embedded engine keep.

A probe does a thing of a given size. At the limit it passes; one more, and the limit is named with
both numbers. What is too large to be made in a test is lowered first.
"""

import ast
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from blackboard import limits
from blackboard.core.checkpoints import check_request
from blackboard.core.commit import (
    RESTORE,
    Commit,
    Epoch,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Op,
    Put,
    PutBack,
)
from blackboard.core.path import check_key, check_name, identity_key, parse_patterns
from blackboard.engines.base import check_hold
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import BlackboardError, InvalidRequest, LimitExceeded, Unavailable
from blackboard.limits import DEFAULT
from blackboard.wire.codec import encode_value, prepare
from tests.conformance.writer import Writer
from tests.lowered import lowered
from tests.source_tree import ROOT
from tests.unit.core.trial import Trial, packed

ONE = packed(1)
BOARD = "board"


def key_of(size: int) -> str:
    """A key of `size` bytes."""
    return ("public/" + "a/" * size)[: size - 1] + "a"


def decide(*ops: Op, before: tuple[Op, ...] = ()) -> None:
    """Decide `ops` as one commit on a board where `before` was committed; raise a refusal."""
    trial = Trial()
    if before:
        trial.commit(*before)
    _raise(trial.attempt(*ops))


def decide_with(part: str, item: object) -> Callable[[int], None]:
    """A probe that puts `item` into that part of a commit so many times."""

    def probe(size: int) -> None:
        trial = Trial()
        trial.commit(Grant("public/l", "ada", 1))
        parts: dict[str, Any] = {part: (item,) * size}
        _raise(trial.decide(replace(trial.make(Put("public/a", ONE)), **parts)))

    return probe


def _raise(outcome: object) -> None:
    if isinstance(outcome, BlackboardError):
        raise outcome


def commit_of(size: int) -> None:
    """Encode a commit of `size` bytes."""
    trial = Trial()
    puts = [Put(f"public/{i}", b"x" * (1024 * 1024 - 300)) for i in range(size // 1024**2)]
    made = trial.make(*puts)
    prepare(replace(made, note="n" * (size - prepare(replace(made, note="n" * 300)).size + 300)))


def restore(trial: Trial, *ops: Op, note: str = "") -> Commit:
    """The restore of a board without any revision."""
    begins = Epoch(2, "second", RESTORE, 0, 1)
    return replace(trial.make(*ops), begins=begins, note=note)


def restore_of(size: int) -> None:
    """Encode a restore of `size` bytes."""
    trial = Trial()
    value = b"x" * (1024 * 1024 - 300)
    ops = [PutBack(f"public/{i}", value) for i in range(size // 1024**2)]
    made = restore(trial, *ops)
    rest = size - prepare(replace(made, note="n" * 300)).size + 300
    prepare(replace(made, note="n" * rest))


def restore_keys(size: int) -> None:
    """Decide a restore of `size` keys."""
    trial = Trial()
    _raise(trial.decide(restore(trial, *[PutBack(f"public/{i}", ONE) for i in range(size)])))


def nest(depth: int) -> None:
    """Encode a value with `depth` lists around it."""
    value: object = 1
    for _ in range(depth):
        value = [value]
    encode_value(value)


PROBES: dict[str, Callable[[int], object]] = {
    "KEY_BYTES_MAX": lambda size: check_key(key_of(size)),
    "PATTERNS_MAX": lambda size: parse_patterns(["public/**"] * size),
    "VALUE_BYTES_MAX": lambda size: encode_value(b"x" * (size - 5)),
    "VALUE_DEPTH_MAX": nest,
    "OPERATIONS_MAX": decide_with("ops", Put("public/a", ONE)),
    "FENCES_MAX": decide_with("fences", HeldFence("public/l", "ada", 1)),
    "BASED_ON_MAX": decide_with("based_on", ("public/a", 1)),
    "COMMIT_BYTES_MAX": commit_of,
    "REQUEST_CHARACTERS_MAX": lambda size: check_request("é" * size),
    "RESTORE_BYTES_MAX": restore_of,
    "RESTORE_CHANGES_MAX": restore_keys,
    "HOLD_MS_MAX": check_hold,
    "INTEGER_MAX": lambda size: decide(
        Increment("public/a", 1), before=(Increment("public/a", size - 1),)
    ),
}
"""Limits at their real size."""

LOWERED: dict[str, Callable[[int], object]] = {
    "LEASES_MAX": lambda size: decide(*[Grant(f"public/{i}", "ada", 1) for i in range(size)]),
    "LEASES_ORDINARY_MAX": lambda size: decide(
        Grant(identity_key("ada"), "ada", 1),
        *[Grant(f"public/{i}", "ada", 1) for i in range(size)],
    ),
    "LEASES_PER_ACCOUNT_MAX": lambda size: decide(
        *[Grant(f"public/{i}", "ada", 1) for i in range(size)]
    ),
    "LEASE_WAITERS_PER_ACCOUNT_MAX": lambda size: decide(
        Grant("public/l", "ada", 1_000),
        *[Grant("public/l", f"w{i}", 1_000, wait=True) for i in range(size)],
    ),
    "ACCOUNT_KEYS_MAX": lambda size: decide(*[Put(f"private/{i}/x", ONE) for i in range(size)]),
    "ACCOUNT_BYTES_MAX": lambda size: decide(
        Put("public/a", b""), Put("private/a/x", b"x" * (size - 19))
    ),
    "ACCOUNT_INBOX_KEYS_MAX": lambda size: decide(*[Put(f"inbox/{i}/x", ONE) for i in range(size)]),
    "ACCOUNT_INBOX_BYTES_MAX": lambda size: decide(
        Put("inbox/b/x", b""), Put("inbox/a/x", b"x" * (size - 18))
    ),
    "LEASE_WAITERS_MAX": lambda size: decide(
        Grant("public/l", "ada", 1_000),
        *[Grant("public/l", f"w{i}", 1_000, wait=True) for i in range(size)],
    ),
    "NAMESPACE_KEYS_MAX": lambda size: decide(*[Put(f"public/{i}", ONE) for i in range(size)]),
    "BOARD_KEYS_MAX": lambda size: decide(*[Put(f"private/{i}/x", ONE) for i in range(size)]),
    "NAMESPACE_BYTES_MAX": lambda size: decide(Put("public/a", b"x" * (size - 8))),
    "BOARD_BYTES_MAX": lambda size: decide(
        Put("public/a", b""), Put("private/a/x", b"x" * (size - 19))
    ),
}
"""Limits of a board, brought down to `LOW` first."""

LOW = 40


@pytest.mark.parametrize("name", PROBES)
def test_a_limit_has_an_edge(name: str) -> None:
    """As large as the limit passes; one more is refused with the limit's name and both numbers."""
    maximum: int = getattr(limits, name)
    PROBES[name](maximum)
    with pytest.raises(LimitExceeded) as refused:
        PROBES[name](maximum + 1)
    found = refused.value
    assert (found.limit, found.value, found.maximum) == (name, maximum + 1, maximum)


@pytest.mark.parametrize("name", LOWERED)
def test_a_limit_of_a_board_has_an_edge(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read at every commit."""
    monkeypatch.setattr(limits, name, LOW)
    LOWERED[name](LOW)
    with pytest.raises(LimitExceeded) as refused:
        LOWERED[name](LOW + 1)
    found = refused.value
    assert (found.limit, found.value, found.maximum) == (name, LOW + 1, LOW)


def test_a_segment_has_an_edge() -> None:
    """Beyond it, it is no name at all."""
    assert check_name("a" * limits.SEGMENT_BYTES_MAX)
    with pytest.raises(InvalidRequest):
        check_name("a" * (limits.SEGMENT_BYTES_MAX + 1))


def test_conditions_have_the_edge_of_operations() -> None:
    """Of each kind there may be OPERATIONS_MAX."""
    probe = decide_with("conditions", KeyAt("public/none", 0))
    probe(limits.OPERATIONS_MAX)
    with pytest.raises(LimitExceeded):
        probe(limits.OPERATIONS_MAX + 1)


def test_the_exact_integers_of_lua_end_where_ours_do() -> None:
    """A double counts to 2**53 without a gap."""
    for edge in (limits.REVISION_MAX, limits.INTEGER_MAX):
        assert float(edge) == edge
        assert float(edge + 2) == float(edge + 1)


# --- the embedded engine --------------------------------------------------------------------------


@pytest.fixture
async def store(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[SqliteStore]:
    """An embedded engine over an empty directory."""
    opened = await SqliteStore.at(tmp_path, "memory", limits=request.getfixturevalue("limits"))
    yield opened
    await opened.aclose()


async def refused_beyond(name: str, probe: Callable[[int], Awaitable[object]]) -> None:
    """Probe the edge of an engine's limit."""
    maximum: int = getattr(limits, name)
    await probe(maximum)
    with pytest.raises(LimitExceeded) as refused:
        await probe(maximum + 1)
    assert (refused.value.limit, refused.value.value) == (name, maximum + 1)


async def test_a_batch_has_an_edge(store: SqliteStore) -> None:
    """BATCH_COMMITS_MAX commits in one call."""
    writer = await Writer.open(store, BOARD)

    async def probe(size: int) -> None:
        await writer.send_all([writer.make(Increment("public/a", 1)) for _ in range(size)])

    await refused_beyond("BATCH_COMMITS_MAX", probe)


async def test_a_reading_has_an_edge(store: SqliteStore) -> None:
    """READ_KEYS_MAX keys in one call."""
    await store.open(BOARD)
    await refused_beyond("READ_KEYS_MAX", lambda size: store.read(BOARD, ["public/a"] * size))


async def test_pages_have_an_edge(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIST_ENTRIES_MAX and LOG_ENTRIES_MAX, whatever is asked for."""
    monkeypatch.setattr(limits, "LIST_ENTRIES_MAX", 3)
    monkeypatch.setattr(limits, "LOG_ENTRIES_MAX", 4)
    writer = await Writer.open(store, BOARD)
    for number in range(6):
        await writer.commit(Put(f"public/{number}", ONE))
    reading = await store.list(BOARD, "", limit=9)
    assert (len(reading.entries), reading.next_key) == (3, "public/2")
    assert len((await store.log(BOARD, 0, limit=9)).entries) == 4


async def test_the_bytes_of_a_page_have_an_edge(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page ends with the item that reaches PAGE_BYTES_MAX, and holds one at least."""
    monkeypatch.setattr(limits, "PAGE_BYTES_MAX", 200)
    writer = await Writer.open(store, BOARD)
    for number in range(4):
        await writer.commit(Put(f"public/{number}", b"x" * 92))
    assert len((await store.list(BOARD, "public", limit=9)).entries) == 2
    assert len((await store.log(BOARD, 0, limit=9)).entries) == 2
    monkeypatch.setattr(limits, "PAGE_BYTES_MAX", 1)
    assert len((await store.list(BOARD, "public", limit=9)).entries) == 1
    assert len((await store.log(BOARD, 0, limit=9)).entries) == 1


@pytest.mark.limits(commits_queued_max=4)
async def test_waiting_commits_have_an_edge(store: SqliteStore) -> None:
    """COMMITS_QUEUED_MAX of them per board; the next one is not taken."""
    writer = await Writer.open(store, BOARD)
    await writer.send_all([writer.make(Put("public/a", ONE)) for _ in range(4)])
    with pytest.raises(Unavailable):
        await writer.send_all([writer.make(Put("public/a", ONE)) for _ in range(5)])
    assert (await store.open(BOARD)).revision == 4


# --- what one process chooses ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("merge_attempts_max", 0),
        ("merge_attempts_max", -1),
        ("merge_attempts_max", 1.5),
        ("merge_attempts_max", True),
        ("commit_timeout_ms", -1),
        ("commit_timeout_ms", limits.INTEGER_MAX + 1),
        ("commit_timeout_ms", "30"),
        ("commit_pauses_ms", ()),
        ("commit_pauses_ms", (1, -1)),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    """When the value is made, not when it is needed."""
    with pytest.raises(InvalidRequest) as refused:
        lowered(**{name: value})
    assert refused.value.field == f"limits.{name}"


def test_no_limit_can_be_set_twice() -> None:
    """An error names a limit without its group, so no two groups have one of the same name."""
    groups = [getattr(DEFAULT, group.name) for group in fields(DEFAULT)]
    names = [field.name for group in groups for field in fields(group)]
    assert sorted(names) == sorted(set(names))


def test_a_time_may_be_nothing() -> None:
    """At once, that is."""
    assert lowered(commit_timeout_ms=0).client.commit_timeout_ms == 0


# --- every row ------------------------------------------------------------------------------------

BY_EFFECT = {
    "REQUEST_HEAD_BYTES_MAX": "test_http_protocol.py::test_the_edge_of_a_head",
    "REQUEST_HEADERS_MAX": ("test_http_protocol.py::test_the_edge_of_the_number_of_headers"),
    "STRANGERS_MAX": "test_strangers.py::test_the_edges_of_a_process",
    "STRANGERS_PER_PEER_MAX": "test_strangers.py::test_the_edges_of_a_process",
    "UNGREETED_MAX": "test_strangers.py::test_the_edges_of_connections_without_hello",
    "UNGREETED_PER_PEER_MAX": ("test_strangers.py::test_the_edges_of_connections_without_hello"),
    "RENEWALS_PER_TTL": "test_keeper.py::test_it_is_renewed_at_a_third_of_its_time",
    "SWEEP_INTERVAL_MS": "rules_board_write.py::test_an_entry_expires_and_watchers_see_it",
    "ARCHIVE_WAIT_MS": "test_archiver.py::test_waiting_for_the_archive_is_bounded",
    "ARCHIVE_LEASE_MS": "test_archiver.py::test_one_archives_and_the_other_takes_over",
    "LOCK_MASTER_TIMEOUT_MS": "test_redlock_faults.py::test_hung_masters_hold_nobody_up",
    "HANDOVER_WAIT_MS": (
        "test_handover.py::test_a_commit_that_is_not_answered_does_not_delay_those_of_others"
    ),
    "OVERLAP_TTL_MS": (
        "rules_board_document.py::test_an_overlap_in_an_inner_text_is_reported_and_in_the_log"
    ),
    "CONNECT_WAIT_MS": "test_connect.py::test_it_says_why_when_it_gives_up",
    "MODEL_PAUSE_MS_MAX": "test_providers.py::test_a_requested_pause_is_kept_if_it_is_short",
    "TRANSCRIPT_PAGE_TURNS_MAX": "test_transcripts.py::test_numbers_out_of_range_are_refused",
    "WINDOW_TURNS_MAX": "test_transcripts.py::test_numbers_out_of_range_are_refused",
}
"""Rows whose test stands at the edge without their name: by a number, or by what they bring about.
"""

PACES = {
    "ARCHIVE_RETRY_MS",
    "AUDIT_PRUNE_INTERVAL_MS",
    "BACKUP_INTERVAL_MS",
    "ARCHIVE_IDLE_MS",
    "ARCHIVE_PAUSE_MS",
    "BLOB_CALLS_MAX",
    "CLAIM_TAKE_ATTEMPTS_MAX",
    "COMMIT_PAUSES_MS",
    "LOCK_MASTER_CALLS_MAX",
    "LONG_REQUEST_TIMEOUT_MS",
    "RESTORE_ATTEMPTS_MAX",
    "RESTORE_HOLDS_MAX",
    "RESTORE_KEPT_MS",
}
"""Rows that nobody is refused by: how fast something goes on, and how often it is tried before it
goes another way. They have no edge that a caller could stand at."""


@cache
def sources_by_file() -> dict[str, dict[str, str]]:
    """The source of every test, by file name and function name."""
    found: dict[str, dict[str, str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        found.setdefault(path.name, {}).update(_tests_in(source))
    return found


def _tests_in(source: str) -> Iterator[tuple[str, str]]:
    """Each test with its source; a table above the tests counts for each of them."""
    tree = ast.parse(source)
    tables = [
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)
    ]
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    for node in functions:
        if node.name.startswith("test_"):
            yield node.name, "\n".join([*tables, ast.unparse(node)])


def rows() -> list[str]:
    """The names of the table: the constants, and the fields in capitals as errors give them."""
    groups = [getattr(DEFAULT, group.name) for group in fields(DEFAULT)]
    chosen = [field.name.upper() for group in groups for field in fields(group)]
    return [name for name in vars(limits) if name.isupper() and name != "DEFAULT"] + chosen


def untested(names: list[str], sources: dict[str, dict[str, str]]) -> list[str]:
    """Those of `names` that no test names."""
    here = Path(__file__).name
    everything = "\n".join(
        text for file, tests in sources.items() if file != here for text in tests.values()
    )
    said = set(re.findall(r"[A-Z][A-Z_]{3,}", everything)) | set(PROBES) | set(LOWERED)
    said |= {name.upper() for name in re.findall(r"\b([a-z_]{4,})=", everything)}
    said |= {name.upper() for name in re.findall(r"\.([a-z_]{4,})\b", everything)}
    return [name for name in names if name not in said]


def test_every_row_has_a_test() -> None:
    """A new one needs a test that names it, or a line above that says which test shows it."""
    missing = set(untested(rows(), sources_by_file())) - BY_EFFECT.keys() - PACES
    assert missing == set()


def unused(names: list[str], code: str) -> list[str]:
    """Those of `names` that the code reads nowhere: limits that bound nothing."""
    read = set(re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", code))
    read |= {name.upper() for name in re.findall(r"\.([a-z][a-z0-9_]{3,})\b", code)}
    return [name for name in names if name not in read]


def test_every_row_bounds_something() -> None:
    """Code reads it: a limit that nobody keeps is a promise that nobody keeps."""
    files = [*(ROOT / "blackboard").rglob("*.py"), *(ROOT / "blackboard").rglob("*.lua")]
    texts = [path.read_text("utf-8") for path in files if path.name != "limits.py"]
    code = "\n".join(re.sub(r'""".*?"""', "", text, flags=re.DOTALL) for text in texts)
    assert unused(rows(), code) == []


def test_a_row_that_bounds_nothing_is_found() -> None:
    """So that the test above can fail."""
    assert unused(["NOBODY_READS_THIS_MAX", "LEASES_MAX"], "limits.LEASES_MAX") == [
        "NOBODY_READS_THIS_MAX"
    ]


def test_a_row_without_a_test_is_found() -> None:
    """So that the test above can fail."""
    assert untested(["NOBODY_TESTS_THIS_MAX", "LEASES_MAX"], {}) == ["NOBODY_TESTS_THIS_MAX"]


def test_the_tests_that_are_named_exist() -> None:
    """And no row is listed that is gone."""
    assert (BY_EFFECT.keys() | PACES) - set(rows()) == set()
    for name in BY_EFFECT.values():
        file, _, test = name.partition("::")
        assert test in sources_by_file()[file], name
