"""Where a board lives: the port and the two engines that fulfil it."""
