"""Bytes and packets: the wire format of MQTT 3.1.1 and 5.0, its reason codes, errors and names.

Owns the decoder and the encoder with the packets they speak of, properties, and what topic names and filters may be.
Imports nothing else of the core.
"""
