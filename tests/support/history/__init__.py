"""Nodes in processes of their own, with faults between them, and a checker of what all clients saw."""
