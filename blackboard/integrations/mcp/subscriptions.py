"""Resources: every key is one, `blackboard://public/plan`, and so is every directory.

A subscription is a watch of its own on the board of the agent that subscribes. So the service
decides what it may see, no URI of a private key reaches anybody else, and a subscription survives
the loss of the connection without a gap. `blackboard://public/plan/**` stands for all keys below.

Newer clients listen on a stream of their own (`subscriptions/listen`). Older ones subscribe to one
URI after the other, and get notifications on their connection, which only stdio has.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    ReadResourceResult,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextResourceContents,
)

from blackboard.errors import BlackboardError, Compacted, Resync, RolledBack, Unavailable
from blackboard.integrations.mcp import answers as said
from blackboard.integrations.mcp.answers import (
    ANSWER_ITEMS,
    AnswerRoom,
    entry_shown,
    explain,
    json_text,
)
from blackboard.integrations.mcp.session import AgentSession
from blackboard.types import Entry, Listing, Watch

SCHEME: Final = "blackboard://"
SUBSCRIPTIONS_MAX: Final = 64
"""Streams, and URIs of one stream or connection: each is a pattern that the service watches."""
RETRY_S: Final = 1.0
"""The pause before a subscription whose watch has ended begins another one."""
_PASSING: Final = (Unavailable, Compacted, RolledBack, Resync)
"""Why a watch ends although its client may still read what it is about."""
log = logging.getLogger(__name__)


def key_in(uri: str) -> str:
    """The key or pattern that a URI names. Errors: MCPError."""
    if not uri.startswith(SCHEME) or len(uri) == len(SCHEME):
        text = f"{uri[:200]!r} is no resource of this server: they look like {SCHEME}public/plan"
        raise MCPError(code=INVALID_PARAMS, message=text, data={"uri": uri[:200]})
    return unquote(uri.removeprefix(SCHEME))


def uri_of(key: str) -> str:
    """The URI of a key."""
    return SCHEME + key


async def read_resource(session: AgentSession, uri: str) -> ReadResourceResult:
    """An entry as JSON, or a page of the entries that match a pattern. Errors: MCPError."""
    key = key_in(uri)
    try:
        if "*" in key:
            shown: Any = _page_shown(session, await session.board.list(key, limit=ANSWER_ITEMS))
        elif (entry := await session.board.entry(key)) is not None:
            session.saw([entry])
            shown = _shown(entry, AnswerRoom())
        else:
            text = f"{key} does not exist"
            raise MCPError(code=INVALID_PARAMS, message=text, data={"uri": uri})
    except BlackboardError as error:
        raise failed(error, uri) from error
    text = json_text(shown)
    contents = TextResourceContents(uri=uri, mime_type="application/json", text=text)
    # Nobody may keep it: another agent changes it in the next moment, and it is this agent's.
    return ReadResourceResult(contents=[contents], ttl_ms=0, cache_scope="private")


def _page_shown(session: AgentSession, page: Listing) -> dict[str, Any]:
    """As much of a page as there is room for. The agent has read that, and nothing else."""
    room, after = AnswerRoom(), page.next_key
    shown: list[said.ShownEntry] = []
    for entry in page.entries:
        if room.is_used_up:
            after = shown[-1]["key"]
            break
        shown.append(_shown(entry, room))
        session.saw([entry])
    answer: dict[str, Any] = {"entries": shown}
    if after is not None:
        answer["next"] = after
    return answer


def _shown(entry: Entry, room: AnswerRoom) -> said.ShownEntry:
    return entry_shown(entry, room.show(entry.value))


def failed(error: BlackboardError, uri: str) -> MCPError:
    """The protocol's error for an error of the board."""
    answer = explain(error)
    text = f"{answer['message']}. {answer['fix']}"
    return MCPError(code=INVALID_PARAMS, message=text, data={"uri": uri, "error": {**answer}})


async def listen(
    session: AgentSession,
    ctx: "ServerRequestContext[Any]",
    params: SubscriptionsListenRequestParams,
) -> SubscriptionsListenResult:
    """Serve one stream until its client goes. Errors: MCPError, also when the watch ends."""
    uris = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))
    if len(uris) > SUBSCRIPTIONS_MAX:
        text = f"{len(uris)} resources are more than one subscription has: {SUBSCRIPTIONS_MAX}"
        raise MCPError(code=INVALID_PARAMS, message=text)
    # For this stream alone: on a shared one, each stream could learn the URIs of all agents.
    bus = InMemorySubscriptionBus()
    handler = ListenHandler(bus, max_subscriptions=1)
    if not uris:
        return await handler(ctx, params)
    by_pattern = {key_in(uri): uri for uri in uris}
    try:
        await session.check_readable(by_pattern)
        # Open before the stream is acknowledged: every change from then on is sent.
        async with session.board.watch(*by_pattern) as watch:

            async def tell(uri: str) -> None:
                await bus.publish(ResourceUpdated(uri=uri))

            feeding = asyncio.create_task(_feed(watch, by_pattern, tell), name="subscriptions")
            feeding.add_done_callback(lambda _: handler.close())
            try:
                result = await handler(ctx, params)
                if feeding.done():
                    feeding.result()  # why the watch ended
                return result
            finally:
                feeding.cancel()
                await asyncio.wait([feeding])
    except BlackboardError as error:
        raise failed(error, uris[0]) from error


