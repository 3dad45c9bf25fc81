"""The project's own benchmarks of Canopy, not part of the wheel.

``network`` (`make bench`): the same loads on several brokers · ``routing`` (`make bench-routing`): the routing core
without a network · ``scale`` (`make scale`): costs by the number of filters and clients · ``store``, ``pipeline``,
``upstream``: what a store, the Spark jobs and links cost · ``attack`` (`make attack`): hostile clients.

Imports: ``canopy_load`` and the broker. Nothing imports it but its tests.
"""
