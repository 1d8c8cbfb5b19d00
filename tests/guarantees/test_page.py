"""docs/guarantees.md claims what is checked: each test that it, the track record or the page about
security names exists."""

import re

import pytest

from tests.guarantees.checkers import GUARANTEES
from tests.source_tree import ROOT, sources

PAGE = ROOT / "docs/guarantees.md"
NAMED = re.compile(r"`(?:[\w/]+/)?(\w+\.py)::(\w+)`")
DEFINED = re.compile(r"^ *(?:async )?def (\w+)\(", re.MULTILINE)
HEADING = re.compile(r"^### (.+)$", re.MULTILINE)


def defined() -> set[tuple[str, str]]:
    """Every test function or method as (file name, name)."""
    return {
        (source.path.rpartition("/")[2], name)
        for source in sources("tests")
        for name in DEFINED.findall(source.text)
    }


def missing(text: str, known: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Tests that `text` names and that do not exist."""
    return [named for named in NAMED.findall(text) if named not in known]


@pytest.mark.parametrize("page", ["guarantees.md", "track_record.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert NAMED.findall(text)
    assert missing(text, defined()) == []


def test_every_file_of_tests_that_security_names_exists() -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:test|rules)_\w+\.py)`", text))
    assert named
    assert named - {source.path.rpartition("/")[2] for source in sources("tests")} == set()


def test_each_bug_on_record_says_what_found_it_and_how_to_see_it() -> None:
    text = (ROOT / "docs/track_record.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]
    assert len(cells) > 40
    assert [row for row in cells if len(row) != 3 or not row[1] or not NAMED.search(row[2])] == []


def test_each_guarantee_on_the_page_names_a_test() -> None:
    sections = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections if not NAMED.search(section)] == []


def test_every_guarantee_that_has_a_checker_stands_on_the_page() -> None:
    headings = HEADING.findall(PAGE.read_text(encoding="utf-8"))
    assert [name for name in GUARANTEES if name not in headings] == []
    assert len(headings) == len(set(headings))


def test_a_test_that_does_not_exist_is_found() -> None:
    known = {("test_a.py", "test_one")}
    assert missing("see `test_a.py::test_one` and `tests/unit/test_a.py::test_one`", known) == []
    assert missing("see `test_a.py::test_two`", known) == [("test_a.py", "test_two")]
    assert missing("see `test_b.py::test_one`", known) == [("test_b.py", "test_one")]
