"""Taking, restoring, branching and importing checkpoints."""
