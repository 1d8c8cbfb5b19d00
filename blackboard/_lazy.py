"""Names that are loaded when they are first used (PEP 562): importing them costs nothing.

Some are in another distribution than this file, or need one: using one without it raises an error
what to install.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy(
    module: dict[str, Any], homes: Mapping[str, tuple[str, ...]], other: Callable[[str], Any]
) -> Callable[[str], Any]:
    """A `__getattr__` for the module with the globals `module`.

    `homes` gives the names that each module defines; `other` answers for every other name, and
    raises AttributeError for those that do not exist. Errors: ModuleNotFoundError, saying what to
    install, for a name whose module is in `agent-blackboard` if only the client is installed.
    """
    here: str = module["__name__"]
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        value = other(name) if home is None else getattr(whole(home, f"{here}.{name}"), name)
        # `__getattr__` is called only for names that are not there, so once for each.
        module[name] = value
        return value

    return load


def whole(module: str, user: str) -> ModuleType:
    """Import a module for `user`. Errors: ModuleNotFoundError; it says what to install if `module`
    is missing because only the client is installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # What `module` itself imports may be missing, too: then this advice would not help.
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        raise _missing(error.name, f"{user} needs agent-blackboard", "agent-blackboard") from None


def need(package: str, reason: str, distribution: str) -> None:
    """Errors: ModuleNotFoundError, with `reason` and what to install, if `package` is missing."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise _missing(package, reason, distribution) from None


def need_posix(user: str) -> None:
    """Errors: ImportError, naming `user` and what to do instead, on Windows.

    A service promises what survives a crash, and who can read its files. Both rest on POSIX: syncs
    of directories, replacing open files, modes, signals. On Windows nobody has tried them.
    """
    if sys.platform == "win32":
        raise ImportError(
            f"{user} does not run on Windows: run it in WSL or a Linux container, and connect to it"
            " with blackboard.connect (docs/platforms.md)"
        )


def _missing(name: str, reason: str, distribution: str) -> ModuleNotFoundError:
    quoted = f"'{distribution}'" if "[" in distribution else distribution
    return ModuleNotFoundError(f"{reason}: pip install {quoted}", name=name)
