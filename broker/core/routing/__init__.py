"""From a published message to everybody it is for: the router, the connected peers, bursts, loops, deadlines.

May import `codec`, `topics`, `queues` and `session`.
"""
