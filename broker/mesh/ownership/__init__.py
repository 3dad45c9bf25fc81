"""One session for a client identifier, on whichever node its client connects to.

Owns the way of a session from one node to another. `room` is what the broker puts into the mesh: `claims` decides who
has a session, `moves` has those on their way, `barriers` wait for what other nodes have sent before, `gates` keep out
what comes another way; `messages` says how all that stands in bytes.
"""
