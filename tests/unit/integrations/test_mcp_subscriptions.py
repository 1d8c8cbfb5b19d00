"""Resources and subscriptions through MCP: what changed is told, and to nobody who may not know."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.server.subscriptions import ResourceUpdated
from mcp_types import TextResourceContents

import blackboard
from blackboard import Board
from blackboard.core.path import parse_pattern
from blackboard.integrations.mcp import AgentSession, OldSubscriptions, answers, board_server
from blackboard.integrations.mcp.server import RESOURCES_MAX
from blackboard.integrations.mcp.subscriptions import SUBSCRIPTIONS_MAX, is_match
from blackboard.limits import RESYNC_BYTES, VALUE_BYTES_MAX
from tests.unit.integrations.mcp_clients import OLD, OldClient, caller
from tests.waiting import TIMEOUT_S, wait_until

PLAN, NEWS = "blackboard://public/plan", "blackboard://public/news/**"


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Board]:
    """The operator's board."""
    async with blackboard.open(tmp_path, level="memory") as client:
        yield client.board("team")


async def text_of(client: Client, uri: str) -> Any:
    """The JSON of a resource."""
    (contents,) = (await client.read_resource(uri)).contents
    assert isinstance(contents, TextResourceContents)
    return json.loads(contents.text)


async def entries_of(client: Client, uri: str) -> Any:
    """The entries in the JSON of a pattern."""
    return (await text_of(client, uri))["entries"]


async def told(events: AsyncIterator[Any]) -> str:
    """The URI of the next event."""
    with anyio.fail_after(TIMEOUT_S):
        event = await anext(events)
    assert isinstance(event, ResourceUpdated)
    return event.uri


# --- resources ------------------------------------------------------------------------------------


