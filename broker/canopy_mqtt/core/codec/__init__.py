"""The wire format of MQTT 3.1.1 and 5.0: packets, properties, reason codes, errors, topic names and filters.

Imports nothing else of the core.
"""
