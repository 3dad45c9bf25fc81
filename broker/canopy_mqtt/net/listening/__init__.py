"""Where clients connect: listeners, and the handshakes before MQTT (TLS, the PROXY protocol).

Owns the listening sockets; a connection begins after the handshakes.
"""
