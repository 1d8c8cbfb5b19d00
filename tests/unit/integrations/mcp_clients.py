"""Agents behind MCP: the SDK's own client, a server of ours, and a real board between them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from mcp import Client
from mcp.client.session import ElicitationFnT as Elicit
from mcp_types import CallToolResult, ResourceUpdatedNotification

from blackboard import Board
from blackboard.integrations.mcp import AgentSession, OldSubscriptions, board_server
from tests.waiting import TIMEOUT_S

__all__ = ["MODERN", "OLD", "Caller", "Elicit", "OldClient", "caller"]

MODERN, OLD = "auto", "legacy"


@dataclass
class Caller:
    """A client, and what it gets."""

    client: Client
    session: AgentSession | None = None
    answers: "dict[str, Draft202012Validator] | None" = None
    """What the answer of each tool has to fit."""

    async def result(self, tool: str, /, **arguments: Any) -> CallToolResult:
        """Call a tool; what it answers fits the schema that it declares, errors too."""
        if self.answers is None:
            listed = (await self.client.list_tools()).tools
            self.answers = {one.name: Draft202012Validator(one.output_schema) for one in listed}
        result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        self.answers[tool].validate(result.structured_content)
        return result

    async def __call__(self, tool: str, /, **arguments: Any) -> Any:
        """The answer of a call that succeeds; its text says the same."""
        result = await self.result(tool, **arguments)
        (text,) = result.content
        assert not result.is_error, text
        assert text.type == "text"
        assert json.loads(text.text) == result.structured_content
        return result.structured_content

    async def fails(self, tool: str, /, **arguments: Any) -> Any:
        """The error of a call that fails; all of it stands in the text, too."""
        result = await self.result(tool, **arguments)
        assert result.is_error, result.structured_content
        assert result.structured_content is not None
        error = result.structured_content["error"]
        (text,) = result.content
        assert text.type == "text"
        for part in (error["code"], error["message"], error["fix"]):
            assert part in text.text
        assert error["message"]
        assert error["fix"]
        return error


class OldClient:
    """The notifications that an older client received."""

    def __init__(self) -> None:
        self.uris: asyncio.Queue[str] = asyncio.Queue()

    async def take(self, message: Any) -> None:
        """A message of the server."""
        if isinstance(message, ResourceUpdatedNotification):
            self.uris.put_nowait(str(message.params.uri))

    async def next(self) -> str:
        """The next URI."""
        with anyio.fail_after(TIMEOUT_S):
            return await self.uris.get()


@asynccontextmanager
async def caller(
    board: Board, mode: str = MODERN, elicit: Elicit | None = None
) -> AsyncIterator[Caller]:
    """An agent that works on `board` through MCP, in this process."""
    session, old = AgentSession(board), OldSubscriptions()
    server = board_server(lambda _: session, old)
    try:
        async with Client(server, mode=mode, elicitation_callback=elicit) as client:
            yield Caller(client, session)
    finally:
        await old.aclose()
        await session.aclose()
