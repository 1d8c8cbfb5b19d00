"""What runs in a process that uses a board: Board, Step, Watch. Knows no server."""
