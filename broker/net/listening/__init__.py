"""Where clients connect: listeners, the handshakes before MQTT (TLS, the PROXY protocol), Unix sockets.

Owns the listening sockets and their certificates; a connection begins after the handshakes.
"""
