"""Names that are loaded when they are first used (PEP 562): importing them costs nothing."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    module: dict[str, Any], homes: Mapping[str, tuple[str, ...]], other: Callable[[str], Any]
) -> Callable[[str], Any]:
    """A `__getattr__` for the module with the globals `module`.

    `homes` gives the names that each module defines; `other` answers for every other name, and
    raises AttributeError for those that do not exist.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        value = other(name) if home is None else getattr(import_module(home), name)
        module[name] = value
        return value

    return load
