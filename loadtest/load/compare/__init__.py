"""Several brokers side by side: `canopy load compare` and `canopy load limit`.

``started_brokers`` (which one, on which cores, with which version of MQTT) · ``contest`` (whose turn it is) ·
``comparison`` (the figures) · ``table``, ``page`` (how they look) · ``generator_limit`` (what the generator can do).
"""
