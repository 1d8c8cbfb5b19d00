"""The tools of the MCP server, called by the SDK's own client on a real board."""

import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from mcp import MCPError

import blackboard
from blackboard import Board
from blackboard.integrations.mcp import answers, arguments
from blackboard.integrations.mcp.arguments import WAIT_S_MAX
from blackboard.integrations.mcp.server import declared_tools
from blackboard.integrations.mcp.session import CALLS_MAX
from blackboard.integrations.mcp.tools import KEYS_LOOKED_AT_MAX
from blackboard.limits import VALUE_BYTES_MAX
from tests.source_tree import ROOT
from tests.unit.integrations.mcp_clients import MODERN, OLD, Caller, caller
from tests.waiting import TIMEOUT_S, wait_until


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Board]:
    """The operator's board."""
    async with blackboard.open(tmp_path, level="memory") as client:
        yield client.board("team")


@pytest.fixture(params=[MODERN, OLD])
async def ann(request: pytest.FixtureRequest, team: Board) -> AsyncIterator[Caller]:
    """An agent, with a client of each era of the protocol."""
    async with caller(team.as_agent("ann"), request.param) as called:
        yield called


@pytest.fixture
async def bob(team: Board) -> AsyncIterator[Caller]:
    """Another agent."""
    async with caller(team.as_agent("bob")) as called:
        yield called


# --- what a model is given ------------------------------------------------------------------------


def test_tools_are_described_in_few_words() -> None:
    """A model reads all of it in each conversation: about 2,500 tokens."""
    declared = declared_tools()
    names = [one.name for one in declared]
    assert len(set(names)) == len(names) == 18
    read = [[one.name, one.description, one.input_schema] for one in declared]
    assert len(json.dumps(read)) < 12_000
    for one in declared:
        assert one.description
        assert len(one.description) < 400, one.name
        assert one.input_schema["additionalProperties"] is False
        assert "$defs" not in one.input_schema
        assert one.output_schema
        Draft202012Validator.check_schema(one.output_schema)
        assert "required" not in one.output_schema  # so that an error fits, too


def test_the_page_shows_every_tool_with_its_arguments() -> None:
    """docs/howto/mcp.md, in the order in which a model reads them."""
    page = (ROOT / "docs" / "howto" / "mcp.md").read_text(encoding="utf-8")
    table = page.partition("| tool | arguments | use |")[2].partition("\n\n")[0]
    rows = [row.split(" | ") for row in table.splitlines()[2:]]
    written = [[re.findall(r"`(\w+)`", cell) for cell in row[:2]] for row in rows]
    real = [[[one.name], list(one.input_schema["properties"])] for one in declared_tools()]
    assert written == real


async def test_the_server_says_what_it_is_for(ann: Caller) -> None:
    """In the instructions, which a client shows to its model."""
    assert ann.client.instructions
    assert "expected_revision" in ann.client.instructions
    assert ann.client.server_info is not None
    assert ann.client.server_info.version == blackboard.__version__


# --- reading and writing --------------------------------------------------------------------------


async def test_what_is_written_is_read(ann: Caller, bob: Caller) -> None:
    written = await ann("write", key="public/plan", value={"usd": 1}, note="a first guess")
    read = await bob("read", keys=["public/plan", "public/none"])
    (entry,) = read["entries"]
    assert entry["value"] == {"usd": 1}
    assert (entry["author"], entry["revision"]) == ("ann", written["revision"])
    assert read["absent"] == ["public/none"]


async def test_one_key_need_not_be_in_a_list(ann: Caller) -> None:
    """Models forget the brackets."""
    assert (await ann("read", keys="public/plan"))["absent"] == ["public/plan"]


async def test_a_conflict_says_all_that_is_needed_to_plan_again(ann: Caller, bob: Caller) -> None:
    first = await ann("write", key="public/plan", value={"usd": 1}, expected_revision=0)
    error = await bob.fails("write", key="public/plan", value=2, expected_revision=0)
    assert error["code"] == "conflict"
    assert error["key"] == "public/plan"
    assert error["expected_revision"] == 0
    assert error["current_revision"] == first["revision"]
    assert error["by"] == "ann"
    assert error["current"] == {"usd": 1}
    again = error["current_revision"]
    assert f"expected_revision={again}" in error["fix"]
    assert await bob("write", key="public/plan", value=2, expected_revision=again)


