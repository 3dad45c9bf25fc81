"""The connections of clients: reading and writing, the table of all, their limits, time limits and log lines."""
