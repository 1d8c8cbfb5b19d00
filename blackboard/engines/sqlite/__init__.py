"""The embedded engine: a board in memory with its log in a SQLite file."""