async def test_a_conflict_with_a_long_value_sends_to_read(ann: Caller, bob: Caller) -> None:
    await ann("write", key="public/plan", value="x" * 20_000)
    error = await bob.fails("write", key="public/plan", value=2, expected_revision=0)
    assert "current" not in error
    assert "Read public/plan" in error["fix"]


@pytest.mark.parametrize("value", ["x" * 2_040, {"text": "x" * 2_030}, ["\x01" * 2_040]])
async def test_a_conflict_shows_a_small_value_whole(ann: Caller, bob: Caller, value: Any) -> None:
    """All that the board sends with it: a model decides again from that."""
    await ann("write", key="public/plan", value=value)
    error = await bob.fails("write", key="public/plan", value=2, expected_revision=0)
    assert error["current"] == value


async def test_a_conflict_with_a_removed_key_says_that_it_is_gone(ann: Caller) -> None:
    written = await ann("write", key="public/plan", value=1)
    assert (await ann("delete", key="public/plan"))["removed"] is True
    error = await ann.fails(
        "write", key="public/plan", value=2, expected_revision=written["revision"]
    )
    assert error["current_revision"] == 0
    assert "expected_revision=0" in error["fix"]
    assert (await ann("delete", key="public/plan"))["removed"] is False


async def test_a_write_is_refused_if_what_it_is_based_on_changed(ann: Caller, bob: Caller) -> None:
    await ann("write", key="public/price", value=1)
    await bob("read", keys=["public/price"])
    await ann("write", key="public/price", value=2)
    error = await bob.fails("write", key="public/order", value="buy", based_on=["public/price"])
    assert (error["code"], error["key"], error["current"]) == ("conflict", "public/price", 2)
    await bob("read", keys=["public/price"])
    await bob("write", key="public/order", value="wait", based_on=["public/price"])
    causes = (await bob("why", key="public/order"))["causes"]
    assert [(one["key"], one["author"]) for one in causes] == [
        ("public/order", "bob"),
        ("public/price", "ann"),
    ]


async def test_what_is_based_on_an_absent_key_is_refused_once_it_is_there(
    ann: Caller, bob: Caller
) -> None:
    await bob("read", keys=["public/veto"])
    await ann("write", key="public/veto", value=True)
    error = await bob.fails("write", key="public/order", value="buy", based_on=["public/veto"])
    assert (error["code"], error["expected_revision"]) == ("conflict", 0)


async def test_what_was_not_read_cannot_be_relied_on(ann: Caller) -> None:
    error = await ann.fails("write", key="public/order", value=1, based_on=["public/price"])
    assert error["code"] == "not_read"
    assert "public/price" in error["fix"]


async def test_own_writes_count_as_read(ann: Caller) -> None:
    await ann("write", key="public/price", value=1)
    await ann("write", key="public/order", value=1, based_on=["public/price"])
    await ann("write", key="public/order", value=2, based_on=["public/order"])


async def test_bytes_are_read_and_written_as_in_the_protocol(ann: Caller, team: Board) -> None:
    raw = {"$bytes": base64.b64encode(b"\x00\xff").decode()}
    await ann("write", key="public/blob", value={"part": [raw]})
    assert await team.get("public/blob") == {"part": [b"\x00\xff"]}
    assert (await ann("read", keys="public/blob"))["entries"][0]["value"] == {"part": [raw]}
    error = await ann.fails("write", key="public/blob", value={"$bytes": "no!"})
    assert error["code"] == "invalid_request"


async def test_a_long_value_is_read_on_to_its_end(ann: Caller, team: Board) -> None:
    text = "".join(f"line {number}\n" for number in range(10_000))
    await team.put("public/log", text)
    shown, offset = "", 0
    while True:
        (entry,) = (await ann("read", keys="public/log", offset=offset))["entries"]
        assert entry["characters"] == len(text)
        assert len(entry["text"]) <= answers.ANSWER_CHARACTERS
        shown += entry["text"]
        if "next_offset" not in entry:
            break
        offset = entry["next_offset"]
    assert shown == text
    error = await ann.fails("read", keys=["public/log", "public/plan"], offset=1)
    assert "one key" in error["fix"]


