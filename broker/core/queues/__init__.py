"""What a client is sent, and what it loses: messages, bounded queues, their policies and the ledger of drops.

Owns the live queue of a connection (`outbox`), the queue of a session (`session_queue`), what is in flight to its
client (`send_window`) and the bound over all queues. May import `codec` and `topics`.
"""
