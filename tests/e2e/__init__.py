"""The broker as its clients see it: through sockets, and nothing else."""