async def test_many_long_values_fit_into_one_answer(ann: Caller, team: Board) -> None:
    keys = [f"public/log/{number:02}" for number in range(arguments.KEYS_MAX)]
    for key in keys:
        await team.put(key, "x" * 20_000)
    result = await ann.result("read", keys=keys)
    found: Any = result.structured_content
    assert len(json.dumps(found)) < 2 * answers.ANSWER_CHARACTERS
    shown = [entry["key"] for entry in found["entries"]]
    assert [*shown, *found["not_shown"]] == keys
    assert (await ann.fails("read", keys=[*keys, "public/plan"]))["code"] == "invalid_arguments"


async def test_an_earlier_moment_is_read(ann: Caller, team: Board) -> None:
    first = await ann("write", key="public/plan", value=1)
    await team.checkpoint("one")
    await ann("write", key="public/plan", value=2)
    for at in (first["revision"], str(first["revision"]), "one"):
        (entry,) = (await ann("read", keys="public/plan", at=at))["entries"]
        assert entry["value"] == 1
    for at, code in (
        ("two", "no_such_checkpoint"),
        (999, "future_revision"),
        ("2026-13:00", "invalid_request"),
    ):
        assert (await ann.fails("read", keys="public/plan", at=at))["code"] == code


async def test_the_board_is_seen_by_directories(ann: Caller, bob: Caller) -> None:
    for key in ("public/plan", "public/files/a/1", "public/files/a/2", "private/ann/x"):
        await ann("write", key=key, value=1)
    root = await ann("list")
    assert (root["you"], root["board"]) == ("ann", "team")
    assert root["directories"] == {"private": 1, "public": 3}
    assert (await bob("list"))["directories"] == {"public": 3}
    public = await ann("list", directory="public/", values=True)
    assert public["directories"] == {"files": 2}
    assert [(one["key"], one["value"]) for one in public["entries"]] == [("public/plan", 1)]
    below = await ann("list", directory="public", recursive=True)
    assert len(below["entries"]) == 3
    assert "value" not in below["entries"][0]


@pytest.mark.parametrize("directory", ["public/*", "*", "public/**", "public/pl*"])
async def test_a_pattern_is_no_directory(ann: Caller, directory: str) -> None:
    """The names below it would be cut at the wrong place."""
    await ann("write", key="public/plan/a", value=1)
    error = await ann.fails("list", directory=directory)
    assert (error["code"], error["retryable"]) == ("invalid_arguments", False)
    assert "recursive" in error["fix"]


async def test_a_long_list_is_continued_without_a_gap(ann: Caller, team: Board) -> None:
    for number in range(answers.ANSWER_ITEMS + 50):
        await team.put(f"public/n/{number:04}", number)
    found: list[str] = []
    after = None
    while True:
        page = await ann("list", directory="public/n", after=after)
        assert len(page["entries"]) <= answers.ANSWER_ITEMS
        found += [one["key"] for one in page["entries"]]
        after = page.get("next")
        if after is None:
            break
    assert found == [f"public/n/{number:04}" for number in range(answers.ANSWER_ITEMS + 50)]


async def test_a_list_counts_a_bounded_number_of_keys(ann: Caller, team: Board) -> None:
    for part in range(5):
        async with team.step() as step:
            for number in range(1_000):
                step.put(f"public/n/{part}{number:03}", number)
    page = await ann("list", directory="public")
    counted = page["directories"]["n"]
    assert counted == KEYS_LOOKED_AT_MAX
    rest = await ann("list", directory="public", after=page["next"])
    assert rest["directories"] == {"n": 5_000 - counted}
    assert "next" not in rest


async def test_an_announcement_never_conflicts(ann: Caller, bob: Caller) -> None:
    first = await ann("append", directory="public/news", value="begun")
    second = await bob("append", directory="public/news/", value="done")
    assert first["key"] < second["key"]
    await ann("write", key="public/x", value=1, based_on=[first["key"]])
    await bob("append", directory="inbox/ann/messages", value="look at the news")
    (message,) = (await ann("list", directory="inbox/ann/messages", values=True))["entries"]
    assert (message["author"], message["value"]) == ("bob", "look at the news")


