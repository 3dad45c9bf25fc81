"""Real clients of other projects, talking to the broker as their users would."""
