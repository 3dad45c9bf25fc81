"""The client of the program that embeds the broker: publish and subscribe without a socket and without a codec.

Imports `canopy_mqtt.core`, and from `canopy_mqtt.net` the interface of a connection; `canopy_mqtt.assembly.app`
connects it with the server. See docs/embedding.md.
"""
