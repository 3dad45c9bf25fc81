"""What is sent to a client, and what it loses: messages, bounded queues, policies and the ledger of drops.

Owns the queue of a connection (`live`), the queue of a session (`session_queue`), messages in flight or waiting for a
commit (`windows`), what is dropped (`policies`), and the totals of all queues (`queue_totals`). May import `codec`,
`topics`, `persistence.journal` and `persistence.commits`.
"""
