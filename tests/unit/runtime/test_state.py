"""Private states: versions, migrations, validation."""

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from blackboard.client.views import Entry
from blackboard.errors import Corrupt, InvalidState, MigrationFailed, SchemaTooNew
from blackboard.runtime.agent import Agent
from blackboard.runtime.context import Context
from blackboard.runtime.state import Schema, StoredState, stored_in


class Notes(BaseModel):
    """Version 3."""

    amount_usd: int = Field(ge=0)
    tags: list[str] = []


def to_2(state: dict[str, Any]) -> dict[str, Any]:
    """`amount` was a text."""
    return {"amount": int(state["amount"])}


def torn_to_2(state: dict[str, Any]) -> dict[str, Any]:
    """It changes what it is given before it fails."""
    return {"amount": int(state.pop("amount"))}


def to_3(state: dict[str, Any]) -> dict[str, Any]:
    """It has a unit now."""
    state["amount_usd"] = state.pop("amount")
    return state


SCHEMA = Schema("Clerk", 3, Notes, {1: to_2, 2: to_3})


def stored(version: int, kind: str = "Clerk", **state: Any) -> StoredState:
    """What is on a board."""
    return StoredState(kind=kind, version=version, state=state)


def test_an_old_state_is_brought_through_every_version() -> None:
    """From the first, the second, and as it is."""
    assert SCHEMA.revive("ada", stored(1, amount="7")) == Notes(amount_usd=7)
    assert SCHEMA.revive("ada", stored(2, amount=7)) == Notes(amount_usd=7)
    assert SCHEMA.revive("ada", stored(3, amount_usd=7)) == Notes(amount_usd=7)


def test_a_newer_state_is_refused() -> None:
    """With both versions."""
    with pytest.raises(SchemaTooNew) as refused:
        SCHEMA.revive("ada", stored(4, anything=1))
    assert (refused.value.stored, refused.value.known) == (4, 3)


def test_a_migration_that_fails_leaves_what_is_stored() -> None:
    """It worked on a copy; the error says from which version."""
    old = stored(1, amount="seven")
    with pytest.raises(MigrationFailed) as failed:
        SCHEMA.revive("ada", old)
    assert (failed.value.version, old.state) == (1, {"amount": "seven"})
    torn = Schema("Clerk", 3, Notes, {1: torn_to_2, 2: to_3})
    with pytest.raises(MigrationFailed, match="seven"):
        torn.revive("ada", old)
    assert old.state == {"amount": "seven"}
    half = Schema("Clerk", 3, Notes, {2: to_3})
    with pytest.raises(MigrationFailed):
        half.revive("ada", old)
    wrong = Schema("Clerk", 2, Notes, {1: lambda _: None})  # type: ignore[dict-item,return-value]
    with pytest.raises(MigrationFailed, match="NoneType"):
        wrong.revive("ada", old)


def test_a_state_of_another_kind_is_refused() -> None:
    """Two agents that share a name by mistake do not share their state."""
    with pytest.raises(InvalidState, match="Cook"):
        SCHEMA.revive("ada", stored(3, kind="Cook", amount_usd=7))


def test_what_a_migration_made_must_fit_the_model() -> None:
    """The place of the fault is named."""
    with pytest.raises(InvalidState, match="amount_usd"):
        SCHEMA.revive("ada", stored(2, amount=-7))


def test_a_state_is_validated_before_it_is_written() -> None:
    """By its model, though attributes can be set to anything, and by the agent's own check."""
    notes = Notes(amount_usd=7)
    assert SCHEMA.dump("ada", notes) == {"amount_usd": 7, "tags": []}
    notes.amount_usd = -7
    with pytest.raises(InvalidState, match="amount_usd"):
        SCHEMA.dump("ada", notes)
    notes.amount_usd = "much"  # type: ignore[assignment]
    with pytest.raises(InvalidState):
        SCHEMA.dump("ada", notes)

    def check(state: Notes) -> None:
        assert state.tags, "no tags"

    with pytest.raises(InvalidState, match="no tags"):
        Schema("Clerk", 3, Notes, check=check).dump("ada", Notes(amount_usd=7))


class Seen(BaseModel):
    """With a set."""

    numbers: set[int]


def test_a_set_is_stored_in_one_order() -> None:
    """A state that is read by another process, in which hashes are others, has not changed."""
    schema = Schema("Clerk", 1, Seen)
    other = set[int]()
    other |= {8}
    other |= {0}
    dumped = [schema.dump("ada", Seen.model_construct(numbers=found)) for found in ({0, 8}, other)]
    assert dumped == [{"numbers": [0, 8]}] * 2


def test_strict_models_and_bytes_survive_the_way() -> None:
    """What is read is what was written."""

    class Strict(BaseModel):
        model_config = ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64")

        data: bytes
        pair: tuple[int, str]

    schema = Schema("Strict", 1, Strict)
    state = Strict(data=b"\xff\x00", pair=(1, "a"))
    kept = StoredState(kind="Strict", version=1, state=schema.dump("ada", state))
    assert schema.revive("ada", kept) == state


def test_an_entry_that_is_no_state_is_corrupt() -> None:
    """Named by its key."""
    with pytest.raises(Corrupt, match="~state"):
        stored_in(Entry("private/ada/~state", {"version": 0}, 1, 1, "ada", 0))


# --- agents ---------------------------------------------------------------------------------------


class Clerk(Agent[Notes]):
    """With its history."""

    schema_version = 3
    migrations = {1: to_2, 2: to_3}  # noqa: RUF012
    package = "clerks 3.0"

    async def step(self, ctx: Context[Notes]) -> None:
        """Nothing."""


def test_an_agent_knows_its_schema_and_declares_it() -> None:
    """By default its kind is its class, and its name that in lower case."""
    clerk = Clerk()
    assert (clerk.name, clerk.schema.version, clerk.schema.model) == ("clerk", 3, Notes)
    assert clerk.declared() == {
        "kind": "Clerk",
        "schema_version": 3,
        "package": "clerks 3.0",
        "parameters": {},
    }


def test_a_subclass_has_a_kind_of_its_own() -> None:
    """And the model that it inherits."""

    class Senior(Clerk):
        pass

    class Renamed(Clerk):
        kind = "Clerk"

    assert (Senior("bob").schema.kind, Senior("bob").schema.model) == ("Senior", Notes)
    assert Renamed("bob").schema.kind == "Clerk"


def test_a_gap_in_the_migrations_is_found_at_once() -> None:
    """When the class is made, not when an old state turns up."""
    with pytest.raises(TypeError, match=r"not 1\.\.2"):

        class Hasty(Clerk):
            migrations = {1: to_2}  # noqa: RUF012
