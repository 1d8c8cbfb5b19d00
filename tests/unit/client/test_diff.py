"""What differs, down to the place within a value."""

from typing import Any

import pytest

from blackboard.client.diff import Diff, KeyChange
from blackboard.client.views import Entry
from blackboard.limits import TEXT_DIFF_LINES_MAX


def entry(value: Any, key: str = "public/a", expires_at_ms: int | None = None) -> Entry:
    """An entry with that value."""
    return Entry(key, value, 1, 1, "ada", 0, expires_at_ms)


def change(before: Any, after: Any) -> KeyChange:
    """A key whose value changed."""
    return KeyChange("public/a", entry(before), entry(after))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (1, 2, ["1 -> 2"]),
        (1, True, ["1 -> True"]),
        (1, 1.0, ["1 -> 1.0"]),
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, ["a: 1 -> nothing", "b: 2 -> 3", "c: nothing -> 4"]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3, 4]}}, ["a.b[1]: 2 -> 3", "a.b[2]: nothing -> 4"]),
        ([1, 2], [1], ["[1]: 2 -> nothing"]),
        ({"a": None}, {}, ["a: None -> nothing"]),
        ({"a": 1}, [1], ["{'a': 1} -> [1]"]),
        ("short", "text", ["'short' -> 'text'"]),
        (1, 1, []),
    ],
)
def test_parts(before: Any, after: Any, told: list[str]) -> None:
    assert [str(part) for part in change(before, after).parts] == told


def test_kinds() -> None:
    one = entry(1)
    kinds = [
        KeyChange("public/a", before, after).kind
        for before, after in [(None, one), (one, None), (one, one)]
    ]
    assert kinds == ["added", "removed", "changed"]
    assert str(KeyChange("public/a", None, entry(None))) == "+ public/a\n    nothing -> None"
    assert str(KeyChange("public/a", entry(0), None)) == "- public/a\n    0 -> nothing"
    assert str(KeyChange("public/a", entry(1), entry(1, expires_at_ms=5))) == "~ public/a"


def test_long_texts_are_compared_by_lines() -> None:
    before = "\n".join(f"line {number}" for number in range(50))
    [part] = change(before, before.replace("line 7\n", "another\n")).parts
    assert part.text == ("@@ -7,3 +7,3 @@", " line 6", "-line 7", "+another", " line 8")


@pytest.mark.parametrize(("lines", "is_compared"), [(0, True), (1, False)])
def test_texts_have_an_edge(lines: int, is_compared: bool) -> None:
    before = "\n".join("x" for _ in range(TEXT_DIFF_LINES_MAX + lines))
    [part] = change(before, "y").parts
    assert bool(part.text) is is_compared


def test_a_diff_is_grouped_by_namespace() -> None:
    keys = ["inbox/ada/m/0000000000", "private/ada/a", "private/ada/b", "public/a"]
    diff = Diff(1, 2, tuple(KeyChange(key, None, entry(1, key)) for key in keys))
    assert {name: len(changes) for name, changes in diff.namespaces.items()} == {
        "inbox/ada": 1,
        "private/ada": 2,
        "public": 1,
    }
    assert (len(diff), bool(diff), [c.key for c in diff]) == (4, True, keys)
    assert not Diff(1, 1, ())
