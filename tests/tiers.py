"""Which tests `make check`, `make test` and `make test-all` run: the one place where that is said.

- `make check` runs what is `quick`: the repository's own rules, units that need neither a server
  nor a service, and one suite of the board and one of the store, on SQLite.
- `make test` runs what is not `long`: what shows each behaviour on every engine and transport, and
  under every fault, once.
- `make test-all` runs everything, but for what is repeated within it, and so does pytest by itself.

A test is long if it repeats on another server, or with other dice, what another one shows. One
that is repeated with more dice takes its rounds from `few_or_many`; Hypothesis draws `FEW_EXAMPLES`
for a test unless everything is run or the test says how many it needs.

Whatever is behind a board, its rules are the same. `make test` tries each of them where most lies
between a client and the data, over WebSocket on SQLite; a second time only where something else
takes part: on Redis those of commits, reads, leases and the history, and with encryption those by
which values come and go.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import pytest

from tests.servers import server_binaries


@dataclass(frozen=True, slots=True)
class Rule:
    """Tests whose id, as pytest prints it, holds `pattern`; `reason` is for people."""

    pattern: str
    reason: str

    def holds(self, test_id: str) -> bool:
        """Whether it speaks of that test."""
        return re.search(self.pattern, test_id) is not None


def other_kinds() -> tuple[str, ...]:
    """The kinds of Redis servers but for the first one, which `make test` takes: the one that
    BLACKBOARD_REDIS_SERVER asks for, otherwise Redis if it is there, otherwise Valkey."""
    return tuple(binary.name for binary in server_binaries()[1:])


_LOSS_IN_SHORT = "(?!test_nothing_archived_goes|test_the_whole_board_is_recovered)"
"""Each kind of loss comes up in these rules, at least."""
LONG = (
    *(
        Rule(rf"^(?!.*::TestRedisStore::).*\[.*{re.escape(name)}", "a second kind of server")
        for name in other_kinds()
    ),
    Rule(r"::TestRedisClusterStore::", "each node is a server that passed the same suite"),
    Rule(
        r"::test_every_promise_holds_whatever_breaks\[", "every fault at once, after each by itself"
    ),
    Rule(r"::TestBoardEmbedded::", "TestBoardWebSocket goes the same way, and further"),
    Rule(r"::TestBoardSync::", "what it hands its calls to passed; tests/unit/sync has the rest"),
    Rule(r"::TestBoardSealed::", "TestBoardSealedRedis has the rules in which values are sealed"),
    Rule(r"::test_every_run_keeps_what_is_promised\[[1-9]\d?\]", "more seeds"),
    Rule(r"^tests/faults/test_redlock_\w+\.py::.*\[5-", "five lock masters, after three"),
    Rule(
        r"^tests/partitions/.*(test_redis_partitions|\[only answers\]|::test_masters_of_locks)",
        "failovers and lock masters that die were tried by themselves, and silence both ways",
    ),
    Rule(r"::TestSqliteStoreInMemory::", "TestSealedSqliteStore is in front of that level"),
    Rule(
        r"::TestServiceOnRedis::|::TestClientsOnRedis::",
        "what runs above the engine was tried over WebSocket",
    ),
    Rule(
        r"::test_the_embedded_engine_says_what_the_model_says$"
        r"|::test_redis_says_what_the_model_says\[",
        "Hypothesis finds other walks than those that are tried every time",
    ),
    Rule(
        rf"/test_recoverable\.py::TestEmbedded::{_LOSS_IN_SHORT}.*\[journal gone",
        "all rules hold of a file that is gone",
    ),
    Rule(
        rf"/test_recoverable\.py::TestRedis::{_LOSS_IN_SHORT}.*\[(older copy|\w+ while served)-",
        "all rules hold of Redis that was flushed, and of an older copy of a file",
    ),
    Rule(r"^tests/acceptance/test_installed\.py", "tests/test_wheel.py reads what the wheels hold"),
    Rule(r"^tests/deploy/test_image_runs\.py", "the image's files are read, and `serve` was run"),
    Rule(r"::test_the_tutorial_does_what_it_says$", "each of its commands was tried"),
    Rule(r"^tests/acceptance/test_javascript_package\.py", "the client was tried from its sources"),
    # What tests are tried on: it changes when they do, not when the product does.
    Rule(r"/test_simulation\.py::test_a_planted_fault_is_found\[", "what the simulation finds"),
    Rule(r"::test_a_mutant_is_found_out\[", "what the walks of the machine find"),
    Rule(r"::test_a_mutant_lives_in_a_copy_and_is_noticed_there$", "what `make mutants` does"),
    Rule(r"::test_the_same_walks_find_nothing_wrong$", "and that they find nothing else"),
    Rule(r"::test_scripts_do_the_same_on_a_real_server\[", "the simulation's server is a server"),
)

ONE_KIND = (
    Rule(r"::TestBoardRedis::", "TestRedisStore tries on each kind all that a board asks for"),
    Rule(r"::TestServiceOnRedis::|::TestClientsOnRedis::", "what runs above the engine"),
)
"""Tests that no command repeats on a second kind of server: the suite of the store shows on each
kind what these rest on, and those of faults what breaks in it."""

QUICK = (
    Rule(r"^tests/test_\w+\.py", "the repository itself"),
    Rule(r"^tests/simulation/", "a simulated clock"),
    Rule(
        r"^tests/unit/(?!server/|client/|runtime/|integrations/|test_telemetry_http)",
        "modules without a service",
    ),
    Rule(r"^tests/conformance/test_board_embedded\.py", "one suite of the board"),
    Rule(r"^tests/conformance/test_store_sqlite\.py", "and one of the store"),
)
"""They speak of whole files: the others need not even be read to run what is quick."""
SLOW = (
    Rule(r"^tests/(faults|guarantees|partitions)/", "processes that are killed, over and over"),
    Rule(r"^tests/page/", "a browser"),
    Rule(r"::test_the_examples_in_the_help_work$", "a process for each line"),
    Rule(r"::test_the_tutorial_does_what_it_says$", "a virtual environment, and fifteen minutes"),
    Rule(r"^tests/acceptance/test_installed\.py", "environments that are filled by pip"),
    Rule(
        r"::test_a_row_that_claims_more_than_any_of_ours_is_refused$", "a value of the largest size"
    ),
)
"""Tests that are slow, beside those that are marked so where they stand."""
SLOWER = ("redis", "cluster", "postgres", "slow")
"""Marks of tests that are not quick, whatever rule holds."""


FEW_EXAMPLES = 40
"""Instead of 100."""


def draws_few(marks: str) -> bool:
    """Whether Hypothesis draws few examples for tests that were selected by `marks`."""
    return marks in ("quick", "not long")


def few_or_many(few: int, many: int) -> pytest.MarkDecorator:
    """Run a test with `few` rounds, its parameter `rounds`, or with `many` in make test-all, but
    there on one kind of server only."""
    slow = pytest.mark.slow
    both = [
        pytest.param(few, id="few", marks=slow),
        pytest.param(many, id="many", marks=[slow, pytest.mark.long]),
    ]
    return pytest.mark.parametrize("rounds", both)


def without_repeats(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The same tests, but for those that repeat another one that is among them.

    Of one with few and with many rounds a second kind of server makes the few, everything else the
    many. Those of `ONE_KIND` are left to the first kind.
    """
    ids = {item.nodeid for item in items}
    first = server_binaries()[0].name if server_binaries() else ""
    second = re.compile("|".join(map(re.escape, other_kinds())) or "$^")

    def is_repeat(test_id: str) -> bool:
        is_second = second.search(test_id) is not None
        if is_second and any(rule.holds(test_id) for rule in ONE_KIND):
            return second.sub(first, test_id) in ids
        here, other = ("many", "few") if is_second else ("few", "many")
        twin = re.sub(rf"(?<=[\[-]){here}(?=[\]-])", other, test_id)
        return twin != test_id and twin in ids

    return [item for item in items if not is_repeat(item.nodeid)]


