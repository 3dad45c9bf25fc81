"""The asyncio shell around the core: listeners, connections, writers, timers.

Read `server` first, then `connection` (what comes in and what goes out) and `turns` (who goes on in which round).
"""
