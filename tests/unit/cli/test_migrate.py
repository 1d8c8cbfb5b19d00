"""Which module a command means."""

from pathlib import Path

import pytest

from blackboard.cli.agents import imported
from blackboard.cli.errors import CommandError, Exit


def test_a_module_is_found_from_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it fails at when it is imported is its own error."""
    (tmp_path / "agents_of_a_test.py").write_text("KIND = 1\n")
    (tmp_path / "broken_for_a_test.py").write_text("import what_nobody_has\n")
    (tmp_path / "crew_of_a_test.py").write_text("import crew\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'crew'"):
        imported("crew_of_a_test")
    assert imported("agents_of_a_test").KIND == 1
    with pytest.raises(ModuleNotFoundError, match="what_nobody_has"):
        imported("broken_for_a_test")


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("nosuch", "there is no module nosuch", Exit.NOT_FOUND),
        ("nosuch:Agent", "there is no module nosuch", Exit.NOT_FOUND),
        ("nosuch.deeper", "there is no module nosuch.deeper", Exit.NOT_FOUND),
        ("json:Agent", "json:Agent names more than a module", Exit.USAGE),
        ("", "there is no module ''", Exit.NOT_FOUND),
        (":Agent", "there is no module ':Agent'", Exit.NOT_FOUND),
        ("..near", "there is no module '..near'", Exit.NOT_FOUND),
    ],
)
def test_what_is_no_module_is_named(name: str, message: str, code: Exit) -> None:
    """The module alone, where a class is named with it."""
    with pytest.raises(CommandError) as refused:
        imported(name)
    assert (refused.value.message, refused.value.exit) == (message, code)
