"""The table of tiers speaks of tests that exist, and says what it is meant to say."""

import re

import pytest

from tests.source_tree import sources
from tests.tiers import LONG, QUICK, SLOW, Rule, dealt, may_be_quick, other_kinds

RULES = [*LONG, *QUICK, *SLOW]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.reason.replace(" ", "-"))
def test_a_rule_speaks_of_what_is_there(rule: Rule) -> None:
    """A test that was renamed would change its tier in silence."""
    there = "\n".join(f"{found.path}\n{found.text}" for found in sources("tests"))
    names = re.findall(r"\b[Tt]est_?\w+", rule.pattern.replace(r"\w", ""))
    missing = [name for name in names if not re.search(rf"(class |def |/){name}", there)]
    assert missing == []


def test_a_second_kind_of_server_is_known_by_its_name() -> None:
    for rule, name in zip(LONG, other_kinds(), strict=False):
        assert rule.holds(f"tests/faults/test_full.py::test_a[{name}]")
        assert rule.holds(f"tests/faults/test_full.py::TestA::test_a[client-{name}-True]")
        assert not rule.holds(f"tests/faults/test_full.py::test_a[other than {name[:3]}]")
        assert not rule.holds(f"tests/a.py::TestRedisStore::test_a[{name}]")


def test_quick_rules_speak_of_files() -> None:
    """Each of some that are there; and of none that needs a service or a server."""
    paths = [str(found.path) for found in sources("tests")]
    for rule in QUICK:
        assert any(rule.holds(path) for path in paths), rule
    assert not may_be_quick("tests/acceptance/test_cli.py")
    assert not may_be_quick("tests/unit/server/test_feed.py")
    assert not may_be_quick("tests/conformance/test_board_redis.py")


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_slow_tests_are_dealt_out_first(request: pytest.FixtureRequest, workers: int) -> None:
    """Each worker's share begins with its share of them; none is lost, and none comes twice."""
    items = [
        pytest.Function.from_parent(request.node.parent, name=f"test_{n}", callobj=lambda: None)
        for n in range(29)
    ]
    slow = items[3:17]
    for item in slow:
        item.add_marker("slow")
    order = dealt(items, workers)
    assert sorted(order, key=items.index) == items
    for worker in range(workers):
        share = order[29 * worker // workers : 29 * (worker + 1) // workers]
        first = slow[worker::workers]
        assert share[: len(first)] == first[: len(share)]