async def test_an_entry_ends_with_its_time_to_live(ann: Caller) -> None:
    written = await ann("write", key="public/mood", value="well", ttl_s=0.2)
    gone = await ann("wait", patterns="public/mood", after=written["revision"], seconds=WAIT_S_MAX)
    assert [one["kind"] for one in gone["changes"]] == ["delete"]


async def test_what_belongs_to_another_agent_stays_hidden(ann: Caller, bob: Caller) -> None:
    await ann("write", key="private/ann/notes", value="secret")
    error = await bob.fails("read", keys=["private/ann/notes"])
    assert (error["code"], error["retryable"]) == ("access_denied", False)
    assert "secret" not in str(error)
    assert (await bob("list", directory="private"))["directories"] == {}
    assert (await bob.fails("write", key="private/ann/notes", value=1))["code"] == "access_denied"


# --- the past -------------------------------------------------------------------------------------


async def test_the_versions_of_a_key_are_paged(ann: Caller) -> None:
    for number in range(5):
        await ann("write", key="public/plan", value=number, note=f"number {number}")
    await ann("delete", key="public/plan")
    found: list[Any] = []
    before = None
    while True:
        page = await ann("history", key="public/plan", limit=2, before=before)
        found += page["versions"]
        before = page.get("next")
        if before is None:
            break
    assert [one["kind"] for one in found] == ["delete", *["put"] * 5]
    assert [one["value"] for one in found[1:]] == [4, 3, 2, 1, 0]


async def test_a_diff_shows_what_was_done_since(ann: Caller, team: Board) -> None:
    await ann("write", key="public/plan", value={"usd": 1, "text": "a"})
    await team.checkpoint("one")
    await ann("write", key="public/plan", value={"usd": 2, "text": "a"})
    await ann("write", key="public/long", value="x" * 9_000)
    found = await ann("diff", since="one")
    by_key = {one["key"]: one for one in found["changes"]}
    assert by_key["public/plan"]["kind"] == "changed"
    assert "usd: 1 -> 2" in by_key["public/plan"]["difference"]
    assert by_key["public/long"]["kind"] == "added"
    assert len(by_key["public/long"]["difference"]) < 3_000
    assert found["more"] is False


async def test_checkpoints_are_taken_with_the_right_and_listed_newest_first(
    ann: Caller, team: Board
) -> None:
    error = await ann.fails("checkpoint", name="one")
    assert error["code"] == "access_denied"
    async with caller(team) as boss:
        await boss("checkpoint", name="one", note="before")
        await boss("checkpoint", name="two")
        taken = await boss.fails("checkpoint", name="one")
        assert taken["fix"] == "Give another name."
    found = (await ann("checkpoints"))["checkpoints"]
    assert [one["name"] for one in found] == ["two", "one"]
    assert (found[1]["note"], found[1]["by"]) == ("before", "operator")
    assert (await ann("checkpoints", limit=1))["more"] is True


# --- waiting --------------------------------------------------------------------------------------


async def test_a_wait_ends_with_the_change(ann: Caller, bob: Caller) -> None:
    async with anyio.create_task_group() as tasks:
        found: list[Any] = []

        async def wait() -> None:
            found.append(await ann("wait", patterns=["public/plan"], after=0, seconds=WAIT_S_MAX))

        tasks.start_soon(wait)
        await bob("write", key="public/other", value=1)
        await bob("write", key="public/plan", value=7, note="seven")
    (answer,) = found
    (change,) = answer["changes"]
    assert (change["key"], change["value"]) == ("public/plan", 7)
    assert (change["author"], change["note"]) == ("bob", "seven")
    assert answer["timed_out"] is False


