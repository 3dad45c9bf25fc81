"""Who and what costs most, in constant memory: a sample of the publishes, and a walk over the subscribers.

It stands beside `routing` and `connection`; both tell it, and it asks nobody.
"""