def may_be_quick(path: str) -> bool:
    """Whether the file at `path`, as test ids begin with, can have quick tests."""
    return any(rule.holds(path) for rule in QUICK)


def dealt(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """The same tests in another order: each worker begins with its share of the slow ones.

    A worker of pytest-xdist first gets an equal share, in order. A slow test that is left to the
    end is waited for by all of them. Those of one file stay together: they share what it prepares,
    a server or an installation, and each worker that had one of them would prepare it again.
    """
    slow = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("slow"):
            slow[item.nodeid.partition("::")[0]].append(item)
    shares = [list[pytest.Item]() for _ in range(workers)]
    for together in sorted(slow.values(), key=len, reverse=True):
        min(shares, key=len).extend(together)
    others = iter([item for item in items if not item.get_closest_marker("slow")])
    order = list[pytest.Item]()
    for worker, share in enumerate(shares, 1):
        order += share
        order += islice(others, max(0, len(items) * worker // workers - len(order)))
    return order + list(others)


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark each test as quick or long, or as neither."""
    for item in items:
        test_id = item.nodeid
        if any(rule.holds(test_id) for rule in LONG):
            item.add_marker("long")
        if any(rule.holds(test_id) for rule in SLOW):
            item.add_marker("slow")
        if may_be_quick(test_id) and not any(map(item.get_closest_marker, SLOWER)):
            item.add_marker("quick")
