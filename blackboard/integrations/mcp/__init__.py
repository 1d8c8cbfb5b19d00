"""Model Context Protocol: a board as tools and resources for coding agents and other MCP clients.

    blackboard mcp                      # what a client starts: over standard input and output
    blackboard mcp --http               # one server for many agents, each with its token

`board_server` is the server itself, for a program that serves it in another way.
"""

from blackboard.integrations.framework import framework

with framework("mcp"):
    import mcp.server  # noqa: F401 - before anything else here needs it

from blackboard.integrations.mcp.http import board_app
from blackboard.integrations.mcp.server import board_server
from blackboard.integrations.mcp.session import AgentSession
from blackboard.integrations.mcp.subscriptions import OldSubscriptions

__all__ = ["AgentSession", "OldSubscriptions", "board_app", "board_server"]
