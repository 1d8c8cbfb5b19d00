"""Importing a framework that may be missing, or of a version that was not tested."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

DISTRIBUTION = "agent-blackboard"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")


@contextmanager
def framework(extra: str) -> Iterator[None]:
    """A block with the imports of the framework that the extra `extra` installs.

        with framework("langgraph"):
            from langgraph.checkpoint.base import BaseCheckpointSaver

    Errors: ModuleNotFoundError when it is missing, and ImportError when its version is not one that
    the extra admits, or lacks what is imported. Each says which command installs the right one.
    """
    wanted = _requirement(extra)
    name, command = _name(wanted), f"pip install '{DISTRIBUTION}[{extra}]'"
    found = _installed(name)
    if found is not None and not admits(wanted, found):
        raise ImportError(f"{wanted} is tested, and {found} is installed: {command}", name=name)
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("blackboard"):
            raise
        raise ModuleNotFoundError(f"{name} is missing: {command}", name=error.name) from error
    except ImportError as error:
        reason = f"{name} {found} lacks something ({error}): {command}"
        raise ImportError(reason, name=error.name) from error


def admits(requirement: str, version: str) -> bool:
    """Whether the bounds of `requirement` (`>=` and `<`) admit `version`."""
    number = _number(version)
    return all(
        number >= _number(bound) if relation == ">=" else number < _number(bound)
        for relation, bound in _BOUND.findall(requirement)
    )


def _requirement(extra: str) -> str:
    """What the extra requires, without its marker: `langgraph<2,>=1.2`."""
    for requirement in metadata.requires(DISTRIBUTION) or ():
        text, _, marker = requirement.partition(";")
        if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", marker):
            return text.strip()
    raise ValueError(f"{DISTRIBUTION} has no extra {extra}")


def _name(requirement: str) -> str:
    found = _NAME.match(requirement)
    assert found is not None
    return found[0]


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _number(version: str) -> tuple[int, ...]:
    """The release part of a version, without trailing zeros, so that 1.2 is not below 1.2.0."""
    digits = [int(part) for part in re.findall(r"\d+", re.split(r"[^0-9.]", version)[0])]
    while digits and digits[-1] == 0:
        digits.pop()
    return tuple(digits)
