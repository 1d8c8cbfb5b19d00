"""Appends pages of the log to the archive, here or in a process of its own."""
