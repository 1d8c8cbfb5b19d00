"""The table of tiers speaks of tests that exist, and says what it is meant to say."""

import re

import pytest

from tests.source_tree import sources
from tests.tiers import LONG, QUICK, Rule, other_kinds

RULES = [*LONG, *QUICK]


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
