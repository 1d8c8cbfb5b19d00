"""Roles: named sets of grants, in a TOML file that people review.

    [auditor]
    grants = ["public/**=read", "private/**=read"]

    [planner]
    grants = ["public/plan/**=read,write,lock", "private/{name}/**=read,write"]

`{name}` becomes the name of whoever gets the role. A token holds the grants that its role had when
it was made: change the file, and the next token has them.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from blackboard.core import access
from blackboard.core.access import Grant
from blackboard.core.path import check_name
from blackboard.errors import InvalidRequest

AGENT: Final = "agent"
READER: Final = "reader"
OPERATOR: Final = "operator"
_BUILT_IN: Final[Mapping[str, Sequence[str]]] = {
    READER: ["public/**=read"],
    OPERATOR: ["**=all"],
}


def grants_of(role: str, name: str, path: Path | None = None) -> tuple[Grant, ...]:
    """The grants of `role` for `name`: a role of the file at `path`, else a built-in one.

    Errors: InvalidRequest when there is no such role, or the file is not as above.
    """
    found = {} if path is None else load(path)
    if role in found:
        texts = found[role]
    elif role == AGENT:
        return access.agent(name).grants
    elif role in _BUILT_IN:
        texts = _BUILT_IN[role]
    else:
        known = ", ".join(sorted({AGENT, *_BUILT_IN, *found}))
        raise InvalidRequest("role", f"{role!r} is not one of: {known}")
    return access.check_grants(access.parse_grant(text.replace("{name}", name)) for text in texts)


def load(path: Path) -> Mapping[str, Sequence[str]]:
    """The roles of a file: by name, grants as text. Errors: InvalidRequest."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest("roles_file", f"{path}: {error}") from error
    return {check_name(name, "role"): _texts(name, role) for name, role in found.items()}


def _texts(name: str, role: Any) -> Sequence[str]:
    """Errors: InvalidRequest unless it is a table with nothing but `grants`, all of them valid."""
    grants = role.get("grants") if isinstance(role, dict) and set(role) == {"grants"} else None
    if not isinstance(grants, list) or not all(isinstance(text, str) for text in grants):
        raise InvalidRequest("roles_file", f"role {name}: it needs grants = [...] and nothing else")
    for text in grants:
        access.check_grants([access.parse_grant(text.replace("{name}", "name"))])
    return grants
