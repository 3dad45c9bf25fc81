"""The queue of a connected peer (`outbox`): its order and accounts, and the topic names of its frames."""
