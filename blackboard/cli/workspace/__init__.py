"""The command `workspace`."""
