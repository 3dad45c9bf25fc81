"""One session for a client identifier, on whichever node its client connects to.

Owns the way of a session from one node to another. `room` is what the broker puts into the mesh: `claims` decides who
has a session, `giving` and `taking` move it, `barriers` wait for what is on the way, `messages` and `records` say how
all that stands in bytes.
"""
