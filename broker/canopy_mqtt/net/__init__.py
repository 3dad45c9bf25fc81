"""The asyncio shell around the core: listeners, connections, writers, timers.

Read `server` first, then `connections.connection` (reading and writing) and `rounds` (which connection continues when).
"""
