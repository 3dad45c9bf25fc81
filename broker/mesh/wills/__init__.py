"""Wills of clients whose node dies: the other nodes have them, and one of them publishes each.

`room` is what the broker puts into the mesh: it decides which node publishes, and when. `replicating` copies the wills
here to the other nodes, `kept` has their copies; `messages` says how all that stands in bytes.
"""
