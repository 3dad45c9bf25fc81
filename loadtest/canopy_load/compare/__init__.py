"""Several brokers side by side: `canopy load compare`.

``started_brokers`` (broker processes, their cores and version of MQTT) · ``contest`` (the order of runs) ·
``comparison`` (the figures) · ``compare_table``, ``compare_page``.
"""
