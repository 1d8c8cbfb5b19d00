"""The command `blackboard`: one module per group of commands, nothing heavy imported before use."""

from blackboard._lazy import need_posix

need_posix("the command blackboard")
