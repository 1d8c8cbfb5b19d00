"""The server: tools, resources and subscriptions of a board, for the agent of each request.

    server = board_server(lambda ctx: session)     # an `mcp.server.Server`, for any transport

Errors of the board become the answer of the tool, as text and as fields, so that the model reads
them and plans again. Only what is wrong with the protocol itself is an error of the protocol.
"""

import logging
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    InputRequiredResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextContent,
    Tool,
    ToolAnnotations,
    UnsubscribeRequestParams,
)

import blackboard
from blackboard.errors import BlackboardError
from blackboard.integrations.mcp import answers as said, arguments as given, restores
from blackboard.integrations.mcp.answers import ErrorAnswer, ToolFailure, explain, json_text
from blackboard.integrations.mcp.session import AgentSession
from blackboard.integrations.mcp.subscriptions import (
    SCHEME,
    OldSubscriptions,
    failed,
    listen,
    read_resource,
    uri_of,
)
from blackboard.integrations.mcp.tools import TOOLS

log = logging.getLogger(__name__)
NAME: Final = "blackboard"
RESOURCES_MAX: Final = 200
"""Resources in one page of their list."""
RequestContext = ServerRequestContext[Any]
SessionOf = Callable[[RequestContext], AgentSession]
"""The session of the agent that makes a request. Errors: ToolFailure, when it has none now."""

INSTRUCTIONS: Final = """\
A durable board that several agents and people share. Keys are paths: public/... is for all, \
private/YOU/... only for you, inbox/AGENT/... for messages; `list` says who you are.
Read before you write, and pass the revision that you read as expected_revision: after a conflict, \
decide again from what is there now.
Claim what only one agent should work on (a file, a task), announce what you do with `append`, \
`wait` instead of reading again and again, release at the end.
Take a checkpoint before anything risky."""


@cache
def declared_tools() -> "tuple[Tool, ...]":
    """The tools as a client lists them. Their schemas take a tenth of a second: made once."""
    found = [
        Tool(
            name=one.name,
            description=one.description,
            input_schema=given.input_schema(one.arguments),
            output_schema=said.schema_of(one.answer),
            annotations=ToolAnnotations(
                read_only_hint=one.reads, destructive_hint=one.destroys, open_world_hint=False
            ),
        )
        for one in TOOLS.values()
    ]
    restoring = Tool(
        name="restore",
        description=restores.DESCRIPTION,
        input_schema=given.input_schema(given.RestoreArguments),
        output_schema=said.schema_of(said.RestoreAnswer),
        annotations=ToolAnnotations(
            read_only_hint=False, destructive_hint=True, open_world_hint=False
        ),
    )
    return (*found, restoring)


def board_server(session_of: SessionOf, old: OldSubscriptions | None = None) -> "Server[Any]":
    """A server for any transport; `old` serves clients that subscribe on their connection."""
    return _Handlers(session_of, old).server()


class _Handlers:
    """What each request of the protocol does."""

    def __init__(self, session_of: SessionOf, old: OldSubscriptions | None) -> None:
        self._session_of = session_of
        self._old = old
        self._tools = declared_tools()
        self._names = [one.name for one in self._tools]

    def server(self) -> "Server[Any]":
        """The server with these handlers."""
        return Server(
            NAME,
            title="Blackboard",
            version=blackboard.__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_subscriptions_listen=self.listen,
            on_subscribe_resource=None if self._old is None else self.subscribe,
            on_unsubscribe_resource=None if self._old is None else self.unsubscribe,
        )

    async def list_tools(
        self, ctx: RequestContext, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        """All tools, in one page."""
        return ListToolsResult(tools=list(self._tools))

    async def call_tool(
        self, ctx: RequestContext, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Run a tool; whatever goes wrong is its answer."""
        try:
            answer = await self._run(ctx, params)
        except ToolFailure as failure:
            return _failed(failure.answer)
        except BlackboardError as error:
            return _failed(explain(error))
        except MCPError:
            raise
        except Exception:
            log.exception("tool %r failed", params.name[:100])
            return _failed(
                {
                    "code": "internal_error",
                    "message": f"{params.name[:100]} failed in this server, which logged why",
                    "fix": "Read what you wanted to change, and report this to a person.",
                    "retryable": False,
                }
            )
        if isinstance(answer, InputRequiredResult):
            return answer
        # As text, too: MCP asks for that, for clients that know no structured content.
        text = TextContent(type="text", text=json_text(answer))
        return CallToolResult(content=[text], structured_content=answer)

    async def _run(self, ctx: RequestContext, params: CallToolRequestParams) -> Any:
        arguments, session = params.arguments or {}, self._session_of(ctx)
        if params.name == "restore":
            args = given.checked(given.RestoreArguments, arguments)
            async with session.calling():
                return await restores.restore(session, args, ctx, params)
        tool = TOOLS.get(params.name)
        if tool is None:
            near = get_close_matches(params.name, self._names, n=1)
            also = f" Did you mean {near[0]}?" if near else ""
            text = f"there is no tool {params.name[:100]!r}.{also}"
            raise MCPError(code=INVALID_PARAMS, message=text, data={"tools": self._names})
        checked = given.checked(tool.arguments, arguments)
        async with session.calling():
            return await tool.run(session, checked)

    async def list_resources(
        self, ctx: RequestContext, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        """A page of the keys that this agent may read."""
        after = params.cursor if params is not None else None
        try:
            board = self._session_of(ctx).board
            page = await board.list("**", after=after, limit=RESOURCES_MAX, keys_only=True)
        except BlackboardError as error:
            raise failed(error, SCHEME) from error
        found = [
            Resource(uri=uri_of(entry.key), name=entry.key, mime_type="application/json")
            for entry in page.entries
        ]
        return ListResourcesResult(
            resources=found, next_cursor=page.next_key, ttl_ms=0, cache_scope="private"
        )

    async def list_templates(
        self, ctx: RequestContext, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        """The form of all URIs."""
        template = ResourceTemplate(
            uri_template=f"{SCHEME}{{+key}}",
            name="entry",
            description=f"An entry of the board; {SCHEME}public/plan/** stands for all below it.",
            mime_type="application/json",
        )
        return ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, ctx: RequestContext, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        """One entry, or a page of them."""
        return await read_resource(self._session_of(ctx), params.uri)

    async def listen(
        self, ctx: RequestContext, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """One stream of subscriptions."""
        return await listen(self._session_of(ctx), ctx, params)

    async def subscribe(self, ctx: RequestContext, params: SubscribeRequestParams) -> EmptyResult:
        """A subscription of an older client."""
        assert self._old is not None
        await self._old.subscribe(self._session_of(ctx), ctx, params.uri)
        return EmptyResult()

    async def unsubscribe(
        self, ctx: RequestContext, params: UnsubscribeRequestParams
    ) -> EmptyResult:
        """Its end."""
        assert self._old is not None
        await self._old.unsubscribe(params.uri)
        return EmptyResult()


def _failed(error: ErrorAnswer) -> CallToolResult:
    """An error as text for the model and as fields: each has all of it."""
    rest = {
        name: part
        for name, part in error.items()
        if name not in ("code", "message", "fix", "retryable")
    }
    text = f"{error['code']}: {error['message']}. {error['fix']}"
    if rest:
        text += f"\n{json_text(rest)}"
    answer: Any = {"error": error}
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=answer, is_error=True
    )
