"""The table of tiers speaks of tests that exist, and says what it is meant to say."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.prepared import form_of
from tests.servers import server_binaries
from tests.source_tree import sources
from tests.tiers import (
    LONG,
    ONE_KIND,
    QUICK,
    SLOW,
    Rule,
    dealt,
    may_be_quick,
    other_kinds,
    without_repeats,
)

RULES = [*LONG, *ONE_KIND, *QUICK, *SLOW]


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


@pytest.mark.parametrize("slow_ones", [[14], [3, 1, 8, 2], [26], [9, 9, 8], [1] * 12])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_slow_tests_are_dealt_out_first(
    request: pytest.FixtureRequest, workers: int, slow_ones: list[int]
) -> None:
    """Those of a file together; none is lost, and none comes twice."""

    def made(file: str, count: int) -> list[pytest.Item]:
        module = pytest.Module.from_parent(request.session, path=request.path.with_name(file))
        return [
            pytest.Function.from_parent(module, name=f"test_{n}", callobj=lambda: None)
            for n in range(count)
        ]

    files = [made(f"slow_{number}.py", count) for number, count in enumerate(slow_ones)]
    for item in (each for file in files for each in file):
        item.add_marker("slow")
    quick = made("quick.py", 29)
    order = dealt([*quick[:9], *(each for file in files for each in file), *quick[9:]], workers)
    assert len(order) == len(set(order)) == 29 + sum(slow_ones)
    for file in files:
        first = order.index(file[0])
        assert order[first : first + len(file)] == file
    if max(slow_ones) <= len(order) // workers:
        starts = [order[len(order) * worker // workers] for worker in range(workers)]
        assert [not item.get_closest_marker("slow") for item in starts].count(True) == max(
            0, workers - len(files)
        )


@pytest.fixture
def kept(request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """The names of tests that are left of the named ones."""

    def kept(*names: str) -> list[str]:
        parent = request.node.parent
        items = [pytest.Function.from_parent(parent, name=n, callobj=lambda: None) for n in names]
        return [item.name for item in without_repeats(items)]

    return kept


def test_few_rounds_are_left_out_where_many_are_made(kept: Callable[..., list[str]]) -> None:
    """And only there: what is asked for by its name, or in `make test`, runs. A second kind of
    server is not tried with many."""
    assert kept("test_a[few]", "test_a[many]") == ["test_a[many]"]
    assert kept("test_a[redis-few-2]", "test_a[redis-many-2]") == ["test_a[redis-many-2]"]
    for name in other_kinds():
        assert kept(f"test_a[{name}-few]", f"test_a[{name}-many]") == [f"test_a[{name}-few]"]
        assert kept(f"test_a[{name}-many]") == [f"test_a[{name}-many]"]
    others = [
        "test_a[few]",
        "test_b[many]",
        "test_c[fewer]",
        "test_c[manyer]",
        "test_few",
        "test_many",
    ]
    assert kept(*others) == others


def test_what_shows_nothing_new_is_not_repeated_on_a_second_kind(
    kept: Callable[..., list[str]],
) -> None:
    """It is, when it is asked for by its name; and what is about the kind is."""
    first = server_binaries()[0].name
    suite = "TestBoardRedis::test_a"
    for name in other_kinds():
        assert kept(f"{suite}[{name}]", f"{suite}[{first}]") == [f"{suite}[{first}]"]
        assert kept(f"{suite}[{name}]") == [f"{suite}[{name}]"]
        both = [f"TestRedisStore::test_a[{first}]", f"TestRedisStore::test_a[{name}]"]
        assert kept(*both) == both


def test_programs_of_one_form_differ_in_values_only() -> None:
    """One that needs other modules has another form: another command, option, setting or engine."""
    assert form_of(["put", "public/a", "1"]) == form_of(["put", "public/b", '"x"'])
    assert form_of(["checkpoint", "list"]) != form_of(["checkpoint", "verify"])
    assert form_of(["get", "public/a"]) != form_of(["get", "public/a", "--json"])
    assert form_of(["serve", "--engine=redis://a"]) != form_of(["serve", "--engine=sqlite://a"])
    child = "tests.guarantees.service_child"
    assert form_of([child, '{"port": 1}']) == form_of([child, '{"port": 22}'])
    assert form_of([child, '{"port": 1}']) != form_of([child, '{"port": 1, "archive": "a"}'])


def test_costs_are_listed_by_file(tmp_path: Path) -> None:
    """Of all workers, and of processes that a test started."""
    burn = "sum(i * i for i in range(3_000_000))"
    texts = {
        "test_idle.py": "def test_a(): pass\ndef test_b(): pass\n",
        "test_busy.py": f"import subprocess, sys\ndef test_c(): {burn}\n"
        f"def test_d(): subprocess.run([sys.executable, '-c', '{burn}'])\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.costs", "-p", "no:cacheprovider", "-n"]
    done = subprocess.run([*command, "2", "."], cwd=tmp_path, capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.partition(" costs ")[2].splitlines()]
    table = {row[3]: row for row in rows if len(row) == 4 and row[3].endswith(".py")}
    assert [(path, row[0]) for path, row in table.items()] == [
        ("test_busy.py", "2"),
        ("test_idle.py", "2"),
    ], done.stdout
    assert float(table["test_busy.py"][2]) > float(table["test_idle.py"][2])
