"""Limits for tests: as usual but for a few, which are passed in where the test makes its service,
client or component."""

from dataclasses import fields, replace
from typing import Any

from blackboard.limits import DEFAULT, Limits


def lowered(base: Limits = DEFAULT, **values: Any) -> Limits:
    """`base` with other values of the named limits, whichever group has them."""
    groups = {group.name: getattr(base, group.name) for group in fields(base)}
    for name, value in values.items():
        owner = next(key for key, group in groups.items() if hasattr(group, name))
        groups[owner] = replace(groups[owner], **{name: value})
    return Limits(**groups)
