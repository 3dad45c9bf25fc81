"""The state that outlives a connection: subscriptions, packet identifiers, the in-flight window, retained streams.

May import `codec`, `topics`, `queues` and `persistence.journal`.
"""
