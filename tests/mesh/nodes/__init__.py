"""Whole brokers that are the nodes of one mesh, in this process: what their clients see, and what they keep."""
