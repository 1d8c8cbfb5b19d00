"""Bytes: how values, commits and messages look outside this process. Pure, no I/O."""
