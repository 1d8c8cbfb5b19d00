"""`blackboard mcp`: a board for coding agents, which start it themselves."""
