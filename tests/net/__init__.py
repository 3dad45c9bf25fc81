"""The asyncio shell: server, connections, timers."""
