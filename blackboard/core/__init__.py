"""Pure rules: what a board is. No I/O, no clock, no randomness; time and ids are arguments."""
