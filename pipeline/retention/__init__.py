"""Job `retention`: old segments dropped, and written down. `job` · `command`."""
