"""The messages that are sent to a client, and those that it loses: bounded queues, their terms, the ledger of drops.

Owns the buffer of a connection (`send_buffer`), the queue of a session (`message_queue`), messages in flight
(`send_window`) or waiting for a commit (`held`), what a full queue drops (`queue_terms`), and the totals of all queues
(`queue_totals`). May import `codec`, `topics`, `persistence.journal` and `persistence.commits`.
"""
