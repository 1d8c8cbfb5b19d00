"""The nouns are values: frozen, comparable, without room for more."""

import inspect
import typing
from enum import Enum

import pytest
from msgspec import Struct
from msgspec.structs import replace

from blackboard.core import commit
from blackboard.core.commit import (
    ABSENT,
    PRESENT,
    Change,
    ChangeKind,
    CommitId,
    Committed,
    Epoch,
    Head,
    KeyAt,
    LogEntry,
    Op,
    Put,
    Reading,
)
from blackboard.core.model import effects
from tests.unit.core.trial import EPOCH, Trial, packed

NOUNS = [
    noun
    for _, noun in inspect.getmembers(commit, inspect.isclass)
    if noun.__module__ == commit.__name__ and not issubclass(noun, Enum)
]


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_every_noun_is_frozen_and_slotted(noun: type[Struct]) -> None:
    """Nobody changes one after the fact, nobody hangs a field on it."""
    assert noun.__struct_config__.frozen
    assert noun.__dictoffset__ == 0


def test_a_noun_refuses_a_change() -> None:
    """The check above is not blind."""
    put = Put("public/a", b"")
    with pytest.raises(AttributeError):
        put.key = "public/b"  # type: ignore[misc]


def test_the_author_of_a_log_entry_is_the_agent_of_its_commit() -> None:
    """Not its lane, not its process."""
    entry = LogEntry(1, 0, CommitId("ada", 3, "process", 9), (), b"")
    assert entry.author == "ada"


def test_nothing_stands_for_absent_and_present_that_could_be_a_revision() -> None:
    """Revisions begin at 1."""
    assert (ABSENT, PRESENT) == (0, -1)
    assert KeyAt("public/a", ABSENT) != KeyAt("public/a", PRESENT)


def test_defaults_say_nothing() -> None:
    """A commit is no duplicate, a change changes nothing else, a page ends."""
    assert Committed(1, 0, ()).duplicate is False
    change = Change(ChangeKind.DELETE, "public/a")
    assert (change.value, change.expires_at_ms, change.item, change.lease) == (None,) * 4
    assert Reading(0, "epoch").next_key is None
    assert Head(0, EPOCH, 1).log_entries == 0


def test_every_kind_of_operation_has_an_effect() -> None:
    """A kind that `effects` forgot would answer None to the loop over its changes."""
    trial = Trial()
    trial.commit(Put("public/d/x", packed(1)))
    trial.commit(commit.Grant("public/over", "ada", 0))
    examples: dict[type, Op] = {
        Put: Put("public/a", packed(1)),
        commit.Delete: commit.Delete("public/d/x"),
        commit.DeletePrefix: commit.DeletePrefix("public/d"),
        commit.Append: commit.Append("public/l", packed(1)),
        commit.Increment: commit.Increment("public/n", 1),
        commit.Grant: commit.Grant("public/lease", "ada", 1_000),
        commit.Renew: commit.Renew("public/over", "ada", 2, 0),
        commit.Expire: commit.Expire("public/over", "ada", 2),
        commit.Release: commit.Release("public/over", "ada", 2),
        commit.PutBack: commit.PutBack("public/a", packed(1)),
    }
    assert set(examples) == set(typing.get_args(Op))
    for kind in examples:
        made = trial.make(examples[kind])
        if kind is commit.PutBack:
            made = replace(made, begins=Epoch(2, "second", commit.RESTORE, 0, 3))
        decided = trial.decide(made)
        assert isinstance(decided, Committed)
        assert len(effects(made, decided)) == 1
