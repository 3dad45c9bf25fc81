"""`canopy prove`: what a broker loses, doubles or reorders while clients and the broker itself meet faults.

``plan`` (what happens, by the seed: ``roles`` are the clients, ``steps`` what they do, ``faults`` what goes wrong) ·
``client`` (a client that writes everything down, on a ``wire`` after the other; ``ground`` is what all of them share) ·
``play`` (a plan against running brokers; ``lateness`` of this tool) · ``brokers`` (those that are started for it) ·
``pieces`` (one plan after the other) · ``judge`` (from the history to verdicts, by ``canopy_load.ledger.checker`` and
``waits``) · ``summary`` (what is reported) · ``report`` and ``page`` (its forms).
"""
