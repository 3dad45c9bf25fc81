"""The asyncio shell around the core: listeners, connections, writers, timers.

Read `server` first, then `connection` (reading and writing) and `turns` (who continues in which round).
"""
