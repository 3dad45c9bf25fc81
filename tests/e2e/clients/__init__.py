"""Real clients that nobody here wrote, talking to the broker as their users would."""
