"""What is in flight, in both directions, until it is acknowledged; and what may leave only when a store has it.

Owns packet identifiers, Receive Maximum and the line of those that wait for a commit. May import `queues`.
"""
