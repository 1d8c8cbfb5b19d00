"""The command `memory`."""
