"""Job `compact`: the small segments of hours that are over, merged into few. `job` · `command`."""