async def test_waits_one_after_the_other_miss_nothing(ann: Caller, team: Board) -> None:
    answer = await ann("wait", patterns="public/**", seconds=0)
    assert (answer["timed_out"], answer["changes"]) == (True, [])
    seen: list[int] = []
    for number in range(20):
        await team.put("public/n", number)
        if number % 3 == 0:
            answer = await ann("wait", patterns="public/**", after=answer["next"])
            seen += [change["value"] for change in answer["changes"]]
    while len(seen) < 20:
        answer = await ann("wait", patterns="public/**", after=answer["next"])
        seen += [change["value"] for change in answer["changes"]]
    assert seen == list(range(20))


async def test_a_wait_shows_a_bounded_part_of_a_large_change(ann: Caller, team: Board) -> None:
    async with team.step() as step:
        for number in range(answers.ANSWER_ITEMS + 5):
            step.put(f"public/n/{number}", "x" * 5_000)
    answer = await ann("wait", patterns="public/**", after=0)
    assert answer["not_shown"] >= 5
    assert len(answer["changes"]) + answer["not_shown"] == answers.ANSWER_ITEMS + 5
    assert answer["changes"][0]["next_offset"] == answers.PREVIEW_CHARACTERS
    assert (await ann("wait", patterns="public/**", after=answer["next"], seconds=0))["timed_out"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"patterns": ["public/**"], "after": 999}, "future_revision"),
        ({"patterns": ["public/**"], "after": "nonsense"}, "invalid_request"),
        ({"patterns": ["no pattern"]}, "invalid_request"),
        ({"patterns": []}, "invalid_arguments"),
        ({"patterns": ["public/**"], "seconds": WAIT_S_MAX + 1}, "invalid_arguments"),
        ({"patterns": ["public/x"] * (arguments.KEYS_MAX + 1)}, "invalid_arguments"),
    ],
)
async def test_a_wait_that_cannot_be_is_refused(ann: Caller, given: Any, code: str) -> None:
    assert (await ann.fails("wait", **given))["code"] == code


async def test_a_cancelled_wait_leaves_nothing_behind(ann: Caller, team: Board) -> None:
    """No watch, and no call that counts."""
    assert ann.session is not None
    session = ann.session
    with anyio.move_on_after(0.2) as scope:
        await ann("wait", patterns="public/**", seconds=WAIT_S_MAX)
    assert scope.cancelled_caught

    async def is_over() -> bool:
        return session._calls == 0

    await wait_until(is_over)
    await team.put("public/x", 1)
    assert (await ann("read", keys="public/x"))["entries"]


async def test_too_many_calls_at_once_are_refused(ann: Caller, team: Board) -> None:
    """And the others go on."""
    ended: list[Any] = []

    async def wait() -> None:
        ended.append(await ann("wait", patterns="public/go", after=0, seconds=WAIT_S_MAX))

    session = ann.session
    assert session is not None
    async with anyio.create_task_group() as tasks:
        for _ in range(CALLS_MAX):
            tasks.start_soon(wait)

        async def is_full() -> bool:
            return session._calls == CALLS_MAX

        await wait_until(is_full)
        assert (await ann.fails("list"))["code"] == "too_many_calls"
        with anyio.fail_after(TIMEOUT_S):
            await team.put("public/go", 1)
    assert [one["timed_out"] for one in ended] == [False] * CALLS_MAX


# --- people ---------------------------------------------------------------------------------------


async def test_a_person_approves_what_was_asked(ann: Caller, team: Board) -> None:
    await team.put("public/price", 1500)
    question = {"question": "Buy it?", "facts": ["public/price"], "details": {"n": 1}}
    asked = await ann("ask", **question)
    assert asked["state"] == "pending"
    async with caller(team) as boss:
        (request,) = (await boss("approvals"))["approvals"]
        assert request["facts"] == {"public/price": 1500}
        assert (request["question"], request["details"]) == ("Buy it?", {"n": 1})
        one = {"agent": "ann", "id": request["id"], "revision": request["revision"]}
        await boss("answer", **one, approved=True, reason="cheap")
        # Somebody else who read the request before does not replace that.
        late = await boss.fails("answer", **one, approved=False)
        assert late["code"] == "answered"
        assert "was approved already" in late["message"]
    waited = await ann("wait", patterns=asked["wait_for"], after=asked["revision"])
    assert waited["changes"]
    answered = await ann("ask", **question, id=asked["id"])
    assert (answered["state"], answered["by"]) == ("approved", "operator")
    assert answered["reason"] == "cheap"
    # Once what it rests on has changed, the answer does not count any more.
    await team.put("public/price", 2000)
    again = await ann("ask", **question, id=asked["id"])
    assert again["state"] == "pending"
    assert again["facts"] == {"public/price": 2000}
    async with caller(team) as boss:
        stale = await boss.fails("answer", **one, approved=True)
        assert stale["code"] == "not_found"
        assert str(again["revision"]) in stale["fix"]


