"""A directory of files as part of a board: `board.workspace(path)`."""
