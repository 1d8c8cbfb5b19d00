"""JSON merge patch, RFC 7396: objects are merged, null removes a member, all else replaces."""

from typing import Any


def apply(value: Any, patch: Any) -> Any:
    """The result of applying `patch` to `value`; neither is changed.

    Source: RFC 7396, section 2, whose pseudocode this is.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, member in patch.items():
        if member is None:
            merged.pop(name, None)
        else:
            merged[name] = apply(merged.get(name), member)
    return merged
