"""How a broker's costs grow with what it holds (``python -m benchmarks.scale filters|clients|start``).

Owns three measurements of one broker process over the network. ``filters``: very many wildcard subscriptions, what they
cost to make, to hold, to route past and to drop. ``clients``: very many connected clients that are mostly silent, what
they cost to accept, to hold, to keep alive and to serve others beside. ``start``: a start with what a store kept.
Promises: every size gets a fresh broker process with its own settings, pinned and metered as in ``benchmarks.network``;
what is measured beside the filters or clients is also measured without them. A size that the system's limits do not
allow says so.
"""
