"""Brokers that a proof starts: each is a file of data, and all of them fail in the same ways.

``driver`` (what a file says) · ``started`` (nodes, their start and end, and what goes wrong with them) · ``network``
and ``proxy`` (between nodes) · ``preloads`` (disk, clock) · ``keeper`` (nothing is left).
"""
