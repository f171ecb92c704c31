"""The solver: updates, learning rates, snapshots, scores, progress."""
