"""Keeps the state that outlives the broker: sessions, subscriptions, messages, retained messages, delayed wills.

Owns the stores that a broker can be given, and the names that an embedding program imports:

    store = MemoryStore()
    async with Broker(settings, store=store):
        ...
    async with Broker(settings, store=store):  # another broker, which continues where the first one stopped
        ...

A broker without a store keeps all this for its own lifetime. Imports only the core.
"""

from __future__ import annotations

from canopy_mqtt.store.base import Store, StoreError
from canopy_mqtt.store.memory import MemoryStore

__all__ = ["MemoryStore", "Store", "StoreError"]
