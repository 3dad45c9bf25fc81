"""The brokers that Canopy is measured beside, as processes of this machine.

Owns: ``registry`` (which brokers are known, and how each is configured), ``process`` (start, pin, meter, end),
``database`` (a PostgreSQL for those that keep their data in one), ``relay`` (a peer that only copies bytes), ``frames``
(the bytes of MQTT packets), ``stats`` (medians, percentiles, ratios).

Imports: nothing else of this project. ``canopy_load`` and ``benchmarks`` stand on it.
"""