async def test_another_question_is_not_answered_by_an_old_answer(ann: Caller, team: Board) -> None:
    asked = await ann("ask", question="Buy one?")
    async with caller(team) as boss:
        await boss("answer", agent="ann", id=asked["id"], revision=asked["revision"], approved=True)
    other = await ann("ask", question="Buy a thousand?", id=asked["id"])
    assert other["state"] == "pending"


async def test_no_agent_answers_itself(ann: Caller) -> None:
    asked = await ann("ask", question="May I?")
    one = {"agent": "ann", "id": asked["id"], "revision": asked["revision"]}
    refused = await ann.fails("answer", **one, approved=True)
    assert refused["code"] == "invalid_request"
    assert "it was asked on your own account" in refused["message"]
    assert (await ann("ask", question="May I?", id=asked["id"]))["state"] == "pending"


# --- bad input ------------------------------------------------------------------------------------


async def test_a_mistyped_argument_is_named_with_the_right_one(ann: Caller) -> None:
    error = await ann.fails("write", key="public/x", value=1, expected_revison=3)
    assert "there is no argument expected_revison" in error["message"]
    assert "Use expected_revision." in error["fix"]
    error = await ann.fails("write", value=1)
    assert "key is missing" in error["message"]
    assert "Arguments are: key, value" in error["fix"]


async def test_an_unknown_tool_is_an_error_of_the_protocol(ann: Caller) -> None:
    with pytest.raises(MCPError, match=r"there is no tool 'reed'\. Did you mean read"):
        await ann.client.call_tool("reed", {})


async def test_a_value_that_is_too_large_is_refused_whole(ann: Caller) -> None:
    error = await ann.fails("write", key="public/x", value="x" * (VALUE_BYTES_MAX + 1))
    assert (error["limit"], error["maximum"]) == ("VALUE_BYTES_MAX", VALUE_BYTES_MAX)
    assert "parts" in error["fix"]
    assert (await ann("read", keys="public/x"))["absent"]
    deep: Any = 0
    for _ in range(200):
        deep = [deep]
    assert (await ann.fails("write", key="public/x", value=deep))["code"] == "limit_exceeded"


ODD: list[Any] = [None, True, -1, 2**70, 1.5, 1e308, "", "/", "~", "a b", [], [1], {}, [[]]]
ODD += ["x" * 5_000, "9" * 5_000, "*", "public/*"]


@pytest.mark.parametrize("tool", [one.name for one in declared_tools()])
async def test_odd_arguments_are_refused_in_words(team: Board, tool: str) -> None:
    """Whatever a model sends: an answer or an error that says what to do, and the board goes on."""
    async with caller(team.as_agent("ann")) as ann:
        (declared,) = [one for one in declared_tools() if one.name == tool]
        names = list(declared.input_schema["properties"])
        good = {
            "keys": ["public/x"],
            "key": "public/x",
            "value": 1,
            "directory": "public/d",
            "patterns": ["public/x"],
            "name": "one",
            "since": 0,
            "to": 1,
            "question": "?",
            "agent": "bob",
            "id": "1",
            "revision": 1,
            "approved": True,
        }
        usual = {name: good[name] for name in names if name in good}
        if tool == "wait":
            usual["seconds"] = 0
        for name in names:
            for odd in ODD:
                result = await ann.result(tool, **{**usual, name: odd})
                if result.is_error:
                    assert result.structured_content is not None
                    error = result.structured_content["error"]
                    assert error["code"] != "internal_error", (name, odd, error)
                    assert error["fix"], (name, odd, error)
        assert (await ann("list"))["you"] == "ann"
