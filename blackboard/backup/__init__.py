"""Backups: the logs of boards, shipped to a directory or an object store, and read back from it."""
