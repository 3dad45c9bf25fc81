"""Where clients arrive: listeners, the handshakes before MQTT (TLS, the PROXY protocol), Unix sockets.

Owns the listening sockets and their certificates; a connection begins when all of that is through.
"""
