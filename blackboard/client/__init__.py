"""The client: Board, Step, Watch. It runs in every process that uses a board, and imports no server
code."""
