"""The rules of a board, as pure functions: no I/O, no clock, no randomness. Time and ids are
arguments."""