async def test_entries_and_directories_are_resources(team: Board) -> None:
    await team.put("public/plan", {"usd": 1})
    await team.put("public/news/1", "begun")
    async with caller(team.as_agent("ann")) as ann:
        assert (await text_of(ann.client, PLAN))["value"] == {"usd": 1}
        assert [one["key"] for one in await entries_of(ann.client, NEWS)] == ["public/news/1"]
        assert await text_of(ann.client, "blackboard://public/empty/**") == {"entries": []}
        await team.put("public/plan", {"usd": 2})  # no stale copy
        assert (await text_of(ann.client, PLAN))["value"] == {"usd": 2}
        templates = (await ann.client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["blackboard://{+key}"]


@pytest.mark.parametrize(
    "uri", ["http://x/y", "blackboard://", "blackboard://public/none", "blackboard://not%20a%20key"]
)
async def test_what_is_no_resource_is_an_error_in_words(team: Board, uri: str) -> None:
    async with caller(team.as_agent("ann")) as ann:
        with pytest.raises(MCPError, match=r"resource|exist|key") as caught:
            await ann.client.read_resource(uri)
        assert caught.value.error.code == -32602


async def test_resources_are_listed_in_pages_as_far_as_they_may_be_read(team: Board) -> None:
    for number in range(RESOURCES_MAX + 3):
        await team.put(f"public/n/{number:04}", number)
    await team.put("private/bob/notes", "secret")
    async with caller(team.as_agent("ann")) as ann:
        found: list[str] = []
        cursor = None
        while True:
            page = await ann.client.list_resources(cursor=cursor)
            assert len(page.resources) <= RESOURCES_MAX
            found += [str(one.uri) for one in page.resources]
            cursor = page.next_cursor
            if cursor is None:
                break
    assert len(found) == RESOURCES_MAX + 3
    assert not [uri for uri in found if "bob" in uri]


async def test_a_large_directory_is_cut_and_says_so(team: Board) -> None:
    """What was not shown was not read: no change can be based on it."""
    keys = [f"public/news/{number:02}" for number in range(20)]
    for key in keys:
        await team.put(key, "x" * 9_000)
    async with caller(team.as_agent("ann")) as ann:
        page = await text_of(ann.client, NEWS)
        shown = page["entries"]
        assert sum(len(one.get("text", "")) for one in shown) <= answers.ANSWER_CHARACTERS
        given = {"directory": "public/news", "recursive": True, "after": page["next"]}
        rest = (await ann("list", **given))["entries"]
        assert [one["key"] for one in [*shown, *rest]] == keys
        await ann("write", key="public/x", value=1, based_on=[shown[-1]["key"]])
        refused = await ann.fails("write", key="public/x", value=2, based_on=[rest[0]["key"]])
        assert refused["code"] == "not_read"


async def test_a_directory_of_many_entries_is_cut_and_says_so(team: Board) -> None:
    async with team.step() as step:
        for number in range(answers.ANSWER_ITEMS + 1):
            step.put(f"public/news/{number:03}", number)
    async with caller(team.as_agent("ann")) as ann:
        page = await text_of(ann.client, NEWS)
    assert len(page["entries"]) == answers.ANSWER_ITEMS
    assert page["next"] == page["entries"][-1]["key"]


# --- streams of newer clients ---------------------------------------------------------------------


async def test_a_subscriber_is_told_of_keys_and_directories(team: Board) -> None:
    async with (
        caller(team.as_agent("ann")) as ann,
        ann.client.listen(resource_subscriptions=[PLAN, NEWS]) as events,
    ):
        await team.put("public/other", 1)
        await team.put("public/plan", 1)
        assert await told(events) == PLAN
        await team.append("public/news", "hello")
        assert await told(events) == NEWS
        await team.delete("public/plan")
        assert await told(events) == PLAN


async def test_no_uri_of_a_private_key_reaches_another_agent(team: Board) -> None:
    """Not even to somebody who subscribes to it, or to all there is."""
    bobs = "blackboard://private/bob/notes"
    everything = "blackboard://**"
    async with (
        caller(team.as_agent("ann")) as ann,
        caller(team.as_agent("bob")) as bob,
        bob.client.listen(resource_subscriptions=[bobs]) as to_bob,
    ):
        with pytest.raises(MCPError, match="may not read"):
            async with ann.client.listen(resource_subscriptions=[bobs]):
                pytest.fail("it was opened")
        async with ann.client.listen(resource_subscriptions=[everything]) as to_ann:
            await bob("write", key="private/bob/notes", value="secret")
            assert await told(to_bob) == bobs
            await team.put("public/end", 1)
            assert await told(to_ann) == everything
            async with anyio.create_task_group() as tasks:
                more: list[str] = []

                async def listen() -> None:
                    more.append(await told(to_ann))

                tasks.start_soon(listen)
                await bob("write", key="private/bob/notes", value="another")
                await team.put("public/end", 2)
            # Two revisions since, one of them hidden: one event, that of the visible one.
            assert more == [everything]


async def test_a_stream_that_ends_leaves_no_watch(team: Board) -> None:
    async with caller(team.as_agent("ann")) as ann:
        before = watches()
        for _ in range(3):
            async with ann.client.listen(resource_subscriptions=[PLAN]) as events:
                await team.put("public/plan", 1)
                await told(events)

        async def gone() -> bool:
            return watches() <= before

        await wait_until(gone)


def watches() -> int:
    """Tasks that feed a stream."""
    return sum("_feed" in repr(one.get_coro()) for one in asyncio.all_tasks())


async def test_a_stream_has_a_bounded_number_of_resources(team: Board) -> None:
    uris = [f"blackboard://public/n/{number}" for number in range(SUBSCRIPTIONS_MAX)]
    async with caller(team.as_agent("ann")) as ann:
        async with ann.client.listen(resource_subscriptions=uris) as events:
            await team.put("public/n/7", 1)
            assert await told(events) == uris[7]
        with pytest.raises(MCPError, match=f"{SUBSCRIPTIONS_MAX + 1} resources"):
            async with ann.client.listen(resource_subscriptions=[*uris, PLAN]):
                pytest.fail("it was opened")


@pytest.mark.parametrize("pattern", ["public/a", "public/*/c", "public/a/**", "public/**", "**"])
def test_patterns_match_here_what_they_match_in_the_service(pattern: str) -> None:
    keys = ["public/a", "public/a/b", "public/b/c", "public/a/b/c", "private/a", "publicity/a"]
    parsed = parse_pattern(pattern)
    assert [is_match(pattern, key) for key in keys] == [parsed.matches(key) for key in keys]


# --- older clients --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_an_older_client_subscribes_on_its_connection(team: Board) -> None:
    session, old, told_old = AgentSession(team.as_agent("ann")), OldSubscriptions(), OldClient()
    server = board_server(lambda _: session, old)
    async with Client(server, mode=OLD, message_handler=told_old.take) as client:
        assert client.server_capabilities.resources is not None
        assert client.server_capabilities.resources.subscribe is True
        await client.subscribe_resource(PLAN)
        await client.subscribe_resource(PLAN)  # again is no second one
        await client.subscribe_resource(NEWS)
        await team.put("public/plan", 1)
        assert await told_old.next() == PLAN
        await client.unsubscribe_resource(PLAN)
        await team.put("public/plan", 2)
        await team.append("public/news", "hello")
        assert await told_old.next() == NEWS
        assert told_old.uris.empty()
        with pytest.raises(MCPError, match="may not read"):
            await client.subscribe_resource("blackboard://private/bob/notes")
        for number in range(SUBSCRIPTIONS_MAX - 1):
            await client.subscribe_resource(f"blackboard://public/n/{number}")
        with pytest.raises(MCPError, match="which is the most"):
            await client.subscribe_resource("blackboard://public/n/one-more")
    await old.aclose()
    await session.aclose()
    assert watches() == 0


class StuckWatch:
    """A watch that opens only if it is let, and then fails as nobody expects."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.let = anyio.Event()

    async def __aenter__(self) -> None:
        self.begun.set()
        await self.let.wait()
        raise RuntimeError("a bug of ours")

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("it was never open")


@pytest.mark.parametrize("how", ["unsubscribe", "aclose", "bug"])
async def test_a_subscription_that_never_begins_keeps_nobody_waiting(
    team: Board, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    session, old, stuck = AgentSession(team.as_agent("ann")), OldSubscriptions(), StuckWatch()
    monkeypatch.setattr(session.board, "watch", lambda _: stuck)
    context: Any = None  # it is needed when something changed
    subscribing = asyncio.create_task(old.subscribe(session, context, PLAN))
    await stuck.begun.wait()
    match how:
        case "unsubscribe":
            await old.unsubscribe(PLAN)
        case "aclose":
            await old.aclose()
        case _:
            stuck.let.set()
    expected, said = (RuntimeError, "bug") if how == "bug" else (MCPError, "ended before it began")
    with anyio.fail_after(TIMEOUT_S), pytest.raises(expected, match=said):
        await subscribing
    await old.aclose()
    await session.aclose()


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_two_requests_at_once_are_one_subscription(team: Board) -> None:
    """Which one end ends; else the other would be told for ever, and nobody could end it."""
    session, old, told_old = AgentSession(team.as_agent("ann")), OldSubscriptions(), OldClient()
    server = board_server(lambda _: session, old)
    async with Client(server, mode=OLD, message_handler=told_old.take) as client:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(client.subscribe_resource, PLAN)
        await team.put("public/plan", 1)
        assert await told_old.next() == PLAN
        await client.unsubscribe_resource(PLAN)
        assert watches() == 0
    await old.aclose()
    await session.aclose()
    assert told_old.uris.empty()


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_a_restore_that_is_too_large_to_be_sent_ends_no_subscription(team: Board) -> None:
    """Its watch ends; the client reads again, and is told of what comes after that."""
    session, old, told_old = AgentSession(team.as_agent("ann")), OldSubscriptions(), OldClient()
    keys = [f"public/news/{number}" for number in range(RESYNC_BYTES // VALUE_BYTES_MAX + 1)]
    for key in keys:
        await team.put(key, "x" * (VALUE_BYTES_MAX - 16))
    await team.checkpoint("full")
    for key in keys:
        await team.delete(key)
    server = board_server(lambda _: session, old)
    async with Client(server, mode=OLD, message_handler=told_old.take) as client:
        await client.subscribe_resource(NEWS)
        await team.restore("full")
        assert await told_old.next() == NEWS
        await team.put("public/news/1", "hello")
        assert await told_old.next() == NEWS
    await old.aclose()
    await session.aclose()
