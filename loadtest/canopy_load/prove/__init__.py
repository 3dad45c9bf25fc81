"""`canopy prove`: what a broker loses, doubles or reorders while clients and the broker itself meet faults.

``plan`` (what happens, by the seed) · ``client`` (a client that writes everything down; ``ground`` is what all of them
share) · ``play`` (a plan against running brokers) · ``brokers`` (those that are started for it) · ``judge`` (from the
history to verdicts, by ``canopy_load.ledger.checker``) · ``report``.
"""
