"""The protocol and the routing: pure code that no event loop, socket or clock can be seen from.

Callers hand in bytes and the time (`now`, seconds of a monotonic clock) and get packets, queued frames and events
back. Its rooms, each of which imports only those before it: `codec`, `topics`, `queues`, `session`, `routing`,
`connection`; `persistence` stands beside them. All of it may be compiled by mypyc; the same code runs interpreted.
"""
