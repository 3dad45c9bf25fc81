"""The messages that are sent to a client: bounded queues and their terms.

Owns the buffer of a connection (`send_buffer`), the queue of a session (`message_queue`), messages in flight
(`send_window`) or waiting for a commit (`held`), and the policies and options by which a full buffer or queue drops
messages (`queue_terms`). May import `codec`, `topics`, `persistence.journal` and `persistence.commits`.
"""
