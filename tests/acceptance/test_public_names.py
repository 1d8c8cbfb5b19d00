"""What `import blackboard` offers, and what becomes of programs written for older names."""

import builtins
import importlib
from importlib.metadata import version

import pytest

import blackboard
from blackboard import errors, ops, types

NAMES_MAX = 45
"""Public names in `blackboard` itself: what a reader takes in on one page."""


def test_few_names_and_no_built_in_among_them() -> None:
    """`from blackboard import *` hides nothing of Python's."""
    assert len(blackboard.__all__) <= NAMES_MAX
    assert not set(blackboard.__all__) & set(vars(builtins))
    assert callable(blackboard.open)


@pytest.mark.parametrize("module", [blackboard, ops, types, errors])
def test_every_name_is_there_and_listed(module: object) -> None:
    """Each name of each public module."""
    name = getattr(module, "__name__", "")
    loaded = importlib.import_module(name)
    for public in loaded.__all__:
        assert getattr(loaded, public) is not None
        assert public in dir(loaded)


def test_the_version_is_that_of_the_package() -> None:
    """As pip shows it."""
    assert blackboard.__version__ == version("agent-blackboard")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Put", "blackboard.ops.Put"),
        ("Fenced", "blackboard.errors.Fenced"),
        ("Receipt", "blackboard.types.Receipt"),
        ("Stay", "blackboard.RunOptions"),
        ("Shown", "blackboard.types.CheckpointInfo"),
        ("run_step", "blackboard.try_step"),
    ],
)
def test_an_old_name_gives_the_new_one(old: str, new: str) -> None:
    """In the error of the import, and of the attribute; the new one exists."""
    home, _, name = new.rpartition(".")
    assert hasattr(importlib.import_module(home), name)
    with pytest.raises(ImportError, match=rf"^blackboard.{old} is now {new}$"):
        exec(f"from blackboard import {old}")  # noqa: S102
    with pytest.raises(ImportError, match=new):
        getattr(blackboard, old)


def test_every_old_name_leads_to_a_name() -> None:
    """Nobody is sent to where nothing is."""
    for new in blackboard._RENAMED.values():
        home, _, name = new.rpartition(".")
        assert hasattr(importlib.import_module(home), name), new


def test_a_name_that_never_was() -> None:
    """Is an ordinary error."""
    assert not hasattr(blackboard, "Nothing")
    assert not hasattr(types, "Nothing")
