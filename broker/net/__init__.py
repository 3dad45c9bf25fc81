"""The asyncio shell around the core: listeners, connections, writers, timers.

Read `server` first, then `connection` (what comes in) and `writer` (what goes out).
"""
