"""What outlives the broker: sessions, their messages and subscriptions, retained messages, delayed wills.

Owns the stores that a broker can be given, and the names that an embedding program imports:

    store = MemoryStore()
    async with Broker(settings, store=store):
        ...
    async with Broker(settings, store=store):  # another broker, which continues where the first one stopped
        ...

A broker without a store keeps all this for its own lifetime. Imports only the core.
"""

from __future__ import annotations

from broker.store.base import Store, StoreError
from broker.store.memory import MemoryStore

__all__ = ["MemoryStore", "Store", "StoreError"]
