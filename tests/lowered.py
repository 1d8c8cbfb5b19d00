"""Limits for tests: as usual but for a few, which are passed in where the test makes its service,
client or component."""

from dataclasses import fields, replace
from typing import Any

import pytest

from blackboard.limits import DEFAULT, VALUE_BYTES_MAX, Limits


def marked(node: pytest.Item, base: Limits = DEFAULT) -> Limits:
    """`base` with the limits that the marks `limits` of a test name."""
    for mark in reversed(list(node.iter_markers("limits"))):
        base = lowered(base, **mark.kwargs)
    return base


def lowered(base: Limits = DEFAULT, **values: Any) -> Limits:
    """`base` with other values of the named limits, whichever group has them."""
    groups = {group.name: getattr(base, group.name) for group in fields(base)}
    for name, value in values.items():
        owner = next(key for key, group in groups.items() if hasattr(group, name))
        groups[owner] = replace(groups[owner], **{name: value})
    return Limits(**groups)


NO_MARKS_BY_THE_CLOCK = lowered(progress_interval_ms=3_600_000, access_stale_ms=3_600_000)
"""Watches tell where they are when they are asked, not also every few seconds: what comes next on a
connection does not depend on how fast the machine is. Nobody misses them."""
COPIED = lowered(archive_copy_bytes_max=VALUE_BYTES_MAX)
"""The archive of an embedded engine copies every value, as that over Redis does."""
PATIENT = lowered(engine_timeout_ms=60_000)
"""An engine or archive may take as long to answer as a busy machine needs."""
