"""Several brokers side by side: `canopy load compare`.

``started_brokers`` (which one, on which cores, with which version of MQTT) · ``contest`` (whose turn it is) ·
``comparison`` (the figures) · ``table``, ``page`` (how they look).
"""
