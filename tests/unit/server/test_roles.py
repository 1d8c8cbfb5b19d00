"""Roles: named sets of grants in a file."""

from pathlib import Path

import pytest

from blackboard.core import access
from blackboard.core.access import AccessGrant, Right
from blackboard.errors import InvalidRequest
from blackboard.server.settings import grants_of

ROLES = """
[auditor]
grants = ["public/**=read", "private/**=read"]

[planner]
grants = ["private/{name}/**=read,write"]

[reader]
grants = ["public/notes/**=read"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of roles."""
    path = tmp_path / "roles.toml"
    path.write_text(ROLES, encoding="utf-8")
    return path


def test_a_role_is_a_set_of_grants_with_the_name_put_in(path: Path) -> None:
    """`{name}` is the name of the token; a role of the file precedes a built-in one."""
    read = frozenset({Right.READ})
    assert grants_of("auditor", "ada", path) == (
        AccessGrant("public/**", read),
        AccessGrant("private/**", read),
    )
    assert grants_of("planner", "ada", path) == (
        AccessGrant("private/ada/**", frozenset({Right.READ, Right.WRITE})),
    )
    assert grants_of("reader", "ada", path) == (AccessGrant("public/notes/**", read),)


def test_some_roles_are_built_in() -> None:
    """What every agent may do, what a reader may, and everything."""
    assert grants_of("agent", "ada") == access.agent("ada").grants
    assert grants_of("operator", "ada") == access.operator().grants
    assert grants_of("reader", "ada") == (AccessGrant("public/**", frozenset({Right.READ})),)


@pytest.mark.parametrize("role", ["agent", "approver", "operator", "reader"])
def test_a_file_may_define_a_built_in_role_otherwise(tmp_path: Path, role: str) -> None:
    """A token of that role gets no more than the file says."""
    path = tmp_path / "roles.toml"
    path.write_text(f"[{role}]\ngrants = ['public/{{name}}/**=read']\n", encoding="utf-8")
    assert grants_of(role, "ada", path) == (AccessGrant("public/ada/**", frozenset({Right.READ})),)


@pytest.mark.parametrize(
    "text",
    [
        "[a]",
        "[a]\ngrants = 'public/**=read'",
        "[a]\ngrants = [7]",
        "[a]\ngrants = ['public/**=rite']",
        "[a]\ngrants = ['public//x=read']",
        "[a]\ngrants = []\nmore = 1",
        "['a b']\ngrants = []",
        "a = 1",
        "[a",
    ],
)
def test_a_file_that_is_not_understood_is_refused_whole(tmp_path: Path, text: str) -> None:
    """A role that is half read would be another role."""
    path = tmp_path / "roles.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequest):
        grants_of("agent", "ada", path)


def test_an_unknown_role_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    """By name, with those that there are."""
    with pytest.raises(InvalidRequest, match="agent, approver, operator, reader"):
        grants_of("king", "ada")
    with pytest.raises(InvalidRequest):
        grants_of("agent", "ada", tmp_path / "none.toml")
