"""The files of `blackboard.sync` are what the generator writes, and lack nothing."""

import inspect
from typing import Any

import pytest

import blackboard
from blackboard import sync
from blackboard.sync import asynchronous
from tools.sync_client import LEFT_OUT, files

OTHER_NAMES = {"aclose": "close"}


def test_the_files_are_what_the_generator_writes() -> None:
    for path, text in files():
        assert path.read_text(encoding="utf-8") == text, f"run python -m tools.sync_client: {path}"


@pytest.mark.parametrize("name", asynchronous.__all__)
def test_nothing_public_is_missing(name: str) -> None:
    theirs, ours = getattr(asynchronous, name), getattr(sync, name)
    public = {one for one in dir(theirs) if not one.startswith("_")} - LEFT_OUT
    assert {OTHER_NAMES.get(one, one) for one in public} <= set(dir(ours))


@pytest.mark.parametrize("name", ["open", "connect"])
def test_both_are_opened_alike(name: str) -> None:
    theirs: Any = inspect.signature(getattr(blackboard, name)).parameters
    ours = inspect.signature(getattr(sync, name)).parameters
    assert [(one.name, one.default, one.kind) for one in theirs.values()] == [
        (one.name, one.default, one.kind) for one in ours.values()
    ]
