"""The MQTT protocol and the routing, without event loop, sockets and clocks.

Callers pass bytes and the time (`now`, in seconds of a monotonic clock) and get packets, queued frames and events back.
Packages, each of which imports only those before it: `codec`, `topics`, `queues`, `session`, `routing`, `protocol`;
and `persistence` beside them. mypyc compiles all of it; the same code also runs interpreted. docs/architecture.md
names ten modules to begin with.
"""
