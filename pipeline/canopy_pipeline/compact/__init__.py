"""Job `compact` merges the small segments of past hours into few."""
