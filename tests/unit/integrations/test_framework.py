"""A framework that is missing or of another version is named, with the command that installs it."""

from importlib import metadata

import pytest

from blackboard.integrations import framework as frameworks
from blackboard.integrations.framework import admits, framework


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: [ABSENT])
    with pytest.raises(ModuleNotFoundError) as caught, framework("absent"):
        import absent_framework  # type: ignore[import-not-found] # noqa: F401
    assert caught.value.name == "absent_framework"
    command = "pip install 'agent-blackboard[absent]'"
    assert str(caught.value) == f"absent-framework is missing: {command}"


ABSENT = "absent-framework<2,>=1; extra == 'absent'"


@pytest.mark.parametrize(("extra", "bounds"), [("low", ">=99"), ("high", "<1,>=0.1")])
def test_an_untested_version_is_refused_before_anything_is_imported(
    monkeypatch: pytest.MonkeyPatch, extra: str, bounds: str
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: [f'pytest{bounds} ; extra == "{extra}"'])
    with (
        pytest.raises(ImportError, match=rf"pytest{bounds} is tested, and \d.*\[{extra}\]'$"),
        framework(extra),
    ):
        pytest.fail("the block was entered")


def test_a_name_that_a_version_lacks_is_an_import_error_with_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: ['pytest>=8; extra == "it"'])
    with (
        pytest.raises(ImportError, match=r"pytest \d\S* lacks something .*Nothing.*\[it\]'$"),
        framework("it"),
    ):
        from pytest import Nothing  # type: ignore[attr-defined] # noqa: F401, PT013


def test_our_own_missing_module_is_not_taken_for_the_framework() -> None:
    message = r"No module named 'blackboard\.nothing'"
    with pytest.raises(ModuleNotFoundError, match=message), framework("langgraph"):
        import blackboard.nothing  # type: ignore[import-not-found] # noqa: F401


@pytest.mark.parametrize(
    ("version", "admitted"),
    [("1.2", True), ("1.2.0", True), ("1.10", True), ("1.1.9", False), ("2.0.0rc1", False)],
)
def test_versions_are_compared_as_numbers(version: str, admitted: bool) -> None:
    assert admits("some[extra]<2,>=1.2", version) is admitted


def test_every_extra_of_a_framework_is_known() -> None:
    """And has both bounds, so that an untested major version is noticed."""
    for extra in "langgraph mcp openai-agents claude-agent-sdk pydantic-ai google-adk".split():
        requirement = frameworks._requirement(extra)
        assert admits(requirement, "999") is admits(requirement, "0") is False
    with pytest.raises(ValueError, match="no extra nothing"):
        frameworks._requirement("nothing")