async def _feed(watch: Watch, by_pattern: "dict[str, str]", tell: Callable[[str], Any]) -> None:
    """Call `tell` with each URI below which something changed, once per revision."""
    async for revised in watch:
        changed = {
            uri
            for change in revised.changes
            for pattern, uri in by_pattern.items()
            if is_match(pattern, change.key)
        }
        for uri in sorted(changed):
            await tell(uri)


def is_match(pattern: str, key: str) -> bool:
    """Whether a key matches a pattern that the service has accepted: `*` is one segment, a last
    `**` is one or more."""
    wanted, parts = pattern.split("/"), key.split("/")
    if wanted[-1] == "**":
        wanted = wanted[:-1]
        if len(parts) <= len(wanted):
            return False
        parts = parts[: len(wanted)]
    same = (want in ("*", part) for want, part in zip(wanted, parts, strict=False))
    return len(wanted) == len(parts) and all(same)


@dataclass(frozen=True, slots=True)
class _OldSubscription:
    """A subscription of an older client: the task that feeds it, and whether that has begun."""

    task: "asyncio.Task[None]"
    opened: "asyncio.Future[None]"


class OldSubscriptions:
    """The subscriptions of a connection that knows `resources/subscribe` only; close it."""

    def __init__(self) -> None:
        self._begun: dict[str, _OldSubscription] = {}

    async def subscribe(
        self, session: AgentSession, ctx: "ServerRequestContext[Any]", uri: str
    ) -> None:
        """Begin to tell the client of changes, from before this returns. Errors: MCPError."""
        key = key_in(uri)
        try:
            await session.check_readable([key])
            # Nothing is awaited from here to the task: two requests for one URI begin one watch.
            if uri not in self._begun or self._begun[uri].task.done():
                self._begin(session, ctx, key, uri)
            # Not the future itself: a request that is cancelled would cancel it for the others.
            await asyncio.shield(self._begun[uri].opened)
        except BlackboardError as error:
            raise failed(error, uri) from error

    def _begin(
        self, session: AgentSession, ctx: "ServerRequestContext[Any]", key: str, uri: str
    ) -> None:
        if len(self._begun) >= SUBSCRIPTIONS_MAX:
            text = f"this connection has {SUBSCRIPTIONS_MAX} subscriptions, which is the most"
            raise MCPError(code=INVALID_PARAMS, message=text, data={"uri": uri})
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watching = self._watch(session, opened, (key, uri), ctx)
        task = asyncio.create_task(watching, name=f"subscription to {uri}")
        self._begun[uri] = _OldSubscription(task, opened)
        task.add_done_callback(lambda done: self._forget(uri, opened, done))

    async def unsubscribe(self, uri: str) -> None:
        """End a subscription, if there is one."""
        begun = self._begun.get(uri)
        if begun is not None:
            begun.task.cancel()
            await asyncio.wait([begun.task])

    async def aclose(self) -> None:
        """End all."""
        tasks: Sequence[asyncio.Task[None]] = [begun.task for begun in self._begun.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, uri: str, opened: "asyncio.Future[None]", done: "asyncio.Task[None]") -> None:
        if uri in self._begun and self._begun[uri].task is done:
            del self._begun[uri]
        if opened.done():
            return
        # `subscribe` waits for it, and it will never be open.
        error = None if done.cancelled() else done.exception()
        text = f"the subscription to {uri} was ended before it began"
        opened.set_exception(error or MCPError(code=INVALID_REQUEST, message=text))

    async def _watch(
        self,
        session: AgentSession,
        opened: "asyncio.Future[None]",
        place: tuple[str, str],
        ctx: "ServerRequestContext[Any]",
    ) -> None:
        """Tell the client of changes until there can be no more. A watch that ends is followed by
        another one: MCP has no message for the end of a subscription."""
        key, uri = place
        while True:
            board = session.board
            try:
                async with board.watch(key) as watch:
                    if opened.done():  # something may have changed since the last watch
                        await ctx.session.send_resource_updated(uri)
                    else:
                        opened.set_result(None)
                    await _feed(watch, {key: uri}, ctx.session.send_resource_updated)
            except BlackboardError as error:
                if session.board is not board:
                    continue  # it ended with the connection that the session has left
                if not opened.done():
                    opened.set_exception(error)
                    return
                if not isinstance(error, _PASSING):
                    log.warning("the subscription to %s ended: %s", uri, error)
                    with suppress(Exception):  # the client may be gone; it reads and gets it
                        await ctx.session.send_resource_updated(uri)
                    return
                await asyncio.sleep(RETRY_S)
