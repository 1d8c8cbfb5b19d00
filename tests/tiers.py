"""Which tests `make check`, `make test` and `make test-all` run: the one place where that is said.

- `make check` runs what is `quick`: the repository's own rules, units that need no server, and one
  suite of the board and one of the store, on SQLite.
- `make test` runs what is not `long`: what shows each behaviour on every engine and transport, and
  under every fault, once.
- `make test-all` runs everything, and so does pytest by itself.

A test is long if it repeats on another server, or with other dice, what another one shows.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

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
    Rule(r"::TestBoardSealed::", "TestBoardSealedRedis has the rules in which values are sealed"),
    Rule(r"::test_every_run_keeps_what_is_promised\[[1-7]\]", "more seeds"),
    Rule(r"^tests/faults/test_redlock_\w+\.py::.*\[5-", "five lock masters, after three"),
    # What tests are tried on: it changes when they do, not when the product does.
    Rule(r"/test_simulation\.py::test_a_planted_fault_is_found\[", "what the simulation finds"),
    Rule(r"::test_a_mutant_is_found_out\[", "what the walks of the machine find"),
    Rule(r"::test_scripts_do_the_same_on_a_real_server\[", "the simulation's server is a server"),
)

QUICK = (
    Rule(r"^tests/test_\w+\.py::", "the repository itself"),
    Rule(r"^tests/simulation/", "a simulated clock"),
    Rule(
        r"^tests/unit/(?!.*/test_processes\.py|.*/test_serve\.py)",
        "modules without processes of their own",
    ),
    Rule(r"::(TestBoardEmbedded|TestSqliteStore)::", "one suite of the board, one of the store"),
)
SLOWER = ("redis", "cluster", "postgres", "slow")
"""Marks of tests that are not quick, whatever rule holds."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark each test as quick or long, or as neither."""
    for item in items:
        if any(rule.holds(item.nodeid) for rule in LONG):
            item.add_marker("long")
        if not any(map(item.get_closest_marker, SLOWER)) and any(
            rule.holds(item.nodeid) for rule in QUICK
        ):
            item.add_marker("quick")
