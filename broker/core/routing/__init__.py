"""From a published message to its receivers: the router, the connected peers, bursts, loops, deadlines.

May import `codec`, `topics`, `queues` and `session`.
"""
