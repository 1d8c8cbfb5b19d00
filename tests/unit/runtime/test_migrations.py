"""Every stored state of a board, tried on new code."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

import blackboard
from blackboard.client.board import Board
from blackboard.errors import InvalidRequest
from blackboard.limits import VALUE_BYTES_MAX
from blackboard.runtime.agent import Agent
from blackboard.runtime.board_port import LiveBoardPort
from blackboard.runtime.context import Context
from blackboard.runtime.migrations import MigrationFinding, kinds_in, migrate
from blackboard.runtime.runner import Runner
from blackboard.runtime.state import Migration, state_key
from tests.unit.server.hooked import client_of, service_over


class Old(BaseModel):
    """Version 1."""

    amount: str = "7"


class New(BaseModel):
    """Version 2."""

    amount: int


class OldClerk(Agent[Old]):
    """Before the deploy."""

    kind = "Clerk"

    async def step(self, ctx: Context[Old]) -> None:
        """Keep what it receives."""
        ctx.state.amount = await ctx.get("public/amount", "7")


class NewClerk(Agent[New]):
    """After it."""

    kind = "Clerk"
    schema_version = 2
    migrations = {1: lambda old: {"amount": int(old["amount"])}}  # noqa: RUF012

    async def step(self, ctx: Context[New]) -> None:
        """Count up."""
        ctx.state.amount += 1


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """An operator's board with two clerks, one of whom holds what is no number."""
    async with blackboard.open(tmp_path) as client:
        found = client.board("shop")
        for name, amount in (("ada", "7"), ("bob", "seven")):
            await found.put("public/amount", amount)
            await Runner(OldClerk(name), LiveBoardPort(found.as_agent(name))).step()
        yield found


def module(**names: Any) -> ModuleType:
    """A module with those names."""
    made = ModuleType("clerks")
    vars(made).update(names)
    return made


async def test_a_check_tells_what_would_become_of_each_state(board: Board) -> None:
    """And writes nothing."""
    head = await board.head()
    good, bad = await migrate(board, kinds_in(module(Clerk=NewClerk)), write=False)
    assert good == MigrationFinding("ada", "Clerk", 1, 2, "migrates")
    assert (bad.agent, bad.verdict, bad.good) == ("bob", "fails", False)
    assert "seven" in bad.reason
    assert (await board.head()).revision == head.revision
    unknown = await migrate(board, {}, write=False)
    assert [(one.verdict, one.good) for one in unknown] == [("unknown", True)] * 2
    current = await migrate(board, kinds_in(module(Clerk=OldClerk)), write=False)
    assert [one.verdict for one in current] == ["current", "current"]


async def test_what_can_be_migrated_is_written_as_its_agent(board: Board) -> None:
    """What fails is left as it is."""
    before = await board.entry(state_key("bob"))
    good, _ = await migrate(board, kinds_in(module(Clerk=NewClerk)), write=True)
    assert good.verdict == "migrated"
    entry = await board.entry(state_key("ada"))
    assert entry is not None
    assert (entry.author, entry.value["version"], entry.value["state"]) == ("ada", 2, {"amount": 7})
    assert entry.value["step"] == 1
    assert await board.entry(state_key("bob")) == before


class Large(New):
    """It has room for anything."""

    more: str = ""


def _too_large(_: dict[str, Any]) -> dict[str, Any]:
    return {"amount": 7, "more": "x" * VALUE_BYTES_MAX}


def _no_plain_data(_: dict[str, Any]) -> dict[str, Any]:
    return {"amount": object()}


def _nothing_wrong(_: dict[str, Any]) -> dict[str, Any]:
    return {"amount": 7}


@pytest.mark.parametrize("migration", [_too_large, _no_plain_data, _nothing_wrong])
async def test_a_state_that_cannot_be_written_stops_no_other(
    board: Board, migration: Migration
) -> None:
    """It is reported, also by a check that writes nothing; the others are migrated."""

    class Clerk(Agent[Large]):
        schema_version = 2
        migrations = {1: migration}  # noqa: RUF012

        async def step(self, ctx: Context[Large]) -> None:
            """Nothing."""

        def check(self, state: Large) -> None:
            """Finds fault, but not in the way that it should."""
            if not state.more:
                raise KeyError(state.amount)

    class OldCashier(OldClerk):
        kind = "Cashier"

    class Cashier(NewClerk):
        kind = "Cashier"

    await board.put("public/amount", "8")
    await Runner(OldCashier("carl"), LiveBoardPort(board.as_agent("carl"))).step()
    kinds = kinds_in(module(Clerk=Clerk, Cashier=Cashier))
    for write, verdict in (False, "migrates"), (True, "migrated"):
        found = await migrate(board, kinds, write=write)
        assert [one.verdict for one in found] == ["fails", "fails", verdict]
    entry = await board.entry(state_key("ada"))
    assert entry is not None
    assert entry.value["version"] == 1


class Needy(NewClerk):
    """Cannot be made of a name alone."""

    def __init__(self, name: str, need: str) -> None:
        super().__init__(name)
        self.need = need


async def test_a_class_that_cannot_make_its_agent_stops_no_other(board: Board) -> None:
    """It is reported, with its error."""
    await board.as_agent("eve").put(
        state_key("eve"), {"kind": "Other", "version": 1, "state": {"amount": "9"}}
    )

    class Other(NewClerk):
        kind = "Other"

    ada, bob, eve = await migrate(board, {"Clerk": Needy, "Other": Other}, write=True)
    assert (ada.verdict, bob.verdict, eve.verdict) == ("fails", "fails", "migrated")
    assert "'need'" in ada.reason


async def test_an_agent_migrates_its_state_with_its_next_step(board: Board) -> None:
    """Until then the old one stands."""
    runner = Runner(NewClerk("ada"), LiveBoardPort(board.as_agent("ada")))
    state, stored = await runner.hydrate()
    assert (state.amount, stored.version) == (7, 1)
    await runner.step()
    entry = await board.entry(state_key("ada"))
    assert entry is not None
    assert (entry.value["version"], entry.value["state"]) == (2, {"amount": 8})


def test_the_agents_of_a_module_are_found_by_kind() -> None:
    """Two of one kind are a mistake, and so is a module without any."""
    assert kinds_in(module(Clerk=NewClerk, Base=Agent, x=1)) == {"Clerk": NewClerk}
    with pytest.raises(InvalidRequest, match="two classes"):
        kinds_in(module(Clerk=NewClerk, Old=OldClerk))
    with pytest.raises(InvalidRequest, match="no class"):
        kinds_in(module())


async def test_a_step_that_was_taken_meanwhile_stands(tmp_path: Path) -> None:
    """Its agent is reported as busy: the migration is run again."""
    async with service_over(tmp_path) as (service, store):
        ada = client_of(service, "ada").board("shop")
        runner = Runner(OldClerk("ada"), LiveBoardPort(ada))
        await runner.step()
        await ada.put("public/amount", "8")

        async def step() -> None:
            store.hooks.clear()
            await runner.step()

        store.hook("after list", step)
        board = client_of(service).board("shop")
        [found] = await migrate(board, kinds_in(module(Clerk=NewClerk)), write=True)
        assert (found.verdict, found.good) == ("busy", False)
        entry = await board.entry(state_key("ada"))
        assert entry is not None
        assert (entry.value["version"], entry.value["state"]) == (1, {"amount": "8"})
        [found] = await migrate(board, kinds_in(module(Clerk=NewClerk)), write=True)
        assert found.verdict == "migrated"
