"""The command `blackboard`: one module per group of commands, nothing heavy imported before use."""
