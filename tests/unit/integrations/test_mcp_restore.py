"""A restore through MCP: nobody takes the board back without being asked, or without a preview."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp_types import (
    CallToolRequestParams,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
)

import blackboard
from blackboard import Board
from blackboard.integrations.mcp import arguments, restores
from blackboard.integrations.mcp.answers import ToolFailure
from blackboard.integrations.mcp.session import CONFIRM_MS
from tests.unit.integrations.mcp_clients import MODERN, OLD, Caller, Elicit, caller

ERAS = pytest.mark.parametrize("mode", [MODERN, OLD])


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Board]:
    """The operator's board: x was 1 at checkpoint `one`, and is 2."""
    async with blackboard.open(tmp_path, level="memory") as client:
        board = client.board("team")
        await board.put("public/x", 1)
        await board.checkpoint("one")
        await board.put("public/x", 2)
        yield board


def says(action: Any, asked: list[str], **content: Any) -> Elicit:
    """A user who answers like that; `asked` gets the questions."""

    async def answer(context: Any, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        assert params.requested_schema["required"] == ["restore"]
        asked.append(params.message)
        return ElicitResult(action=action, content=content or None)

    return answer


@ERAS
async def test_a_user_who_agrees_gets_the_board_back(team: Board, mode: str) -> None:
    asked: list[str] = []
    async with caller(team, mode, says("accept", asked, restore=True)) as boss:
        done = await boss("restore", to="one", note="a slip")
    assert (done["done"], done["put_back"], done["removed"]) == (True, 1, 0)
    assert await team.get("public/x") == 1
    (question,) = asked
    assert "back to one" in question
    assert "1 keys change" in question
    assert await team.get("public/x", at=done["undo"]) == 2
    assert [one.note for one in await team.log() if one.epoch][-1] == "a slip"


@ERAS
@pytest.mark.parametrize(
    ("action", "content"),
    [("decline", {}), ("cancel", {}), ("accept", {"restore": False}), ("accept", {})],
)
async def test_a_user_who_does_not_agree_keeps_the_board(
    team: Board, mode: str, action: str, content: Any
) -> None:
    asked: list[str] = []
    async with caller(team, mode, says(action, asked, **content)) as boss:
        error = await boss.fails("restore", to="one")
        assert error["code"] == "declined"
    assert len(asked) == 1
    assert await team.get("public/x") == 2


@ERAS
async def test_a_model_cannot_agree_in_the_place_of_its_user(team: Board, mode: str) -> None:
    """A confirmation from elsewhere is worth nothing where the user can be asked."""
    async with caller(team, mode) as plain:
        token = (await plain("restore", to="one"))["confirm"]
    asked: list[str] = []
    async with caller(team, mode, says("decline", asked)) as boss:
        assert (await boss.fails("restore", to="one", confirm=token))["code"] == "declined"
    assert len(asked) == 1
    assert await team.get("public/x") == 2


@ERAS
async def test_a_user_agrees_to_what_was_seen_of_the_board(team: Board, mode: str) -> None:
    """Not to a second restore, over what was done since somebody else restored it."""

    async def agree_late(context: Any, params: ElicitRequestParams) -> ElicitResult:
        await team.restore("one")
        await team.put("public/x", 3)
        return ElicitResult(action="accept", content={"restore": True})

    async with caller(team, mode, agree_late) as boss:
        error = await boss.fails("restore", to="one")
    assert error["code"] == "not_confirmed"
    assert await team.get("public/x") == 3


@ERAS
async def test_a_client_that_cannot_ask_gets_a_preview_first(team: Board, mode: str) -> None:
    async with caller(team, mode) as boss:
        preview = await boss("restore", to="one")
        assert preview["done"] is False
        (change,) = preview["changes"]
        assert (change["key"], change["difference"].strip()) == ("public/x", "2 -> 1")
        assert await team.get("public/x") == 2
        done = await boss("restore", to="one", confirm=preview["confirm"])
        assert done["done"] is True
    assert await team.get("public/x") == 1


async def test_a_confirmation_is_of_one_restore_of_one_agent(
    team: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with caller(team) as boss:
        token = (await boss("restore", to="one"))["confirm"]
        sealed, until, mac = token.split(".")
        later = f"{sealed}.{int(until) + 1}.{mac}"
        huge = f"{sealed}.{'9' * 5_000}.{mac}"
        odd = (("one", later), ("one", "x"), ("one", "1.²." + mac), ("one", huge), (1, token))
        for to, confirm in odd:
            error = await boss.fails("restore", to=to, confirm=confirm)
            assert error["code"] == "not_confirmed", (to, confirm)
        await team.put("public/x", 3)  # what happens meanwhile is taken back as well
        later_s = time.time() + CONFIRM_MS / 1000 + 1
        monkeypatch.setattr(time, "time", lambda: later_s)
        assert (await boss.fails("restore", to="one", confirm=token))["code"] == "not_confirmed"
        monkeypatch.undo()
        other = Caller(boss.client)
        assert (await other("restore", to="one", confirm=token))["done"] is True
        # It was confirmed once.
        await team.refresh()
        await team.put("public/x", 4)
        error = await boss.fails("restore", to="one", confirm=token)
        assert error["code"] == "not_confirmed"
        assert await team.get("public/x") == 4


async def test_a_token_of_another_agent_does_not_confirm(team: Board) -> None:
    async with caller(team) as boss, caller(team.as_agent("ann")) as ann:
        token = (await boss("restore", to="one"))["confirm"]
        error = await ann.fails("restore", to="one", confirm=token)
        assert error["code"] == "not_confirmed"


async def test_a_state_that_the_server_did_not_give_is_no_answer(team: Board) -> None:
    """A client that makes up the second half of the exchange."""
    async with caller(team) as boss:
        assert boss.session is not None
        yes = {"restore": ElicitResult(action="accept", content={"restore": True})}
        params = CallToolRequestParams(
            name="restore", arguments={"to": "one"}, input_responses=yes, request_state="made up"
        )
        args = arguments.RestoreArguments(to="one")
        with pytest.raises(ToolFailure, match="not of this restore"):
            await restores.restore(boss.session, args, None, params)  # type: ignore[arg-type]
    assert await team.get("public/x") == 2


async def test_a_restore_needs_the_right_and_a_moment(team: Board) -> None:
    asked: list[str] = []
    async with caller(team.as_agent("ann"), MODERN, says("accept", asked, restore=True)) as ann:
        assert (await ann.fails("restore", to="one"))["code"] == "access_denied"
        assert (await ann.fails("restore", to="two"))["code"] == "no_such_checkpoint"
        assert (await ann.fails("restore", to=999))["code"] == "future_revision"
    assert await team.get("public/x") == 2
