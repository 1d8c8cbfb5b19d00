"""Engines: where a board is kept. One port (`base`), two real implementations."""
