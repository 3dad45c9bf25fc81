"""The job `loadtest`."""
