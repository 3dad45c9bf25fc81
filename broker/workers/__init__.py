"""Several processes that share the listeners and are one broker, and the supervisor that starts them.

Each worker is an ordinary broker, a node of a mesh of them all. The supervisor holds the listening sockets, starts
again what ends, passes on reloads, gathers logs, and answers over HTTP for all. It speaks no MQTT.
"""
