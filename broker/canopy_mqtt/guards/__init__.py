"""Guards around the calls of hooks, and the log of what they have stopped."""
