"""What is in flight in both directions until it is acknowledged, and what waits for a store's commit.

Owns packet identifiers, Receive Maximum and the list of packets that wait for a commit. May import `queues`.
"""
