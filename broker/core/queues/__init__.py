"""What a client is sent, and what it loses: messages, bounded queues, their policies and the ledger of drops.

Owns the live queue of a connection (`outbox`), the queue of a session (`session_queue`), what is in flight or waits for
a commit (`windows`), and what all queues hold together (`queue_totals`). May import `codec`, `topics`,
`persistence.journal` and `persistence.commits`.
"""
